//! Descriptions by which kernels select like policies of XAttention.

use derive_setters::Setters;

/// Chunk size of the published prefill driver for a history of `k_len` tokens.
#[must_use]
pub fn prefill_chunk_size(k_len: usize) -> usize {
    let rounded = k_len.max(1).next_power_of_two();
    rounded.max(2048).min(128 * 1024 * 2048 / rounded).max(2048)
}

/// Number of voting lists that must name a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// At least one voting list.
    Any,
    /// More than half of the voting lists.
    Majority,
    /// All voting lists.
    All,
}

impl Vote {
    /// Number of lists, out of `voters`, that must name a block.
    #[must_use]
    pub const fn needed(self, voters: usize) -> usize {
        match self {
            Self::Any => 1,
            Self::Majority => voters / 2 + 1,
            Self::All => voters,
        }
    }
}

/// Parameters with which kernels select blocks like a policy of this module.
#[derive(Clone, Debug, PartialEq, Setters)]
#[non_exhaustive]
pub struct Antidiagonals {
    /// Share of the mass that each query block keeps: one value, or one per query head.
    #[setters(skip)]
    pub thresholds: Vec<f64>,
    /// Number of tokens between antidiagonals.
    #[setters(skip)]
    pub stride: u32,
    /// Divisor of the softmax scale (XAttention's `norm`).
    pub norm: f64,
    /// Vote by which the (KV head, query block) pairs agree on one set of blocks of the history before the chunk.
    /// `None` if each pair has its own set, among the blocks up to the query block.
    pub vote: Option<Vote>,
    /// Number of queries below which a chunk keeps everything.
    pub min_queries: usize,
    /// Number of queries scored at a time; `None` for [`prefill_chunk_size`].
    pub chunk_size: Option<u32>,
}

impl Antidiagonals {
    /// Parameters with which every (KV head, query block) pair keeps `thresholds` of the mass of sums over every
    /// `stride`-th antidiagonal, without scaling, and for any number of queries.
    #[must_use]
    pub const fn new(thresholds: Vec<f64>, stride: u32) -> Self {
        Self { thresholds, stride, norm: 1.0, vote: None, min_queries: 0, chunk_size: None }
    }

    /// Number of queries scored at a time against `k_len` keys.
    #[must_use]
    pub fn queries_at_a_time(&self, k_len: usize) -> usize {
        self.chunk_size.map_or_else(|| prefill_chunk_size(k_len), |queries| queries as usize)
    }
}
