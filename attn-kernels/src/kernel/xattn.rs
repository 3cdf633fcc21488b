//! Dispatches of XAttention for one chunk of one sequence: `stride_queries`, `strided_qk`, `softmax_block_sum`,
//! `find_blocks`, for some query blocks at a time, so that scratch memory stays bounded for any length.

use super::error::Launch;
use super::find_blocks::{self, FindBlocksParams, Vote};
use super::softmax_block_sum::SoftmaxBlockSumParams;
use super::stride_queries::StrideQueriesParams;
use super::strided_qk::{self, StridedQkParams};
use super::{KvShape, LaunchError};
use std::ops::Range;

/// An estimate of how the queries of a chunk attend to the cached keys of its sequence.
///
/// The grid of query blocks is that of the key blocks, however a prompt was cut into chunks: a causal chunk that starts
/// inside a block is scored as if zero queries filled the block up to it; they contribute no mass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of query heads.
    pub num_heads: u32,
    /// Number of f32 from one query row to the next, a multiple of 4.
    pub q_stride: u32,
    /// Row of q of the first query.
    pub q_first: u32,
    /// Number of queries.
    pub q_len: u32,
    /// Number of keys. Causal queries are at the positions of the last keys; other queries come after all keys.
    pub kv_len: u32,
    /// First entry of the sequence's block table.
    pub table: u32,
    /// Whether queries attend only to earlier keys.
    pub causal: bool,
    /// Number of tokens between antidiagonals.
    pub stride: u32,
    /// Number of tokens of a block, a multiple of the page size.
    pub block: u32,
    /// Divisor of the softmax scale, 1 as published.
    pub norm: f32,
    /// Rule by which query heads agree.
    pub vote: Vote,
}

impl Estimate {
    /// Index of the key block that contains the first query block; 0 if nothing is masked.
    #[must_use]
    pub fn first_block(&self) -> u32 {
        self.start() / self.block
    }

    /// Number of query blocks, the last one perhaps partial.
    #[must_use]
    pub fn query_blocks(&self) -> u32 {
        (self.front() + self.q_len).div_ceil(self.block)
    }

    /// Number of key blocks, the last one perhaps partial.
    #[must_use]
    pub fn key_blocks(&self) -> u32 {
        self.kv_len.div_ceil(self.block)
    }

    /// Number of strides of a block.
    fn rows(&self) -> u32 {
        self.block / self.stride
    }

    fn start(&self) -> u32 {
        if self.causal { self.kv_len - self.q_len } else { 0 }
    }

    fn front(&self) -> u32 {
        self.start() % self.block
    }

    /// Number of elements of a row of parts.
    fn part_stride(&self) -> u32 {
        self.key_blocks() * (self.rows() / strided_qk::part(self.rows()))
    }

    /// Number of f32 of `parts`, and of `sums`, for `query_blocks` query blocks at a time.
    #[must_use]
    pub fn scratch_lens(&self, query_blocks: u32) -> [usize; 2] {
        let rows = self.num_heads as usize * query_blocks as usize;
        [rows * (self.rows() * self.part_stride()) as usize, rows * self.key_blocks() as usize]
    }

    /// Returns the range of query blocks of each round of dispatches. A round has as many as have at most `queries`
    /// queries and keep `parts` within `most` f32, but at least one.
    pub fn rounds(&self, most: usize, queries: usize) -> impl Iterator<Item = Range<u32>> + use<> {
        let blocks = self.query_blocks();
        let fit = (most / self.scratch_lens(1)[0].max(1)).min(queries / self.block as usize);
        let step = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, blocks.max(1));
        (0..blocks).step_by(step as usize).map(move |first| first..(first + step).min(blocks))
    }

    /// Number of rows of strides of these query blocks, of all query heads.
    #[must_use]
    pub fn stride_rows(&self, query_blocks: u32) -> usize {
        self.num_heads as usize * (query_blocks * self.rows()) as usize
    }

    /// Parameters of `stride_queries` for some query blocks.
    #[must_use]
    pub fn stride_queries(&self, blocks: &Range<u32>) -> StrideQueriesParams {
        StrideQueriesParams {
            num_heads: self.num_heads,
            q_stride: self.q_stride,
            q_first: self.q_first,
            q_len: self.q_len,
            front: self.front(),
            first_row: blocks.start * self.rows(),
            rows: (blocks.end - blocks.start) * self.rows(),
        }
    }

    /// Parameters of `strided_qk` for some query blocks.
    #[must_use]
    pub fn strided_qk(&self, shape: &KvShape, blocks: &Range<u32>) -> StridedQkParams {
        let root = (shape.head_dim as f32).sqrt();
        StridedQkParams {
            num_heads: self.num_heads,
            num_kv_heads: shape.num_kv_heads,
            first_row: blocks.start * self.rows(),
            rows: (blocks.end - blocks.start) * self.rows(),
            key_start: self.first_block() * self.rows(),
            kv_len: self.kv_len,
            table: self.table,
            part_stride: self.part_stride(),
            scale: std::f32::consts::LOG2_E / (root * self.stride as f32 * self.norm),
            causal: self.causal.into(),
        }
    }

    /// Parameters of `softmax_block_sum` for some query blocks.
    #[must_use]
    pub fn softmax_block_sum(&self, blocks: &Range<u32>) -> SoftmaxBlockSumParams {
        SoftmaxBlockSumParams {
            num_heads: self.num_heads,
            query_blocks: blocks.end - blocks.start,
            rows: (blocks.end - blocks.start) * self.rows(),
            part_stride: self.part_stride(),
            sum_stride: self.key_blocks(),
            first_row: blocks.start * self.rows(),
            real_first: self.front() / self.stride,
            real_end: (self.front() + self.q_len).div_ceil(self.stride),
            key_start: self.first_block() * self.rows(),
            columns: self.kv_len.div_ceil(self.stride),
            causal: self.causal.into(),
        }
    }

    /// Parameters of `find_blocks` for some query blocks, into lists `[query_blocks, num_kv_heads]` of `out_stride` u32. The
    /// lists of the chunk start at `first_list`.
    #[must_use]
    pub fn find_blocks(
        &self,
        shape: &KvShape,
        blocks: &Range<u32>,
        out_stride: u32,
        first_list: u32,
    ) -> FindBlocksParams {
        FindBlocksParams {
            num_kv_heads: shape.num_kv_heads,
            query_blocks: blocks.end - blocks.start,
            key_blocks: self.key_blocks(),
            sum_stride: self.key_blocks(),
            current: self.first_block() + blocks.start,
            causal: self.causal.into(),
            out_stride,
            first_list: first_list + blocks.start * shape.num_kv_heads,
            votes: self.vote.votes(self.num_heads / shape.num_kv_heads),
            units: find_blocks::units(self.rows()),
        }
    }

    /// Checks the chunk, and the blocks of `tables` that it reads, against a cache of `num_blocks` blocks and buffers of `q_len`
    /// f32 and `out_len` u32 of lists.
    ///
    /// # Errors
    /// Sizes that do not divide, more queries than keys, no keys, a table that names no block of the cache, or a buffer that is
    /// too short.
    pub fn check(
        &self,
        shape: &KvShape,
        (out_stride, first_list): (u32, u32),
        tables: (&[u32], u32),
        [q_len, out_len]: [usize; 2],
    ) -> Result<(), LaunchError> {
        let launch = Launch("xattn");
        launch.not_zero("keys", self.kv_len)?;
        launch.not_zero("queries", self.q_len)?;
        launch.multiple("query heads", self.num_heads, shape.num_kv_heads)?;
        launch.multiple("f32 from row to row", self.q_stride, 4)?;
        launch.multiple("block", self.block, shape.block_size)?;
        launch.multiple("block", self.block, self.stride.saturating_mul(4))?;
        launch.power_of_two("strides of a block", self.rows())?;
        launch.at_most("strides of a block", self.rows().into(), 1024)?;
        if self.causal {
            launch.at_most("queries", self.q_len.into(), self.kv_len.into())?;
        }
        let rows = u64::from(self.q_first) + u64::from(self.q_len);
        let last =
            (rows - 1) * u64::from(self.q_stride) + u64::from(self.num_heads) * u64::from(shape.head_dim);
        launch.at_most("end in q", last, q_len as u64)?;
        launch.tokens(0, tables, self.table, [0, self.kv_len], shape.block_size)?;
        launch.at_most("blocks of a list", u64::from(self.key_blocks()) + 1, out_stride.into())?;
        let lists = u64::from(first_list) + u64::from(self.query_blocks()) * u64::from(shape.num_kv_heads);
        launch.at_most("u32 of lists", lists * u64::from(out_stride), out_len as u64)
    }
}
