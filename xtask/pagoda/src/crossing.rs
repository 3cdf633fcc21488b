//! The lengths below which an engine attends densely by itself, because selecting blocks would take longer there.
//!
//! When an engine opens with a policy, decode steps are timed dense and with the policy, on the loaded model. The times are kept
//! in the user's cache folder, beside the verdicts of self-tests and under everything that moves them, so that it happens once.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use models::{DecodeRehearsal, Decoder, ModelCache, ModelError, StepGrid, StepTimes};
use sparse_select::MinTokens;

use crate::error::Error;
use crate::options::EngineOptions;
use crate::sparse::Sparse;
use crate::{Note, user_file, verdicts};

const FILE: &str = "crossings.json";

/// Steps that are run before one is timed: the first is recorded, the second was encoded ahead as all that follow.
const WARM_UPS: usize = 2;

/// Timed steps in a row, of which the fastest counts.
const TIMED: usize = 2;

/// Rounds of dense and selecting steps, so that a clock that goes up favours neither.
const ROUNDS: usize = 2;

/// Slower steps are timed in one round.
const ONE_ROUND: Duration = Duration::from_millis(50);

/// A decode step that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimedStep {
    /// Sequences.
    pub rows: u32,
    /// Tokens of each.
    pub context: u32,
    /// Whether the policy selects blocks.
    pub selecting: bool,
}

/// Takes the times of decode steps: the machine's clock, or a function in its place, so that tests depend on no machine. Times
/// of a function are not kept in the user's folder.
#[derive(Clone, Default)]
pub struct Stopwatch(Option<Arc<Times>>);

type Times = dyn Fn(TimedStep) -> Duration + Send + Sync;

impl Stopwatch {
    /// Takes the time of a step, which runs all the same, from `times`.
    #[must_use]
    pub fn of(times: impl Fn(TimedStep) -> Duration + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(times)))
    }

    /// Runs a step and returns its time.
    fn time(&self, step: TimedStep, rehearsal: &mut DecodeRehearsal<'_>) -> Result<Duration, ModelError> {
        let begun = Instant::now();
        rehearsal.run(step.rows, step.context, step.selecting)?;
        Ok(self.0.as_ref().map_or_else(|| begun.elapsed(), |times| times(step)))
    }
}

impl fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Stopwatch(function)" } else { "Stopwatch(clock)" })
    }
}

/// Sets the crossing of a decoder that was loaded with `options`, and tells it. Steps that are not known yet are timed.
pub(crate) fn cross(decoder: &mut Decoder, options: &EngineOptions) -> Result<(), Error> {
    let Some(sparse) = options.sparse.as_ref().filter(|sparse| is_timed(sparse, decoder, options)) else {
        return Ok(());
    };
    let key = key(sparse, decoder, options);
    let demand = options.demand_within(decoder.config().context_length);
    let longest = u32::try_from(demand.longest).unwrap_or(u32::MAX).min(decoder.config().context_length);
    let Some(mut rehearsal) = decoder.rehearsal(longest) else { return Ok(()) };
    let mut kept = match options.stopwatch.0 {
        None => Kept::of_this_user(),
        Some(_) => Kept::default(),
    };
    let grid = rehearsal.grid();
    let times = kept.times.entry(key).or_default();
    let before = times.len();
    time_all(&mut rehearsal, &grid, &options.stopwatch, times)?;
    let (crossing, more) = (grid.crossing(times), times.len() > before);
    if more {
        kept.save();
    }
    // Who keeps everything anyway has a note of its own.
    if !sparse.policy.keeps_all(None, longest as usize) {
        let (policy, crossing) = (sparse.spec.to_string(), crossing.clone());
        options.notes.tell(&Note::Crossing { policy, crossing, longest });
    }
    Ok(decoder.set_crossing(crossing)?)
}

/// Refuses times where results must not depend on any.
pub(crate) fn check(options: &EngineOptions) -> Result<(), Error> {
    match &options.sparse {
        Some(sparse) if options.reproducible && sparse.policy.min_tokens() == MinTokens::Measured => {
            Err(Error::TimedReproducible { policy: sparse.spec.to_string() })
        }
        _ => Ok(()),
    }
}

/// Whether the lengths from which a policy selects are found out by times.
fn is_timed(sparse: &Sparse, decoder: &Decoder, options: &EngineOptions) -> bool {
    let wanted = match sparse.policy.min_tokens() {
        MinTokens::Auto => options.stopwatch.0.is_some() || !decoder.gpu().is_cpu(),
        MinTokens::Measured => true,
        MinTokens::Tokens(_) => false,
    };
    // Times must not decide on bits, and whoever draws or measures selections wants all of them.
    wanted && sparse.selects() && !options.reproducible && !sparse.trace && !sparse.measure
}

/// Times the steps of a grid that are not in `times`.
fn time_all(
    rehearsal: &mut DecodeRehearsal<'_>,
    grid: &StepGrid,
    stopwatch: &Stopwatch,
    times: &mut Vec<StepTimes>,
) -> Result<(), ModelError> {
    while let Some((rows, context)) = grid.next(times) {
        let [mut dense, mut selecting] = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            for (selects, best) in [(false, &mut dense), (true, &mut selecting)] {
                let step = TimedStep { rows, context, selecting: selects };
                for _ in 0..WARM_UPS {
                    rehearsal.run(rows, context, selects)?;
                }
                for _ in 0..TIMED {
                    *best = stopwatch.time(step, rehearsal)?.min(*best);
                }
            }
            if dense.max(selecting) > ONE_ROUND {
                break;
            }
        }
        times.push(StepTimes { rows, context, dense, selecting });
    }
    Ok(())
}

/// Names everything that moves the times of a policy on this device.
fn key(sparse: &Sparse, decoder: &Decoder, options: &EngineOptions) -> String {
    let config = decoder.config();
    let mut model = DefaultHasher::new();
    // The layers with their shapes, and the formats of the weights by the bytes that they take.
    format!("{config:?} {:?}", decoder.weight_sizes()).hash(&mut model);
    let placed = decoder.weight_placement().map_or(0, |placement| placement.host_bytes);
    format!(
        "{}; {}; {} layers, {} channels, {}/{} heads of {}, {} bytes, {placed} on the host, {:016x}; KV {:?} in blocks of {}; \
         coop {}, activations {:?}; version {}",
        verdicts::key(decoder.gpu().info()),
        sparse.spec,
        config.num_layers,
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        decoder.weight_sizes().bytes(),
        model.finish(),
        options.kv_dtype,
        options.block_size,
        options.coop,
        options.activations,
        env!("CARGO_PKG_VERSION"),
    )
}

/// Times of all devices, models and policies of the user.
#[derive(Debug, Default)]
struct Kept {
    path: Option<PathBuf>,
    times: BTreeMap<String, Vec<StepTimes>>,
}

impl Kept {
    fn of_this_user() -> Self {
        ModelCache::user().map_or_else(|_| Self::default(), |cache| Self::at(cache.dir()))
    }

    fn at(folder: &Path) -> Self {
        let path = folder.join(FILE);
        Self { times: user_file::read(&path), path: Some(path) }
    }

    /// Writes the file. Where that fails, the next engine takes the times again.
    fn save(&self) {
        if let Some(path) = &self.path {
            let _ = user_file::replace(path, &self.times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_by_all_that_moves_them() {
        let folder = tempfile::tempdir().unwrap();
        let of = |ms| Duration::from_millis(ms);
        let times = vec![StepTimes { rows: 8, context: 4096, dense: of(9), selecting: of(7) }];
        let mut kept = Kept::at(folder.path());
        assert!(kept.times.is_empty());
        kept.times.insert("a device".into(), times.clone());
        kept.save();
        let read = Kept::at(folder.path());
        assert_eq!(read.times.get("a device"), Some(&times));
        assert_eq!(read.times.get("another"), None);
        // A file of another format counts as none.
        std::fs::write(folder.path().join(FILE), "7").unwrap();
        assert!(Kept::at(folder.path()).times.is_empty());
    }
}
