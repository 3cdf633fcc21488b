//! Limits on the prompt tokens of a step, from the times of earlier steps.

use std::time::Duration;

use models::WeightSizes;
use scheduler::{Concurrency, Pace, Phase, StepPlan, StepTime};

use crate::options::EngineOptions;
use crate::stopwatch::Stopwatch;

/// Multiplications per second of a software driver on two cores. The first estimate of the time per token follows
/// from this rate.
const SOFTWARE_RATE: f64 = 4e9;

/// Learns the time that a prompt token takes, and limits the number of prompt tokens per step.
#[derive(Debug)]
pub(super) struct Pacing {
    /// Limits the prompt tokens of steps in which other sequences decode.
    pace: Option<Pace>,
    /// Maximum number of prompt tokens of a step in which other sequences decode, if the layers are split over
    /// devices. Other steps may be longer, so that all devices have work.
    mixed: Option<u32>,
    /// Limits the time of a step.
    step_time: Option<StepTime>,
    stopwatch: Stopwatch,
}

impl Pacing {
    pub(super) fn new(options: &EngineOptions, sizes: &WeightSizes) -> Self {
        Self {
            mixed: options.split.as_ref().map(|_| options.chunk),
            pace: options.max_slowdown.map(|max| Pace::new(max, options.chunk)),
            step_time: options.max_step_time.map(|max| StepTime::new(max, token_time(sizes))),
            stopwatch: options.stopwatch.clone(),
        }
    }

    /// Maximum number of prompt tokens of the next step; `None` for no limit.
    pub(super) fn prefill_tokens(&mut self, concurrency: Concurrency) -> Option<u32> {
        let mixed = self.mixed.map(|chunk| if concurrency.decoding > 0 { chunk } else { u32::MAX });
        let paced = self.pace.as_mut().map(|pace| pace.prefill_tokens(concurrency));
        let timed = self.step_time.as_ref().map(StepTime::prefill_tokens);
        [mixed, paced, timed].into_iter().flatten().min()
    }

    /// Notes that the step of `plan` took `time` by the clock.
    pub(super) fn observe(&mut self, plan: &StepPlan, time: Duration) {
        let prefills = || plan.slices.iter().filter(|slice| slice.phase == Phase::Prefill);
        let prefilled = prefills().map(|slice| slice.len).sum();
        let decoded = plan.slices.len() - prefills().count();
        let decodes = u32::try_from(decoded).unwrap_or(u32::MAX);
        let time = self.stopwatch.step(prefilled, decodes, time);
        if let Some(pace) = &mut self.pace {
            pace.observe(prefilled, decoded, time);
        }
        if let Some(step_time) = &mut self.step_time {
            step_time.observe(prefilled, decoded, time);
        }
    }
}

/// Estimated time of a prompt token on a software driver. Counts all experts, although a token uses only some: an
/// overestimate only makes the first chunk short.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn token_time(sizes: &WeightSizes) -> Duration {
    let elements = sizes.experts.elements + sizes.others.elements;
    Duration::from_secs_f64(elements as f64 / SOFTWARE_RATE)
}
