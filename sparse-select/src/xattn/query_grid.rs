//! Position of a chunk of queries in the grid of key blocks.

use kvblock::BlockSize;

use crate::Heads;

/// Position of the queries relative to the key blocks.
///
/// A causal chunk that starts inside a block is scored as if zero queries filled the block up to it; they
/// contribute no mass. So the grid of query blocks is that of the key blocks, however a prompt was split into
/// chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryGrid {
    /// Key block of the first query block; 0 if nothing is masked.
    pub first_block: usize,
    /// Number of zero queries before the first real one.
    pub front: usize,
    /// Number of real queries.
    pub q_len: usize,
    /// Whether queries see only keys up to their own positions.
    pub causal: bool,
}

impl QueryGrid {
    /// The grid of queries at the last positions of `k` (causal), or after all of `k`.
    #[must_use]
    pub fn new(q: &Heads<'_>, k: &Heads<'_>, block_size: BlockSize, causal: bool) -> Self {
        let size = block_size.get() as usize;
        let start = if causal { k.len() - q.len() } else { 0 };
        Self { first_block: start / size, front: start % size, q_len: q.len(), causal }
    }

    /// Number of query blocks; the last one may be partial.
    #[must_use]
    pub const fn query_blocks(&self, block_size: BlockSize) -> usize {
        (self.front + self.q_len).div_ceil(block_size.get() as usize)
    }
}
