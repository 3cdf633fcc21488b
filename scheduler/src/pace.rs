//! Budget in time of the prompt tokens that a step computes beside sequences that decode.
//!
//! A budget in tokens bounds the time of a step only by accident: what 2,048 tokens take differs by a factor of 1,000
//! between machines. This one is in time, from what steps took: prompts get as many tokens as leave the others' time
//! between tokens within a factor of what it is without prompts.
//!
//! Prompt tokens cost a step something each, and something at once: other kernels, and commands that no earlier step has
//! encoded. Where that alone is more than the factor allows, as with small models, fewer tokens gain nothing. A step then
//! computes as many as take twice that cost, and steps without prompts follow, so that the factor holds on average.

use std::time::Duration;

/// Weight of the newest measurement in an average.
const NEWEST: f64 = 0.25;

/// Weight of the newest measurement in the line of costs over tokens, which needs steps of several sizes.
const NEWEST_ON_LINE: f64 = 0.1;

/// Steps with prompts after which others without measure again what the decodes take alone.
const MEASURE_EVERY: u32 = 64;

/// Minimum number of prompt tokens of a step, without which a prompt would never end on a slow device; also what
/// they are a multiple of.
const GRAIN: u32 = 4;

/// Chooses the prompt tokens of each step from the times of the steps before.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// Factor by which prompts may lengthen the time between tokens, more than 1.
    max_slowdown: f64,
    /// Maximum number of prompt tokens of a step.
    chunk: u32,
    /// Seconds of a step that only decodes.
    decode: Option<f64>,
    /// Seconds of a prompt token in a step without decodes.
    alone: Option<f64>,
    /// Seconds by which prompt tokens lengthen a step of decodes.
    added: Line,
    /// Steps with prompts beside decodes since decodes were measured alone.
    mixed: u32,
    /// Steps without prompts that the others are owed.
    owed: u32,
    /// Whether the last step only decoded: the next one like it was encoded ahead and costs what decodes cost.
    settled: bool,
}

impl Pace {
    /// Steps of up to `chunk` prompt tokens that take up to `max_slowdown` times as long as without.
    ///
    /// # Panics
    /// When `max_slowdown` is not more than 1, with which no prompt would ever be computed.
    #[must_use]
    pub fn new(max_slowdown: f64, chunk: u32) -> Self {
        assert!(max_slowdown > 1.0, "a slowdown of {max_slowdown} leaves no time for prompts");
        let (decode, alone, added) = (None, None, Line::default());
        Self { max_slowdown, chunk, decode, alone, added, mixed: 0, owed: 0, settled: false }
    }

    /// Maximum number of prompt tokens of the next step, beside `decoding` sequences that decode.
    #[must_use]
    pub fn prefill_tokens(&self, decoding: usize) -> u32 {
        if decoding == 0 {
            return self.chunk;
        }
        let due = self.mixed < MEASURE_EVERY && self.owed == 0;
        let Some(decode) = self.decode.filter(|_| due) else { return 0 };
        let budget = self.budget(decode);
        let tokens = match (self.added.fit(), self.alone) {
            // Half of what a step costs more is worth something, at least.
            (Some((fixed, per_token)), _) => ((budget - fixed) / per_token).max(fixed / per_token),
            (None, Some(per_token)) => budget / per_token,
            (None, None) => 0.0,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a u32")]
        let tokens = tokens.min(f64::from(self.chunk)) as u32 / GRAIN * GRAIN;
        // Steps of one size do not tell what they cost at once from what each token costs.
        let least = if tokens <= GRAIN && self.added.is_of_one_size() { 4 * GRAIN } else { GRAIN };
        tokens.max(least).min(self.chunk)
    }

    /// Takes the time of a step that computed `prefilled` prompt tokens beside `decoded` sequences.
    pub fn observe(&mut self, prefilled: u32, decoded: usize, time: Duration) {
        let time = time.as_secs_f64();
        match (prefilled, decoded) {
            (0, 0) => {}
            (0, _) => {
                self.owed = self.owed.saturating_sub(1);
                if self.settled || self.decode.is_none() {
                    self.mixed = 0;
                    average(&mut self.decode, time);
                }
                self.settled = true;
            }
            (_, 0) => average(&mut self.alone, time / f64::from(prefilled)),
            (_, _) => {
                self.mixed += 1;
                self.settled = false;
                if let Some(decode) = self.decode {
                    // What a step takes beyond its decodes can be less than nothing by chance.
                    let added = (time - decode).max(time * 0.05);
                    self.added.observe(prefilled.into(), added);
                    self.owed = owed(added, self.budget(decode));
                }
            }
        }
    }

    /// Seconds by which a step may be longer than one that only decodes.
    fn budget(&self, decode: f64) -> f64 {
        decode * (self.max_slowdown - 1.0)
    }
}

/// Steps without prompts after one that was longer by `added`, with which it was longer by `budget` on average. Bounded,
/// because a step may be long for other reasons.
fn owed(added: f64, budget: f64) -> u32 {
    // A tenth more is within the scatter of the times.
    let steps = (added / budget - 0.1).ceil() - 1.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 64")]
    let steps = steps.clamp(0.0, f64::from(MEASURE_EVERY)) as u32;
    steps
}

fn average(mean: &mut Option<f64>, newest: f64) {
    *mean = Some(mean.map_or(newest, |mean| mean + NEWEST * (newest - mean)));
}

/// A line through measured costs over tokens, by least squares with weights that fade.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Line {
    /// Sums of weights, tokens, costs, squares of tokens, and products.
    weight: f64,
    tokens: f64,
    cost: f64,
    squares: f64,
    products: f64,
}

impl Line {
    fn observe(&mut self, tokens: f64, cost: f64) {
        let keep = 1.0 - NEWEST_ON_LINE;
        self.weight = keep * self.weight + 1.0;
        self.tokens = keep * self.tokens + tokens;
        self.cost = keep * self.cost + cost;
        self.squares = keep * self.squares + tokens * tokens;
        self.products = keep * self.products + tokens * cost;
    }

    /// Mean of the tokens, and their variance.
    fn spread(&self) -> (f64, f64) {
        let mean = self.tokens / self.weight;
        (mean, self.squares / self.weight - mean * mean)
    }

    /// Whether there were steps, and all had about as many tokens.
    fn is_of_one_size(&self) -> bool {
        let (mean, variance) = self.spread();
        self.weight > 0.0 && variance < 0.05 * mean * mean
    }

    /// Cost at once and by token, both not negative; `None` without measurements.
    fn fit(&self) -> Option<(f64, f64)> {
        if self.weight == 0.0 {
            return None;
        }
        let (tokens, variance) = self.spread();
        let cost = self.cost / self.weight;
        let whole = cost / tokens;
        if self.is_of_one_size() {
            return Some((0.0, whole));
        }
        let slope = (self.products / self.weight - tokens * cost) / variance;
        // Tokens always cost something, and nothing is had for less than it costs at once.
        let slope = slope.clamp(0.05 * whole, whole);
        Some((cost - slope * tokens, slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes `decode` microseconds for decodes, `fixed` more beside a prompt, and `per_token` for each token.
    #[derive(Clone, Copy)]
    struct Device {
        decode: u64,
        fixed: u64,
        per_token: u64,
    }

    const USUAL: Device = Device { decode: 20_000, fixed: 0, per_token: 100 };

    impl Device {
        fn time(self, tokens: u32) -> u64 {
            let beside = if tokens > 0 { self.fixed } else { 0 };
            self.decode + beside + self.per_token * u64::from(tokens)
        }

        /// Tokens of steps beside four sequences that decode.
        fn run(self, pace: &mut Pace, steps: u32) -> Vec<u32> {
            let step = |_| {
                let tokens = pace.prefill_tokens(4);
                pace.observe(tokens, 4, Duration::from_micros(self.time(tokens)));
                tokens
            };
            (0..steps).map(step).collect()
        }

        /// Mean time of these steps over that of steps without prompts.
        fn slowdown(self, tokens: &[u32]) -> f64 {
            let sum: u64 = tokens.iter().map(|tokens| self.time(*tokens)).sum();
            sum as f64 / (self.decode * tokens.len() as u64) as f64
        }
    }

    #[test]
    fn prompts_get_the_time_that_decodes_take() {
        let mut pace = Pace::new(2.0, 2048);
        assert_eq!(pace.prefill_tokens(0), 2048);
        // The first step measures decodes alone, the second one so few prompt tokens that a twentieth of it
        // is assumed to be theirs.
        let tokens = USUAL.run(&mut pace, 40);
        assert_eq!(tokens[..3], [0, 4, 76]);
        assert!(tokens[3..].iter().all(|tokens| (180..=220).contains(tokens)), "{tokens:?}");
        let mut hurried = Pace::new(4.0, 512);
        assert_eq!(USUAL.run(&mut hurried, 14)[10..], [512; 4]);
    }

    #[test]
    fn decodes_are_measured_again() {
        let mut pace = Pace::new(2.0, 2048);
        let tokens = USUAL.run(&mut pace, 200);
        // Two steps each time: what the first one takes is still that of a step after prompts.
        let alone: Vec<usize> = (0..200).filter(|step| tokens[*step] == 0).collect();
        assert_eq!(alone, [0, 65, 66, 131, 132, 197, 198]);
    }

    #[test]
    fn longer_contexts_get_smaller_chunks() {
        let mut pace = Pace::new(2.0, 2048);
        USUAL.run(&mut pace, 10);
        let tokens = Device { per_token: 500, ..USUAL }.run(&mut pace, 60);
        assert!(tokens[40..].iter().all(|tokens| *tokens == 0 || (32..=44).contains(tokens)), "{tokens:?}");
    }

    #[test]
    fn what_a_step_costs_at_once_is_spread_over_others() {
        // Steps beside a prompt take at least four times as long, whatever they compute.
        let small = Device { decode: 1000, fixed: 3000, per_token: 10 };
        let mut pace = Pace::new(2.0, 2048);
        let tokens = small.run(&mut pace, 400);
        let (begin, rest) = tokens.split_at(50);
        assert!(small.slowdown(rest) < 2.1 && small.slowdown(begin) < 2.5, "{tokens:?}");
        // A step with about 300 tokens costs twice what is lost anyway; then the others have five of their own.
        let computed: u32 = rest.iter().sum();
        assert!(computed > 350 * 30, "{computed} tokens in {} steps: {tokens:?}", rest.len());
        assert!(
            rest.iter().all(|tokens| *tokens == 0 || small.time(*tokens) < 10 * small.decode),
            "{tokens:?}"
        );
    }

    #[test]
    fn a_slow_device_still_gets_on() {
        let mut pace = Pace::new(2.0, 2048);
        pace.observe(0, 1, Duration::from_millis(10));
        pace.observe(64, 0, Duration::from_secs(60));
        assert_eq!(pace.prefill_tokens(1), 4);
        let slow = Device { decode: 10_000, fixed: 0, per_token: 100_000 };
        let tokens = slow.run(&mut pace, 1000);
        assert!(slow.slowdown(&tokens) < 2.3 && tokens.iter().sum::<u32>() > 60, "{tokens:?}");
        let mut small = Pace::new(2.0, 2);
        small.observe(0, 1, Duration::from_millis(10));
        assert_eq!(small.prefill_tokens(1), 2);
    }
}
