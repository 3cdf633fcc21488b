//! The lengths below which an engine attends densely by itself, because selecting blocks would take longer there.
//!
//! When an engine opens with a policy, decode steps and chunks of prompts are timed dense and with the policy, on the loaded
//! model. The times are kept in the user's cache folder, next to the verdicts of self-tests. Their key names everything that
//! changes them, so each is measured once.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvblock::Phase;
use models::{ChunkCrossing, ChunkTimes, Crossing, Decoder, ModelError, Pipeline, StepTimes};
use sparse_select::{MinTokens, Policy};

use crate::error::Error;
use crate::fetch::ModelCache;
use crate::options::EngineOptions;
use crate::sparse::Sparse;
use crate::stopwatch::{Runs, Stopwatch, TimedStep};
use crate::{Note, adapter_records, user_file};

const FILE: &str = "crossings.json";

/// Number of times that a chunk is run for a measurement. Its commands are recorded in each run.
const CHUNKS: Runs = Runs { warm_ups: 1, steps: 1 };

/// Number of decode steps that run before timing begins. The first one records its commands; from the second one on,
/// steps are encoded ahead.
const WARM_UPS: u32 = 2;

/// Sets the lengths from which steps of a decoder that was loaded with `options` select blocks, and reports them.
/// Times the steps for which no times are recorded.
pub(crate) fn cross(pipeline: &mut Pipeline, options: &EngineOptions) -> Result<(), Error> {
    let Some(sparse) = options.sparse.as_ref().filter(|sparse| sparse.selects()) else { return Ok(()) };
    // Layers of other devices are like the first ones.
    let decoder = pipeline.first_mut();
    let key = key(sparse, decoder, options);
    let demand = options.demand_within(decoder.config().context_length);
    let longest = u32::try_from(demand.longest).unwrap_or(u32::MAX).min(decoder.config().context_length);
    let mut kept = match options.stopwatch.times_steps_by_function() {
        false => Kept::of_this_user(),
        true => Kept::default(),
    };
    let before = kept.len();
    let is_timed = |phase| is_timed(sparse, phase, decoder, options);
    let [prefill, decode] = [Phase::Prefill, Phase::Decode].map(is_timed);
    let chunks = match prefill {
        true => {
            let times = kept.times.entry(format!("{key}; chunks of {}", options.chunk)).or_default();
            chunk_crossing(decoder, [options.chunk, longest], &options.stopwatch, times)?
        }
        false => shortest_chunk(sparse, decoder, options).map(ChunkCrossing::from_rows),
    };
    let crossing = match decode {
        true => decode_crossing(decoder, longest, &options.stopwatch, kept.times.entry(key).or_default())?,
        false => None,
    };
    if kept.len() > before {
        kept.save();
    }
    if chunks.is_none() && crossing.is_none() {
        return Ok(());
    }
    // Who keeps everything anyway has a note of its own.
    let drops = |phase| policy_of(sparse, phase).whole_below() <= longest as usize;
    let told =
        (crossing.clone().filter(|_| drops(Phase::Decode)), chunks.clone().filter(|_| drops(Phase::Prefill)));
    if told.0.is_some() || told.1.is_some() {
        let (policy, (crossing, chunks)) = (sparse.spec.to_string(), told);
        options.notes.tell(&Note::Crossing { policy, crossing, chunks, longest });
    }
    if let Some(chunks) = chunks {
        pipeline.set_chunk_crossing(&chunks);
    }
    Ok(crossing.map_or(Ok(()), |crossing| pipeline.set_crossing(&crossing))?)
}

/// Refuses options that depend on times or on batches, if results must be reproducible.
pub(crate) fn check(options: &EngineOptions) -> Result<(), Error> {
    let Some(sparse) = options.sparse.as_ref().filter(|_| options.reproducible) else { return Ok(()) };
    let (policy, requests) = (sparse.spec.to_string(), sparse.policy.min_requests());
    if [Phase::Prefill, Phase::Decode].map(|phase| min_tokens(sparse, phase)).contains(&MinTokens::Measured) {
        return Err(Error::TimedReproducible { policy });
    }
    if requests > 1 { Err(Error::BatchReproducible { policy, requests }) } else { Ok(()) }
}

/// The policy that acts in a phase.
fn policy_of(sparse: &Sparse, phase: Phase) -> Arc<dyn Policy> {
    match (sparse.policy.phases(), phase) {
        (None, _) => Arc::clone(&sparse.policy),
        (Some([prefill, _]), Phase::Prefill) => prefill,
        (Some([_, decode]), Phase::Decode) => decode,
    }
}

/// Minimum number of tokens from which a policy selects blocks in a phase, or the way to find this number.
fn min_tokens(sparse: &Sparse, phase: Phase) -> MinTokens {
    policy_of(sparse, phase).min_tokens()
}

/// Whether an engine may attend densely by itself. Results that must be reproducible cannot depend on times, and a trace or
/// measurement of selections needs all of them.
fn may_be_dense(sparse: &Sparse, options: &EngineOptions) -> bool {
    !options.reproducible && !sparse.trace && !sparse.measure
}

/// Whether timed steps decide the length from which a policy selects blocks in a phase.
fn is_timed(sparse: &Sparse, phase: Phase, decoder: &Decoder, options: &EngineOptions) -> bool {
    let wanted = match min_tokens(sparse, phase) {
        MinTokens::Auto => options.stopwatch.times_steps_by_function() || !decoder.gpu().is_cpu(),
        MinTokens::Measured => true,
        MinTokens::Tokens(_) => false,
    };
    wanted && may_be_dense(sparse, options)
}

/// Minimum number of rows of chunks of prompts that select blocks on a software driver, if the policy does not
/// request measured times: the rows of a query block. Steps are short there, so chunks are too, and the scores of a
/// few rows cost as much as those of a whole block. `None` if all chunks select.
fn shortest_chunk(sparse: &Sparse, decoder: &Decoder, options: &EngineOptions) -> Option<u32> {
    let policy = policy_of(sparse, Phase::Prefill);
    let by_queries = policy.acts_on(Phase::Prefill) && policy.skips().is_none() && policy.support().query;
    let unasked = policy.min_tokens() == MinTokens::Auto && may_be_dense(sparse, options);
    (decoder.gpu().is_cpu() && by_queries && unasked).then(|| policy.block_size().get())
}

/// Finds from `times` the length at which selecting decode steps become faster than dense ones, and times the steps
/// that `times` lacks. `None` if no step can be timed.
fn decode_crossing(
    decoder: &mut Decoder,
    longest: u32,
    stopwatch: &Stopwatch,
    times: &mut Vec<StepTimes>,
) -> Result<Option<Crossing>, ModelError> {
    let Some(mut rehearsal) = decoder.rehearsal(longest) else { return Ok(None) };
    let (grid, runs) = (rehearsal.grid(), Runs { warm_ups: WARM_UPS, steps: rehearsal.steps() });
    while let Some((rows, context)) = grid.next(times) {
        let step = TimedStep { phase: Phase::Decode, rows, context, selecting: false };
        let run = |step: TimedStep| rehearsal.run(rows, context, step.selecting);
        let ([dense, selecting], ()) = stopwatch.time_both(step, runs, run)?;
        times.push(StepTimes { rows, context, dense, selecting });
    }
    Ok(Some(grid.crossing(times)))
}

/// Finds from `times` the lengths at which selecting prompt chunks of up to `rows` rows become faster than dense
/// ones, and times the steps that `times` lacks.
fn chunk_crossing(
    decoder: &mut Decoder,
    [rows, longest]: [u32; 2],
    stopwatch: &Stopwatch,
    times: &mut Vec<StepTimes>,
) -> Result<Option<ChunkCrossing>, ModelError> {
    let Some(mut rehearsal) = decoder.chunk_rehearsal(rows, longest) else { return Ok(None) };
    let grid = rehearsal.grid();
    let mut without_context = None;
    while let Some((rows, context)) = grid.next(times) {
        let mut run = |step: TimedStep| rehearsal.run(rows, step.context, step.selecting);
        let step = TimedStep { phase: Phase::Prefill, rows, context, selecting: false };
        let alone = match without_context {
            Some((of, time)) if of == rows => time,
            _ => stopwatch.time(TimedStep { context: rows, ..step }, CHUNKS, &mut run)?.0,
        };
        without_context = Some((rows, alone));
        let ([dense, selecting], density) = stopwatch.time_both(step, CHUNKS, run)?;
        let selecting = ChunkTimes { alone, dense, selecting, density }.assumed();
        times.push(StepTimes { rows, context, dense, selecting });
    }
    Ok(Some(grid.crossing(times)))
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
        adapter_records::key(decoder.gpu().info()),
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

    /// Number of times.
    fn len(&self) -> usize {
        self.times.values().map(Vec::len).sum()
    }

    /// Writes the file. If that fails, the next engine measures again.
    fn save(&self) {
        if let Some(path) = &self.path {
            let _ = user_file::replace(path, &self.times);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
