//! Times of steps that only decode, by the number of sequences.

use std::collections::BTreeMap;

use super::average;

/// Number of steps with prompts after which steps without prompts are measured again.
const MEASURE_EVERY: u64 = 64;

/// Minimum number of steps with prompts between measurements, so that prompts progress while the number of sequences
/// changes.
const BETWEEN: u64 = 2;

/// Ratio of two numbers of sequences up to which their steps count as equally long.
const SIZE_RATIO: f64 = 1.25;

/// Measured times of steps without prompts.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Decodes {
    /// Times by class of the number of sequences.
    times: BTreeMap<u32, Measured>,
    /// Number of steps with prompts until now.
    mixed: u64,
    /// Whether the last step only decoded. The next such step is then encoded ahead, so that its time is the time of
    /// the decodes alone.
    settled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    seconds: f64,
    /// Number of steps with prompts before the last measurement.
    at: u64,
}

impl Decodes {
    /// Whether a step of `decoding` sequences should be one without prompts.
    pub(super) fn wants_measurement(&self, decoding: usize) -> bool {
        let due = |at: u64, steps| self.mixed - at >= steps;
        let known = self.times.get(&class(decoding));
        let last = self.times.values().map(|known| known.at).max();
        known.is_none_or(|known| due(known.at, MEASURE_EVERY)) && last.is_none_or(|last| due(last, BETWEEN))
    }

    /// Seconds of a step of `decoding` sequences, or of about as many; `None` before the first measurement.
    pub(super) fn time(&self, decoding: usize) -> Option<f64> {
        let class = class(decoding);
        let below = self.times.range(..=class).next_back();
        let above = self.times.range(class..).next();
        let near = [below, above].into_iter().flatten().min_by_key(|(other, _)| other.abs_diff(class));
        near.map(|(_, known)| known.seconds)
    }

    /// Takes the time of a step without prompts. The first step without prompts after other steps counts only if none was
    /// measured before.
    pub(super) fn observe(&mut self, decoding: usize, time: f64) {
        if self.settled || self.times.is_empty() {
            let class = class(decoding);
            let seconds = average(self.times.get(&class).map(|known| known.seconds), time);
            self.times.insert(class, Measured { seconds, at: self.mixed });
        }
        self.settled = true;
    }

    /// Notes a step with prompts.
    pub(super) fn observe_mixed(&mut self) {
        self.mixed += 1;
        self.settled = false;
    }
}

/// Class of a number of sequences: its logarithm to the base [`SIZE_RATIO`].
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small"
)]
fn class(decoding: usize) -> u32 {
    (decoding.max(1) as f64).log(SIZE_RATIO).round() as u32
}
