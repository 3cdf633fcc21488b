//! Takes the times of steps, by the clock or by a function that replaces it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvblock::Phase;
use models::ModelError;

/// Number of warm-up runs before timing begins, and number of steps per run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    pub(crate) warm_ups: u32,
    pub(crate) steps: u32,
}

/// Number of rounds of dense and selecting steps, so that a rising clock favours neither.
const ROUNDS: usize = 2;

/// Step time above which steps are timed in only one round.
const ONE_ROUND: Duration = Duration::from_millis(50);

/// A step that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimedStep {
    /// Decode, or a chunk of a prompt.
    pub phase: Phase,
    /// Number of sequences, or of rows of a chunk.
    pub rows: u32,
    /// Number of tokens of each sequence, up to the end of a chunk.
    pub context: u32,
    /// Whether the policy selects blocks.
    pub selecting: bool,
}

/// Takes the times of steps: the machine's clock, or a function that replaces it, so that tests depend on no machine. Times
/// of a function are not kept in the user's folder.
#[derive(Clone, Default)]
pub struct Stopwatch {
    probes: Option<Arc<Times>>,
    steps: Option<Arc<Mixed>>,
}

/// Function that returns the time of a step that is timed.
type Times = dyn Fn(TimedStep) -> Duration + Send + Sync;
/// Function that returns the time of an engine's step, given its numbers of prompt tokens and of decodes.
type Mixed = dyn Fn(u32, u32) -> Duration + Send + Sync;

impl Stopwatch {
    /// A stopwatch that gets the time of each timed step from `times`. The step runs nevertheless.
    #[must_use]
    pub fn of(times: impl Fn(TimedStep) -> Duration + Send + Sync + 'static) -> Self {
        Self { probes: Some(Arc::new(times)), ..Self::default() }
    }

    /// Lets `times` return the time of each step of an engine, given its number of prompt tokens and of sequences
    /// that decode. The step runs nevertheless.
    #[must_use]
    pub fn of_steps(times: impl Fn(u32, u32) -> Duration + Send + Sync + 'static) -> Self {
        Self { steps: Some(Arc::new(times)), ..Self::default() }
    }

    /// Whether a function, not the clock, gives the times that compare dense and selecting steps.
    pub(crate) fn times_steps_by_function(&self) -> bool {
        self.probes.is_some()
    }

    /// Returns the time of an engine's step: `measured`, unless a function replaces the clock.
    pub(crate) fn step(&self, prefilled: u32, decoded: u32, measured: Duration) -> Duration {
        self.steps.as_ref().map_or(measured, |times| times(prefilled, decoded))
    }

    /// Warms up as `runs` says, then times steps. Returns the shortest time of a step, and the last result of `run`.
    pub(crate) fn time<T>(
        &self,
        step: TimedStep,
        runs: Runs,
        run: &mut impl FnMut(TimedStep) -> Result<T, ModelError>,
    ) -> Result<(Duration, T), ModelError> {
        for _ in 0..runs.warm_ups {
            run(step)?;
        }
        let mut once = || -> Result<(Duration, T), ModelError> {
            let begun = Instant::now();
            let output = run(step)?;
            let time = begun.elapsed() / runs.steps;
            Ok((self.probes.as_ref().map_or(time, |times| times(step)), output))
        };
        let (first, (second, output)) = (once()?.0, once()?);
        Ok((first.min(second), output))
    }

    /// Times a step with dense attention and with selection, alternately. Returns the shortest time of each, and the
    /// output of the last run.
    pub(crate) fn time_both<T>(
        &self,
        step: TimedStep,
        runs: Runs,
        mut run: impl FnMut(TimedStep) -> Result<T, ModelError>,
    ) -> Result<([Duration; 2], T), ModelError> {
        let [mut dense, mut selecting] = [Duration::MAX; 2];
        let mut round = 0;
        loop {
            let (time, _) = self.time(TimedStep { selecting: false, ..step }, runs, &mut run)?;
            dense = dense.min(time);
            let (time, output) = self.time(TimedStep { selecting: true, ..step }, runs, &mut run)?;
            selecting = selecting.min(time);
            round += 1;
            if round == ROUNDS || dense.max(selecting) > ONE_ROUND {
                return Ok(([dense, selecting], output));
            }
        }
    }
}

impl fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.probes.is_some() || self.steps.is_some();
        f.write_str(if function { "Stopwatch(function)" } else { "Stopwatch(clock)" })
    }
}
