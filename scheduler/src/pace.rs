//! Time budget for the prompt tokens of a step in which other sequences decode.
//!
//! A budget in tokens bounds the time of a step only by accident: what 2,048 tokens take differs by a factor of 1,000
//! between machines. This one is in time, from what steps took: prompts get as many tokens as leave the others' time
//! between tokens within a factor of what it is without prompts. That is for one prompt: where several wait, as after a
//! burst of requests, each gets as much, so that they do not wait for each other.
//!
//! Prompt tokens cost a step something each, and something at once: other kernels, and commands that no earlier step has
//! encoded. Few tokens a step are therefore dear. A step takes as many as make it [`WORTHWHILE`], or as take twice what they
//! cost at once, and steps without prompts follow, so that the factor holds on average.

mod decodes;
mod line;

use std::time::Duration;

use decodes::Decodes;
use line::Line;

/// Weight of the newest measurement in an average.
const NEWEST: f64 = 0.25;

/// Ratio of measured to expected cost above which a step is left out as an outlier, because it may be long for other
/// reasons. If the next step with prompts is as long, it counts.
const MAX_JUMP: f64 = 3.0;

/// Maximum number of steps without prompts that follow one with prompts.
const MAX_OWED: f64 = 64.0;

/// Fraction of the budget that must be left for a step to have prompts. Times vary: an overrun reduces the budget of
/// the next step and makes that step smaller. Only an overrun of most of the budget leaves the next step without
/// prompts.
const MIN_LEFT: f64 = 0.5;

/// Number of prompt tokens that a step may always have. Beyond this number, a step has at most twice the prompt
/// tokens of the largest recent step, because the cost of many more tokens is a guess: a few tokens may be free
/// within a tile of rows.
const UNTRIED: f64 = 64.0;

/// Number of seconds that a step with prompts may always take, whatever the factor says, if steps without prompts
/// follow: a reader does not notice such a short pause.
const WORTHWHILE: f64 = 0.012;

/// Minimum number of prompt tokens of a step; steps have multiples of it. Without a minimum, a prompt would never end
/// on a slow device.
const GRAIN: u32 = 4;

/// Pairs (minimum number of rows of a matrix product, rows of its tiles), in descending order. Part of a tile costs
/// as much as a whole one.
const TILES: [(u32, u32); 3] = [(128, 64), (32, 32), (0, 16)];

/// Sequences that share the time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Concurrency {
    /// Number of sequences whose next step computes a sampled token.
    pub decoding: usize,
    /// Number of sequences whose prompts a step may compute.
    pub prefilling: usize,
}

/// Chooses the prompt tokens of each step from the times of the steps before.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    /// Factor by which prompts may lengthen the time between tokens, more than 1.
    max_slowdown: f64,
    /// Maximum number of prompt tokens of a step.
    chunk: u32,
    /// Number of sequences whose prompts share the next step.
    prefilling: usize,
    /// Measured times of steps that only decode.
    decodes: Decodes,
    /// Seconds of a prompt token in a step without decodes.
    alone: Option<f64>,
    /// Seconds by which prompt tokens lengthen a step of decodes.
    added: Line,
    /// Whether the last step with prompts and decodes was left out as an outlier.
    jumped: bool,
    /// Tokens of the largest recent step with prompts and decodes.
    largest: f64,
    /// Seconds by which the steps so far were longer than they may be on average.
    debt: f64,
}

impl Pace {
    /// Pace at which steps have up to `chunk` prompt tokens, and take up to `max_slowdown` times as long as steps
    /// without prompts.
    ///
    /// # Panics
    /// When `max_slowdown` is not more than 1, with which no prompt would ever be computed.
    #[must_use]
    pub fn new(max_slowdown: f64, chunk: u32) -> Self {
        assert!(max_slowdown > 1.0, "a slowdown of {max_slowdown} leaves no time for prompts");
        let (decodes, added) = (Decodes::default(), Line::default());
        Self {
            max_slowdown,
            chunk,
            prefilling: 0,
            decodes,
            alone: None,
            added,
            jumped: false,
            largest: 0.0,
            debt: 0.0,
        }
    }

    /// Returns the maximum number of prompt tokens of the next step.
    #[must_use]
    pub fn prefill_tokens(&mut self, concurrency: Concurrency) -> u32 {
        self.prefilling = concurrency.prefilling;
        if concurrency.decoding == 0 {
            return self.chunk;
        }
        let Some(decode) = self.decodes.time(concurrency.decoding) else { return 0 };
        let left = self.budget(decode) - self.debt;
        if left < MIN_LEFT * self.budget(decode) || self.decodes.wants_measurement(concurrency.decoding) {
            return 0;
        }
        let tokens = self.tokens(left.max(WORTHWHILE - decode));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a u32")]
        let tokens = tokens.min(f64::from(self.chunk)) as u32;
        fill_tiles(tokens, concurrency.decoding).max(GRAIN).min(self.chunk)
    }

    /// Takes the time of a step that computed `prefilled` prompt tokens and decoded `decoded` sequences. Callers
    /// leave out steps that waited for something else, such as the compilation of kernels.
    pub fn observe(&mut self, prefilled: u32, decoded: usize, time: Duration) {
        let time = time.as_secs_f64();
        match (prefilled, decoded) {
            (0, 0) => {}
            (0, _) => {
                if let Some(decode) = self.decodes.time(decoded) {
                    self.owe(time.min(MAX_JUMP * decode), decode);
                }
                self.decodes.observe(decoded, time);
            }
            (_, 0) => self.alone = Some(average(self.alone, time / f64::from(prefilled))),
            (_, _) => {
                if let Some(decode) = self.decodes.time(decoded) {
                    // What a step takes beyond its decodes can be less than nothing by chance.
                    let added = (time - decode).max(time * 0.05);
                    let usual = self.added.fit().map(|(fixed, token)| fixed + token * f64::from(prefilled));
                    let jumped = usual.is_some_and(|usual| added > MAX_JUMP * usual);
                    if !jumped || std::mem::replace(&mut self.jumped, true) {
                        self.jumped = jumped;
                        self.added.observe(prefilled.into(), added);
                        self.largest = f64::from(prefilled).max(self.largest * (1.0 - NEWEST));
                        self.owe(time, decode);
                    }
                }
                self.decodes.observe_mixed();
            }
        }
    }

    /// Charges a step of `time` seconds, whose decodes take `decode` seconds, to the budget: each step pays for the
    /// overruns of earlier ones.
    fn owe(&mut self, time: f64, decode: f64) {
        let budget = self.budget(decode);
        self.debt = (self.debt + time - decode - budget).clamp(0.0, MAX_OWED * budget);
    }

    /// Mean number of seconds by which prompts may lengthen steps that take `decode` seconds without prompts.
    #[expect(clippy::cast_precision_loss, reason = "a number of sequences")]
    fn budget(&self, decode: f64) -> f64 {
        decode * (self.max_slowdown - 1.0) * self.prefilling.max(1) as f64
    }

    /// Number of prompt tokens that lengthen a step by about `seconds`.
    fn tokens(&self, seconds: f64) -> f64 {
        let Some((fixed, per_token)) = self.added.fit() else {
            return self.alone.map_or(0.0, |per_token| seconds / per_token);
        };
        // Half of what a step costs more is worth something, at least.
        let tokens = ((seconds - fixed) / per_token).max(fixed / per_token);
        // Steps of one size do not tell what they cost at once from what each token costs: if tokens seem dear, more of
        // them show it.
        let dear = self.alone.is_some_and(|alone| per_token > 2.0 * alone);
        if self.added.is_of_one_size() && (dear || tokens < f64::from(2 * GRAIN)) {
            return (2.0 * tokens).max(f64::from(4 * GRAIN));
        }
        tokens.min((2.0 * self.largest).max(UNTRIED))
    }
}

/// Number of prompt tokens, about `tokens`, that fill whole tiles of rows together with the rows of `decoding`
/// sequences.
fn fill_tiles(tokens: u32, decoding: usize) -> u32 {
    let decoding = u32::try_from(decoding).unwrap_or(u32::MAX);
    let rows = tokens.saturating_add(decoding);
    let (_, tile) = TILES.into_iter().find(|(from, _)| rows >= *from).expect("every number is at least 0");
    if tokens < tile {
        return tokens / GRAIN * GRAIN;
    }
    rows / tile * tile - decoding
}

/// The mean, moved towards the newest value.
fn average(mean: Option<f64>, newest: f64) -> f64 {
    mean.map_or(newest, |mean| mean + NEWEST * (newest - mean))
}

#[cfg(test)]
mod tests;
