//! Contexts from which selecting blocks pays in prompt chunks, computed from times of chunks.
//!
//! Attention of a chunk grows with its context, and so do scores of the blocks before it: selecting loses where contexts are
//! short, and where chunks have few rows, for which the keys are read once more. So chunks of [two lengths](ChunkGrid) are timed,
//! after contexts that are powers of two, and each length has a crossing of its own.
//!
//! A policy that looks at keys keeps what the text asks for, and no text is there when times are taken: of a prompt that is
//! repeated, or of random weights, it keeps nearly everything, and no length would ever pay. So the time of a chunk that selects
//! is taken as it would be if [half of the blocks](ASSUMED) were kept, by the share that it did keep: what attention takes in
//! proportion to the keys is known from the dense chunk. A chunk without a context tells what does not depend on them. Policies
//! that go by positions keep what they keep, and kernels that leave keys out as they attend do not tell how many: their times
//! stay.

use std::fmt;
use std::time::Duration;

use super::{StepGrid, StepTimes, grouped};

/// Assumed share of blocks that is kept by a policy that depends on the keys. With the published thresholds, texts of some
/// thousand tokens keep about this much, and longer ones less.
const ASSUMED: f64 = 0.5;

/// Number by which the rows of the longest chunks are divided for the short chunks, which are timed too.
const SHORT: u32 = 8;

/// Times of a prompt chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkTimes {
    /// Time of the chunk without a context.
    pub alone: Duration,
    /// Time of the dense chunk.
    pub dense: Duration,
    /// Time of the chunk with selection.
    pub selecting: Duration,
    /// Share of blocks that the policy kept, if it depends on the keys.
    pub density: Option<f64>,
}

impl ChunkTimes {
    /// Returns the time with selection for the assumed share of blocks.
    #[must_use]
    pub fn assumed(&self) -> Duration {
        let more = ASSUMED - self.density.unwrap_or(ASSUMED);
        let context = self.dense.saturating_sub(self.alone).as_secs_f64();
        Duration::from_secs_f64((self.selecting.as_secs_f64() + more * context).max(0.0))
    }
}

/// Chunks that can be timed: of the maximum length of steps, and of an eighth of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkGrid {
    /// Grids of contexts by number of rows, ascending.
    grids: Vec<(u32, StepGrid)>,
}

impl ChunkGrid {
    /// Chunks of up to `rows` tokens that end at `shortest` to `longest` tokens, if the pool holds `pool_tokens` tokens. A chunk
    /// has at least as many tokens before it as it has itself.
    #[must_use]
    pub fn new(rows: u32, shortest: u32, longest: u32, pool_tokens: u64) -> Self {
        let of = |rows: u32| {
            let shortest = shortest.max(rows.saturating_mul(2));
            (shortest <= longest).then(|| (rows, StepGrid::new(shortest, longest, 1, pool_tokens)))
        };
        let mut grids: Vec<_> =
            [rows / SHORT, rows].into_iter().filter(|rows| *rows > 0).filter_map(of).collect();
        grids.dedup_by_key(|(rows, _)| *rows);
        Self { grids }
    }

    /// Returns the rows of the next chunk to be timed and the tokens up to its end; `None` if `times` suffice.
    #[must_use]
    pub fn next(&self, times: &[StepTimes]) -> Option<(u32, u32)> {
        self.grids.iter().find_map(|(rows, grid)| Some((*rows, grid.next(&of_rows(*rows, times))?.1)))
    }

    /// Returns the crossing computed from `times`, whose `rows` are those of the chunks. O(times).
    #[must_use]
    pub fn crossing(&self, times: &[StepTimes]) -> ChunkCrossing {
        let of_chunk =
            |(rows, grid): &(u32, StepGrid)| (*rows, grid.crossing(&of_rows(*rows, times)).dense_below());
        let chunks: Vec<(u32, u32)> = self.grids.iter().map(of_chunk).collect();
        // No chunk is long enough for a selection.
        if chunks.is_empty() { ChunkCrossing::never() } else { ChunkCrossing { chunks } }
    }
}

/// Returns the times of chunks of this many rows, as steps of one sequence.
fn of_rows(rows: u32, times: &[StepTimes]) -> Vec<StepTimes> {
    let of = times.iter().filter(|times| times.rows == rows);
    of.map(|times| StepTimes { rows: 1, ..*times }).collect()
}

/// Contexts from which prompt chunks select blocks, by number of rows. The default selects after any context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkCrossing {
    /// `(rows, tokens)`, ascending by rows: chunks of at least `rows` rows select if they end at token `tokens` or later;
    /// `u32::MAX` tokens if they never do.
    chunks: Vec<(u32, u32)>,
}

impl ChunkCrossing {
    /// A crossing for chunks that are always dense.
    #[must_use]
    pub fn never() -> Self {
        Self { chunks: vec![(1, u32::MAX)] }
    }

    /// A crossing with which chunks are dense if they have fewer than `rows` rows, and select otherwise.
    #[must_use]
    pub fn from_rows(rows: u32) -> Self {
        Self { chunks: vec![(rows, 0)] }
    }

    /// Whether chunks are always dense.
    #[must_use]
    pub fn is_never(&self) -> bool {
        self.is_known() && self.chunks.iter().all(|(_, tokens)| *tokens == u32::MAX)
    }

    /// Whether it was measured after which contexts selection pays. If not, every chunk selects.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// Returns the length below which prompts are dense in their longest chunks: 0 if they never are, `u32::MAX` if they always
    /// are.
    #[must_use]
    pub fn dense_below(&self) -> u32 {
        self.chunks.last().map_or(0, |(_, tokens)| *tokens)
    }

    /// Whether a chunk of `rows` rows selects blocks if its last row is at position `tokens - 1`. Chunks with fewer rows
    /// than any timed one do not.
    #[must_use]
    pub fn selects(&self, rows: u32, tokens: u32) -> bool {
        let of = self.chunks.iter().rfind(|(timed, _)| *timed <= rows);
        !self.is_known() || of.is_some_and(|(_, least)| *least != u32::MAX && tokens >= *least)
    }
}

impl fmt::Display for ChunkCrossing {
    /// Describes which chunks are dense, as `dense below 16,384 tokens, below 32,768 in chunks of fewer than 2,048`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_never() {
            return f.write_str("dense at any length");
        }
        let below = |tokens: u32| match tokens {
            u32::MAX => "at any length".to_owned(),
            tokens => format!("below {}", grouped(tokens)),
        };
        let [.., (rows, longest)] = self.chunks[..] else { return f.write_str("dense below 0 tokens") };
        if longest == 0 {
            return write!(f, "dense in chunks of fewer than {}", grouped(rows));
        }
        write!(f, "dense {}{}", below(longest), if longest == u32::MAX { "" } else { " tokens" })?;
        match self.chunks[..] {
            [(_, short), _] if short != longest => {
                write!(f, ", {} in chunks of fewer than {}", below(short), grouped(rows))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
