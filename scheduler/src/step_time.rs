//! Bound in time of the prompts of a step, for devices on which a chunk takes long.

use std::time::Duration;

/// Weight of the newest measurement in the average.
const NEWEST: f64 = 0.25;

/// Minimum number of prompt tokens of a step; steps have multiples of it.
const GRAIN: u32 = 16;

/// Chooses the prompt tokens of each step so that the step takes about a given time. Callers that wait for a step, or
/// cancel one, are then answered in that time.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTime {
    seconds: f64,
    /// Seconds of a prompt token.
    token: f64,
    measured: bool,
}

impl StepTime {
    /// A limit of about `limit` per step. `token` is a guess of the time of a prompt token, used until that time is
    /// measured.
    #[must_use]
    pub fn new(limit: Duration, token: Duration) -> Self {
        Self { seconds: limit.as_secs_f64(), token: token.as_secs_f64(), measured: false }
    }

    /// Maximum number of prompt tokens of the next step.
    #[must_use]
    pub fn prefill_tokens(&self) -> u32 {
        let tokens = self.seconds / self.token.max(1e-12);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a u32")]
        let tokens = tokens.min(f64::from(u32::MAX)) as u32;
        (tokens / GRAIN * GRAIN).max(GRAIN)
    }

    /// Takes the time of a step that computed `prefilled` prompt tokens. Steps with few prompt tokens, or with many
    /// decodes, are ignored, because they say too little about the time of a prompt token.
    pub fn observe(&mut self, prefilled: u32, decoded: usize, time: Duration) {
        if prefilled < GRAIN || decoded > prefilled as usize / 2 {
            return;
        }
        let token = time.as_secs_f64() / f64::from(prefilled);
        self.token = if self.measured { self.token + NEWEST * (token - self.token) } else { token };
        self.measured = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of the steps of a prompt on a device that takes this long for each.
    fn steps(guess: Duration, token: impl Fn(u32) -> Duration) -> Vec<u32> {
        let mut time = StepTime::new(Duration::from_secs(1), guess);
        (0..6)
            .map(|step| {
                let tokens = time.prefill_tokens().min(2048);
                time.observe(tokens, 0, token(step) * tokens);
                tokens
            })
            .collect()
    }

    #[test]
    fn steps_follow_what_tokens_take() {
        let millis = Duration::from_millis;
        let said = [
            // A device as guessed, one ten times as fast, one ten times as slow, and one whose tokens take longer and longer.
            steps(millis(10), |_| millis(10)),
            steps(millis(10), |_| millis(1)),
            steps(millis(10), |_| millis(100)),
            steps(millis(10), |step| millis(u64::from(10 + 10 * step))),
            // So fast that no chunk is cut.
            steps(Duration::from_micros(1), |_| Duration::from_micros(2)),
        ];
        insta::assert_snapshot!(said.map(|steps| format!("{steps:?}")).join("\n"), @"
        [96, 96, 96, 96, 96, 96]
        [96, 992, 992, 992, 992, 992]
        [96, 16, 16, 16, 16, 16]
        [96, 96, 80, 48, 32, 32]
        [2048, 2048, 2048, 2048, 2048, 2048]
        ");
    }

    #[test]
    fn steps_that_tell_little_count_for_nothing() {
        let new = StepTime::new(Duration::from_secs(1), Duration::from_millis(10));
        let mut time = new.clone();
        time.observe(4, 0, Duration::from_secs(9));
        time.observe(32, 17, Duration::from_secs(9));
        assert_eq!(time, new);
    }
}
