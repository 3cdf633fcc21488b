//! Times of steps that only decode, by the number of sequences.

use std::collections::BTreeMap;

use super::average;

/// Steps with prompts after which others without measure again what decodes take.
const MEASURE_EVERY: u32 = 64;

/// Minimum number of steps with prompts between measurements, so that prompts get on while the number of sequences changes.
const BETWEEN: u32 = 2;

/// Ratio of numbers of sequences whose steps take about the same time.
const SIZE_RATIO: f64 = 1.25;

/// Measured times of steps without prompts.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Decodes {
    /// By the class of the number of sequences.
    times: BTreeMap<u32, Measured>,
    /// Steps with prompts until now, and when a step without was last measured.
    mixed: u32,
    last: u32,
    /// Whether the last step only decoded: the next one like it was encoded ahead and costs what decodes cost.
    settled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    seconds: Option<f64>,
    /// Steps with prompts at that time.
    at: u32,
}

impl Decodes {
    /// Whether a step of `decoding` sequences should be one without prompts.
    pub(super) fn wants_measurement(&self, decoding: usize) -> bool {
        let known = self.times.get(&class(decoding));
        let old = known.is_none_or(|known| self.mixed.wrapping_sub(known.at) >= MEASURE_EVERY);
        old && (self.times.is_empty() || self.mixed.wrapping_sub(self.last) >= BETWEEN)
    }

    /// Seconds of a step of `decoding` sequences, or of about as many; `None` before the first measurement.
    pub(super) fn time(&self, decoding: usize) -> Option<f64> {
        let class = class(decoding);
        let below = self.times.range(..=class).next_back();
        let above = self.times.range(class..).next();
        let near = [below, above].into_iter().flatten().min_by_key(|(other, _)| other.abs_diff(class));
        near.and_then(|(_, known)| known.seconds)
    }

    /// Takes the time of a step without prompts. The first one after others counts only if there is no time of any.
    pub(super) fn observe(&mut self, decoding: usize, time: f64) {
        if self.settled || self.times.is_empty() {
            let (class, at) = (class(decoding), self.mixed);
            let known = self.times.entry(class).or_insert(Measured { seconds: None, at });
            average(&mut known.seconds, time);
            (known.at, self.last) = (at, at);
        }
        self.settled = true;
    }

    /// Notes a step with prompts.
    pub(super) fn observe_mixed(&mut self) {
        self.mixed = self.mixed.wrapping_add(1);
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
