//! The estimate: from queries and keys to a block mask, in chunks of query blocks.

use kvblock::BlockSize;

pub use super::query_grid::QueryGrid;
use super::{
    find_blocks::{BlockMask, BlockSums, FindBlocks, Mode, find_blocks_chunked},
    score::{BlockSum, Reshape, Scores, softmax_block_sum, softmax_scale, strided_scores},
};
use crate::{Heads, SelectError};

/// Parameters of the estimate.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimator {
    /// Share of the mass that each query block keeps: one value, or one per query head.
    pub thresholds: Vec<f64>,
    /// Number of tokens between antidiagonals; divides `block_size`.
    pub stride: u32,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Divisor of the softmax scale (XAttention's `norm`).
    pub norm: f64,
    /// Pairing of query tokens with key tokens.
    pub reshape: Reshape,
}

impl Estimator {
    /// The kept blocks `[heads, query_blocks, key_blocks]`. Queries are scored `chunk_size` tokens at a time (at least
    /// a block), which bounds the memory and does not change the result.
    ///
    /// O(heads · q_len · k_len · head_dim / stride).
    ///
    /// # Errors
    /// When there is neither one threshold nor one per head.
    pub fn estimate(
        &self,
        q: &Heads<'_>,
        k: &Heads<'_>,
        grid: &QueryGrid,
        chunk_size: usize,
    ) -> Result<BlockMask, SelectError> {
        let size = self.block_size.get() as usize;
        let (query_blocks, key_blocks) = (grid.query_blocks(self.block_size), k.len().div_ceil(size));
        let chunk = (chunk_size / size).max(1);
        let mut mask = BlockMask::empty(q.heads(), query_blocks, key_blocks);
        for first in (0..query_blocks).step_by(chunk) {
            let blocks = first..(first + chunk).min(query_blocks);
            let sums: Vec<f32> =
                (0..q.heads()).flat_map(|head| self.block_sums(q, head, k, grid, blocks.clone())).collect();
            let sums = BlockSums { values: &sums, heads: q.heads(), query_blocks: blocks.len(), key_blocks };
            let found = find_blocks_chunked(&sums, &self.find(grid.first_block + first, grid.causal))?;
            for head in 0..q.heads() {
                for row in 0..blocks.len() {
                    mask.row_mut(head, first + row).copy_from_slice(found.row(head, row));
                }
            }
        }
        Ok(mask)
    }

    /// Block sums of one head for some query blocks: `[blocks, key_blocks]`.
    #[must_use]
    pub fn block_sums(
        &self,
        q: &Heads<'_>,
        head: usize,
        k: &Heads<'_>,
        grid: &QueryGrid,
        blocks: core::ops::Range<usize>,
    ) -> Vec<f32> {
        let stride = self.stride as usize;
        let per_block = self.block_size.get() as usize / stride;
        let rows = blocks.start * per_block..blocks.end * per_block;
        let scores: Scores = strided_scores((q, head, grid.front), k, stride, self.reshape, rows.clone());
        // Rows that hold a real query, relative to the chunk.
        let real = grid.front / stride..(grid.front + grid.q_len).div_ceil(stride);
        let real = real.start.max(rows.start) - rows.start..real.end.clamp(rows.start, rows.end) - rows.start;
        let by = BlockSum {
            block: per_block,
            chunk_start: grid.first_block * per_block + rows.start,
            real_rows: &real,
            scale: softmax_scale(q.dim(), stride, self.norm),
            causal: grid.causal,
        };
        softmax_block_sum(&scores, &by)
    }

    fn find(&self, current_index: usize, causal: bool) -> FindBlocks<'_> {
        FindBlocks {
            current_index,
            thresholds: &self.thresholds,
            num_to_choose: None,
            decoding: false,
            mode: Mode::Prefill,
            causal,
        }
    }
}
