//! Budget in time of the prompt tokens that a step computes beside sequences that decode.
//!
//! A budget in tokens bounds the time of a step only by accident: what 2,048 tokens take differs by a factor of 1,000
//! between machines. This one is in time, from what steps took: prompts get as many tokens as leave the others' time
//! between tokens within a factor of what it is without prompts.

use std::time::Duration;

/// Weight of the newest measurement in an average.
const NEWEST: f64 = 0.25;

/// Steps with prompts after which one without measures again what the others take alone.
const MEASURE_EVERY: u32 = 64;

/// Minimum number of prompt tokens of a step, without which a prompt would never end on a slow device; also what
/// they are a multiple of.
const GRAIN: u32 = 4;

/// Chooses the prompt tokens of each step from the times of the steps before.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// Factor by which prompts may lengthen a step, more than 1.
    max_slowdown: f64,
    /// Maximum number of prompt tokens of a step.
    chunk: u32,
    /// Seconds of a step that only decodes.
    decode: Option<f64>,
    /// Seconds that a prompt token adds to a step.
    per_token: Option<f64>,
    /// Steps with prompts beside decodes since one without.
    mixed: u32,
}

impl Pace {
    /// Steps of up to `chunk` prompt tokens that take up to `max_slowdown` times as long as without.
    ///
    /// # Panics
    /// When `max_slowdown` is not more than 1, with which no prompt would ever be computed.
    #[must_use]
    pub fn new(max_slowdown: f64, chunk: u32) -> Self {
        assert!(max_slowdown > 1.0, "a slowdown of {max_slowdown} leaves no time for prompts");
        Self { max_slowdown, chunk, decode: None, per_token: None, mixed: 0 }
    }

    /// Maximum number of prompt tokens of the next step, beside `decoding` sequences that decode.
    #[must_use]
    pub fn prefill_tokens(&self, decoding: usize) -> u32 {
        if decoding == 0 {
            return self.chunk;
        }
        let Some(decode) = self.decode.filter(|_| self.mixed < MEASURE_EVERY) else { return 0 };
        let Some(per_token) = self.per_token else { return GRAIN.min(self.chunk) };
        let tokens = (decode * (self.max_slowdown - 1.0) / per_token).min(f64::from(self.chunk));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a u32")]
        let tokens = tokens as u32;
        (tokens / GRAIN * GRAIN).max(GRAIN).min(self.chunk)
    }

    /// Takes the time of a step that computed `prefilled` prompt tokens beside `decoded` sequences.
    pub fn observe(&mut self, prefilled: u32, decoded: usize, time: Duration) {
        let time = time.as_secs_f64();
        match (prefilled, decoded) {
            (0, 0) => {}
            (0, _) => {
                self.mixed = 0;
                average(&mut self.decode, time);
            }
            (_, 0) => average(&mut self.per_token, time / f64::from(prefilled)),
            (_, _) => {
                self.mixed += 1;
                if let Some(decode) = self.decode {
                    // What a step takes beyond its decodes can be less than nothing by chance.
                    let added = (time - decode).max(time * 0.05);
                    average(&mut self.per_token, added / f64::from(prefilled));
                }
            }
        }
    }
}

fn average(mean: &mut Option<f64>, newest: f64) {
    *mean = Some(mean.map_or(newest, |mean| mean + NEWEST * (newest - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a device that takes 20 ms for decodes and 0.1 ms more for each prompt token.
    fn run(pace: &mut Pace, steps: u32) -> Vec<u32> {
        let step = |_| {
            let tokens = pace.prefill_tokens(4);
            pace.observe(tokens, 4, Duration::from_micros(20_000 + 100 * u64::from(tokens)));
            tokens
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn prompts_get_the_time_that_decodes_take() {
        let mut pace = Pace::new(2.0, 2048);
        assert_eq!(pace.prefill_tokens(0), 2048);
        // The first step measures decodes alone, the second one so few prompt tokens that a twentieth of it
        // is assumed to be theirs.
        let tokens = run(&mut pace, 40);
        assert_eq!(tokens[..6], [0, 4, 76, 92, 104, 120]);
        assert!(tokens.is_sorted() && tokens[39] == 196, "{tokens:?}");
        let mut hurried = Pace::new(4.0, 512);
        assert_eq!(run(&mut hurried, 14)[10..], [512; 4]);
    }

    #[test]
    fn decodes_are_measured_again() {
        let mut pace = Pace::new(2.0, 2048);
        let alone = run(&mut pace, 200).iter().filter(|tokens| **tokens == 0).count();
        assert_eq!(alone, 4);
    }

    #[test]
    fn longer_contexts_get_smaller_chunks() {
        let mut pace = Pace::new(2.0, 2048);
        run(&mut pace, 3);
        for _ in 0..40 {
            let tokens = pace.prefill_tokens(4);
            if tokens > 0 {
                pace.observe(tokens, 4, Duration::from_micros(20_000 + 500 * u64::from(tokens)));
            }
        }
        assert_eq!(pace.prefill_tokens(4), 40);
    }

    #[test]
    fn a_slow_device_still_gets_on() {
        let mut pace = Pace::new(2.0, 2048);
        pace.observe(0, 1, Duration::from_millis(10));
        pace.observe(64, 0, Duration::from_secs(60));
        assert_eq!(pace.prefill_tokens(1), 4);
        let mut small = Pace::new(2.0, 2);
        small.observe(0, 1, Duration::from_millis(10));
        assert_eq!(small.prefill_tokens(1), 2);
    }
}
