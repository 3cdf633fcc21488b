//! Context lengths from which selecting blocks pays in decode steps, computed from times of steps.
//!
//! A step that selects reads fewer keys, and has scores, lists and further dispatches to pay for: it loses where contexts are
//! short and sequences few. Both kinds of step are timed with as many sequences as [`ROWS`] says, of contexts that are powers of
//! two, and a [`Crossing`] follows from the times alone.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod chunk;

pub use chunk::{ChunkCrossing, ChunkGrid, ChunkTimes};

/// Numbers of sequences for which steps are timed; other numbers use the next lower one.
pub const ROWS: [u32; 3] = [1, 8, 32];

/// Maximum time of a step with selection relative to a dense step, for selection to pay. If the gain is small, steps stay dense,
/// which is exact.
const PAYS: f64 = 0.98;

/// Number of tokens. A crossing that is not a timed length is rounded up to a multiple of this number.
const ROUND: u32 = 256;

/// Maximum time of a step. After a slower one, contexts of greater length are not timed, so that slow devices are not
/// held up.
const SLOW: Duration = Duration::from_millis(400);

/// Times of a decode step with one token per sequence, dense and with a selection of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Number of sequences.
    pub rows: u32,
    /// Number of tokens per sequence.
    pub context: u32,
    /// Time of the dense step.
    pub dense: Duration,
    /// Time of the step with selection.
    pub selecting: Duration,
}

impl StepTimes {
    /// Seconds by which selection is faster than it must be to pay.
    fn gain(&self) -> f64 {
        self.dense.as_secs_f64() * PAYS - self.selecting.as_secs_f64()
    }

    fn pays(&self) -> bool {
        self.gain() >= 0.0
    }
}

/// Steps that can be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepGrid {
    /// Minimum context length from which the policy drops anything, in tokens.
    pub shortest: u32,
    /// Maximum context length, in tokens.
    pub longest: u32,
    /// Maximum number of sequences.
    pub sequences: u32,
    /// Number of tokens that the pool holds, of all sequences together.
    pub pool_tokens: u64,
}

impl StepGrid {
    /// Steps of up to `sequences` sequences of `shortest` to `longest` tokens, and at most `pool_tokens` together.
    #[must_use]
    pub fn new(shortest: u32, longest: u32, sequences: u32, pool_tokens: u64) -> Self {
        Self { shortest, longest, sequences, pool_tokens }
    }

    /// Returns the numbers of sequences to be timed.
    fn rows(&self) -> impl Iterator<Item = u32> {
        let sequences = self.sequences;
        ROWS.into_iter().filter(move |rows| *rows <= sequences)
    }

    /// Returns the contexts to be timed with `rows` sequences, ascending: powers of two, or the longest if no power is within the
    /// limits.
    fn contexts(&self, rows: u32) -> impl Iterator<Item = u32> {
        let shortest = self.shortest;
        let max = u32::try_from(self.pool_tokens / u64::from(rows))
            .map_or(self.longest, |max| max.min(self.longest));
        let powers = (0..32).map(|power| 1_u32 << power);
        let powers =
            powers.skip_while(move |context| *context < shortest).take_while(move |context| *context <= max);
        let none = shortest > max || shortest.checked_next_power_of_two().is_some_and(|power| power <= max);
        powers.chain((!none).then_some(max))
    }

    /// Returns the times of this grid with `rows` sequences, by context, up to the first missing one.
    fn known(&self, rows: u32, times: &[StepTimes]) -> Vec<StepTimes> {
        let of = |context| times.iter().find(|step| (step.rows, step.context) == (rows, context)).copied();
        self.contexts(rows).map_while(of).collect()
    }

    /// Returns the number of sequences and the context of the next step to be timed, from the shortest context up; `None` if
    /// `times` suffice: after two contexts in a row pay, longer ones do too, and slow steps end the measurement.
    #[must_use]
    pub fn next(&self, times: &[StepTimes]) -> Option<(u32, u32)> {
        self.rows().find_map(|rows| {
            let known = self.known(rows, times);
            let settled = known.last_chunk::<2>().is_some_and(|last| last.iter().all(StepTimes::pays));
            let slow = known.last().is_some_and(|step| step.dense.max(step.selecting) > SLOW);
            let context = self.contexts(rows).nth(known.len()).filter(|_| !settled && !slow)?;
            Some((rows, context))
        })
    }

    /// Returns the crossing that follows from `times`. O(times).
    ///
    /// From the last timed context that does not pay to the next one the gain is taken to grow evenly, and so beyond the last
    /// one. A policy that drops nothing of the longest context never pays.
    #[must_use]
    pub fn crossing(&self, times: &[StepTimes]) -> Crossing {
        if self.shortest > self.longest {
            return Crossing::never();
        }
        let of_rows = |rows| {
            let known = self.known(rows, times);
            (!known.is_empty()).then(|| CrossingRow { rows, tokens: self.tokens(&known) })
        };
        Crossing { steps: self.rows().filter_map(of_rows).collect() }
    }

    /// Returns the shortest context that pays, for steps of the same number of sequences; `None` if none does.
    fn tokens(&self, known: &[StepTimes]) -> Option<u32> {
        let Some(lost) = known.iter().rposition(|step| !step.pays()) else {
            return known.first().map(|step| step.context);
        };
        let (from, to) = match known.get(lost + 1) {
            Some(next) => (known[lost], *next),
            None => (*known[..lost].last()?, known[lost]),
        };
        let slope = (to.gain() - from.gain()) / f64::from(to.context - from.context);
        let longest = known.get(lost + 1).map_or(self.longest, |next| next.context);
        let tokens = f64::from(known[lost].context) - known[lost].gain() / slope;
        // Falling gains never reach 0.
        if slope <= 0.0 || tokens > f64::from(longest) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a context")]
        let tokens = tokens.ceil() as u32;
        Some(tokens.next_multiple_of(ROUND).min(longest))
    }
}

/// Context lengths from which decode steps select blocks, by number of sequences. The default selects at any length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossing {
    steps: Vec<CrossingRow>,
}

/// Length from which steps of at least `rows` sequences select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CrossingRow {
    rows: u32,
    /// Length in tokens; `None` if selection pays at no length.
    tokens: Option<u32>,
}

impl Crossing {
    /// A crossing for steps that are always dense.
    #[must_use]
    pub fn never() -> Self {
        Self { steps: vec![CrossingRow { rows: 1, tokens: None }] }
    }

    /// Whether steps are always dense.
    #[must_use]
    pub fn is_never(&self) -> bool {
        !self.steps.is_empty() && self.steps.iter().all(|step| step.tokens.is_none())
    }

    /// Whether it was measured at which context lengths selection pays. If not, every step selects.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Returns the length below which a single sequence is dense: 0 if it never is, `u32::MAX` if it always is.
    #[must_use]
    pub fn dense_below(&self) -> u32 {
        self.steps.first().map_or(0, |step| step.tokens.unwrap_or(u32::MAX))
    }

    /// Returns the minimum length of the sequences that select in a step, given the lengths of all decoding sequences.
    /// Selection must pay for the number of sequences that select. `u32::MAX` if none selects. O(sequences).
    #[must_use]
    pub fn least(&self, lengths: impl Iterator<Item = u32> + Clone) -> u32 {
        if self.steps.is_empty() {
            return 0;
        }
        let pays = |(index, step): (usize, &CrossingRow)| {
            let tokens = step.tokens?;
            let rows = lengths.clone().filter(|len| *len >= tokens).count();
            let more = self.steps.get(index + 1).is_some_and(|more| rows >= more.rows as usize);
            // What holds for more sequences holds for these.
            (rows >= step.rows as usize && !more).then_some(tokens)
        };
        self.steps.iter().enumerate().filter_map(pays).min().unwrap_or(u32::MAX)
    }
}

/// Describes a [length](Crossing::dense_below) below which single sequences are dense, as `dense below 9,216 tokens`.
#[must_use]
pub fn say_dense_below(tokens: u32) -> String {
    match tokens {
        u32::MAX => "dense at any length".into(),
        _ => format!("dense below {} tokens", grouped(tokens)),
    }
}

/// Writes a number with commas between thousands, as `9,216`.
#[must_use]
pub fn grouped(tokens: u32) -> String {
    let digits = tokens.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|d| str::from_utf8(d).ok()).collect();
    groups.join(",")
}

impl fmt::Display for Crossing {
    /// Describes the dense lengths, as `dense below 9,216 tokens, below 3,072 from 8 sequences on`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_never() {
            return f.write_str("dense at any length");
        }
        for (index, CrossingRow { rows, tokens }) in self.steps.iter().enumerate() {
            f.write_str(if index == 0 { "dense " } else { ", " })?;
            match tokens {
                Some(tokens) => write!(f, "below {}", grouped(*tokens))?,
                None => f.write_str("at any length")?,
            }
            match index {
                0 => f.write_str(if tokens.is_some() { " tokens" } else { "" })?,
                _ => write!(f, " from {rows} sequences on")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
