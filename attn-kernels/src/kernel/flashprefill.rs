//! `FlashPrefill` of one chunk of one sequence as dispatches: `block_mean` once, then `block_energy` and `keep_blocks` for some
//! query blocks at a time, so that scratch stays bounded whatever the length. With the correction, `block_means` stands in for
//! `block_mean`, and `attend_means` follows the attention to the lists.

use super::attend_means::AttendMeansParams;
use super::block_energy::BlockEnergyParams;
use super::block_mean::BlockMeanParams;
use super::block_means::BlockMeansParams;
use super::error::Launch;
use super::keep_blocks::KeepBlocksParams;
use super::{KvShape, LaunchError};
use std::ops::Range;

/// A chunk of queries at the last positions of its sequence, for which key blocks before each query block are
/// selected.
///
/// The grid of query blocks is that of the key blocks, however a prompt was cut into chunks. A query block's own keys are
/// not scored: it keeps its own block, and every block before is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashPrefill {
    /// Number of query heads.
    pub num_heads: u32,
    /// Number of f32 from one query row to the next.
    pub q_stride: u32,
    /// Row of q of the first query.
    pub q_first: u32,
    /// Number of queries.
    pub q_len: u32,
    /// Number of keys.
    pub kv_len: u32,
    /// First entry of the sequence's block table.
    pub table: u32,
    /// Number of tokens of a block: a power of two times the tokens of a page.
    pub block: u32,
    /// Fraction of the largest energy that a block must reach.
    pub alpha: f32,
    /// Number of blocks at the start that are always kept.
    pub sink_blocks: u32,
    /// Number of blocks, up to a query block's own, that are always kept.
    pub recent_blocks: u32,
}

impl FlashPrefill {
    /// Index of the key block that contains the first query block.
    #[must_use]
    pub fn first_block(&self) -> u32 {
        (self.kv_len - self.q_len) / self.block
    }

    /// Number of query blocks, the first and the last one perhaps partial.
    #[must_use]
    pub fn query_blocks(&self) -> u32 {
        self.key_blocks() - self.first_block()
    }

    /// Number of key blocks, the last one perhaps partial.
    #[must_use]
    pub fn key_blocks(&self) -> u32 {
        self.kv_len.div_ceil(self.block)
    }

    /// Number of blocks between the means of successive KV heads: those before the last query block, at least one.
    fn mean_stride(&self) -> u32 {
        (self.key_blocks() - 1).max(1)
    }

    fn front(&self) -> u32 {
        (self.kv_len - self.q_len) % self.block
    }

    /// Number of f32 of `means`, and of `energies` for `query_blocks` query blocks at a time.
    #[must_use]
    pub fn scratch_lens(&self, shape: &KvShape, query_blocks: u32) -> [usize; 2] {
        let [means, energies] =
            [shape.num_kv_heads * shape.head_dim, self.num_heads * query_blocks].map(|n| n as usize);
        let blocks = self.mean_stride() as usize;
        [means * blocks, energies * blocks]
    }

    /// Returns the query blocks of each round of dispatches. A round has as many as keep `energies` within `most`
    /// f32, but at least one.
    pub fn rounds(&self, most: usize) -> impl Iterator<Item = Range<u32>> + use<> {
        let blocks = self.query_blocks();
        let fit = most / (self.num_heads as usize * self.mean_stride() as usize).max(1);
        let step = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, blocks.max(1));
        (0..blocks).step_by(step as usize).map(move |first| first..(first + step).min(blocks))
    }

    /// Parameters of `block_mean`; `None` if no block is before the last query block.
    #[must_use]
    pub fn block_mean(&self, shape: &KvShape) -> Option<BlockMeanParams> {
        let blocks = self.key_blocks() - 1;
        (blocks > 0).then_some(BlockMeanParams {
            num_kv_heads: shape.num_kv_heads,
            blocks,
            table: self.table,
            mean_stride: self.mean_stride(),
        })
    }

    /// Parameters of `block_means`; `None` if no block is before the last query block. Codes of fp8 are at a scale of 1.
    #[must_use]
    pub fn block_means(&self, shape: &KvShape) -> Option<BlockMeansParams> {
        let of_keys = self.block_mean(shape)?;
        let BlockMeanParams { num_kv_heads, blocks, table, mean_stride } = of_keys;
        Some(BlockMeansParams { num_kv_heads, blocks, table, mean_stride, k_scale: 1.0, v_scale: 1.0 })
    }

    /// Parameters of `attend_means`, with lists `[query_blocks, num_kv_heads]` of `list_stride` u32. The lists of the
    /// chunk start at `first_list`. Rows of the output correspond to rows of q.
    #[must_use]
    pub fn attend_means(&self, shape: &KvShape, list_stride: u32, first_list: u32) -> AttendMeansParams {
        AttendMeansParams {
            num_heads: self.num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: self.q_stride,
            q_first: self.q_first,
            q_len: self.q_len,
            front: self.front(),
            current: self.first_block(),
            mean_stride: self.mean_stride(),
            list_stride,
            first_list,
            query_blocks: self.query_blocks(),
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
        }
    }

    /// Parameters of `block_energy` for some query blocks.
    #[must_use]
    pub fn block_energy(&self, shape: &KvShape, blocks: &Range<u32>) -> BlockEnergyParams {
        BlockEnergyParams {
            num_heads: self.num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: self.q_stride,
            q_first: self.q_first,
            q_len: self.q_len,
            front: self.front(),
            first_block: blocks.start,
            query_blocks: blocks.end - blocks.start,
            current: self.first_block(),
            mean_stride: self.mean_stride(),
            energy_stride: self.mean_stride(),
            scale: std::f32::consts::LOG2_E / (shape.head_dim as f32).sqrt(),
        }
    }

    /// Parameters of `keep_blocks` for some query blocks, into lists `[query_blocks, num_kv_heads]` of `out_stride` u32. The
    /// lists of the chunk start at `first_list`.
    #[must_use]
    pub fn keep_blocks(
        &self,
        shape: &KvShape,
        blocks: &Range<u32>,
        out_stride: u32,
        first_list: u32,
    ) -> KeepBlocksParams {
        KeepBlocksParams {
            num_kv_heads: shape.num_kv_heads,
            query_blocks: blocks.end - blocks.start,
            energy_stride: self.mean_stride(),
            current: self.first_block() + blocks.start,
            out_stride,
            first_list: first_list + blocks.start * shape.num_kv_heads,
            sink_blocks: self.sink_blocks,
            recent_blocks: self.recent_blocks,
            log2_alpha: self.alpha.log2(),
        }
    }

    /// Checks the chunk, and the blocks of `tables` that it reads, against a cache of `num_blocks` blocks and buffers of `q_len`
    /// f32 and `out_len` u32 of lists.
    ///
    /// # Errors
    /// Sizes that do not divide, more queries than keys, no queries, a table that names no block of the cache, or a buffer that
    /// is too short.
    pub fn check(
        &self,
        shape: &KvShape,
        [out_stride, first_list]: [u32; 2],
        tables: (&[u32], u32),
        [q_len, out_len]: [usize; 2],
    ) -> Result<(), LaunchError> {
        let launch = Launch("flashprefill");
        launch.not_zero("queries", self.q_len)?;
        launch.at_most("queries", self.q_len.into(), self.kv_len.into())?;
        launch.multiple("query heads", self.num_heads, shape.num_kv_heads)?;
        launch.multiple("block", self.block, shape.block_size)?;
        launch.power_of_two("block", self.block)?;
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
