//! Scores of a sequence's blocks for decode rows, from digests of its pages, and what certificates are made of.

use super::block_digest::{self, Digest};
use super::error::Launch;
use super::{KvDtype, KvShape, LaunchError, heads_together};
use crate::rows::{DecodeRow, PhysicalBlock};
use crate::{Kernel, Params, Variant};

/// The kernel; [`BlockScoreBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "block_score",
    role: crate::Role::Selection,
    wgsl: include_str!("../../wgsl/block_score.wgsl"),
    modules: &[crate::MODULES],
    params: BlockScoreParams::LAYOUT,
    bindings: BlockScoreBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct BlockScoreParams {
        /// Query heads.
        pub num_heads: u32,
        /// KV heads.
        pub num_kv_heads: u32,
        /// f32 from one query row to the next.
        pub q_stride: u32,
        /// Query heads that share a selection: those of a KV head (Quest), or all (GSA and ESA of UCM).
        pub heads_per_set: u32,
        /// f32 from one row of scores to the next: at least the most blocks of a row.
        pub score_stride: u32,
        /// First blocks, always selected.
        pub sink_blocks: u32,
        /// Last blocks, always selected; the block of the last token always is.
        pub recent_blocks: u32,
        /// 1: `recent_blocks` counts full blocks only (GSA of UCM).
        pub recent_full: u32,
        /// Factor on scores: 1, or 1 / (number of heads averaged) for mean keys.
        pub scale: f32,
        /// Infinity, which WGSL cannot write.
        pub infinity: f32,
        /// Factor of attention on `q·k`, above 0: bounds are of logits.
        pub logit_scale: f32,
    }
}

bindings! {
    /// Buffers of `block_score`.
    pub struct BlockScoreBuffers(BlockScoreParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Digests, `[num_blocks, num_kv_heads, VECTORS, head_dim]`, from block_digest: f32 beside caches in f32, else f16.
        read digests: u32,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores, `[n, sets, score_stride]`: +inf for the block of the last token, the largest f32 for the first sink_blocks and
        /// the last recent_blocks, -inf beyond the sequence.
        write scores: f32,
        /// Bounds of each block, `[n, num_heads, score_stride, 2]`: logarithm of the largest sum of its exponentials, and
        /// the rounding error of a logit in it.
        write bounds: f32 = None,
    }
}

impl Default for BlockScoreParams {
    /// Scores as they are, nothing forced but the last block. Heads and strides are to be set.
    fn default() -> Self {
        Self { scale: 1.0, infinity: f32::INFINITY, logit_scale: 1.0, ..bytemuck::Zeroable::zeroed() }
    }
}

/// Chunks of eight channels that a lane has in flight of mean keys: what 16 lanes need for all KV heads, up to 8.
fn chunks_ahead(shape: &KvShape) -> u32 {
    (shape.num_kv_heads * shape.head_dim / 8).div_ceil(16).min(8)
}

/// Blocks that a workgroup scores.
fn blocks(digest: Digest) -> u32 {
    match digest {
        Digest::MinMax => 32,
        Digest::Mean => 16,
    }
}

/// Query heads that share one read of a digest.
fn heads_per_read(shape: &KvShape, num_heads: u32) -> u32 {
    // Their queries and partial scores take at most 14 KiB of workgroup memory, at 576 elements a head.
    heads_together(num_heads / shape.num_kv_heads, 4)
}

/// The kernel for one cache shape; [`Digest::MinMax`] scores by the upper bound of Quest and takes the largest of a set's
/// heads, [`Digest::Mean`] by the mean key and adds them up. A block is `select_block` tokens.
///
/// # Panics
/// When `select_block` is not a multiple of the page size.
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, digest: Digest, select_block: u32) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", shape.block_size)
        .size("PAGES", shape.pages_of(select_block))
        .module("digests", block_digest::reader(shape.dtype));
    match digest {
        Digest::MinMax => variant
            .module("scoring", "blocks_bound")
            .size("HEADS", heads_per_read(shape, num_heads))
            .size("OVERFLOWS", u32::from(shape.dtype == KvDtype::Int8)),
        Digest::Mean => variant.module("scoring", "blocks_mean").size("AHEAD", chunks_ahead(shape)),
    }
}

/// The variant of [`Digest::MinMax`] that keeps, beside scores, `[rows, num_heads, score_stride]` bounds of every query head, two
/// f32 each: the natural logarithm of what the sum of a block's `e^logit` is at most, rounding included; and what f32 may lose
/// of a logit in the block, [`TERM_ERROR`] of the largest sizes that its terms may have.
///
/// # Panics
/// As [`variant`].
#[must_use]
pub fn with_bounds(shape: &KvShape, num_heads: u32, select_block: u32) -> Variant {
    let variant = variant(shape, num_heads, Digest::MinMax, select_block);
    // Of f32 each takes 16 registers as loaded, and 16 as joined.
    let variant = if shape.dtype == KvDtype::F32 { variant.size("MOST_AHEAD", 1) } else { variant };
    variant.module("bounds", "bounds_kept").with("bounds")
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(digest: Digest, params: &BlockScoreParams, rows: u32) -> [u32; 3] {
    [params.score_stride.div_ceil(blocks(digest)), params.num_heads / params.heads_per_set, rows]
}

/// f32 of the scores of `rows` rows, `[rows, sets, score_stride]`.
#[must_use]
pub fn scores_len(params: &BlockScoreParams, rows: usize) -> usize {
    rows * (params.num_heads / params.heads_per_set) as usize * params.score_stride as usize
}

/// Error bound of a dot product in f32, relative to the sizes of its terms: 160 roundings.
pub const TERM_ERROR: f32 = 1e-5;

/// f32 of the bounds of `rows` rows, `[rows, num_heads, score_stride, 2]`.
#[must_use]
pub fn bounds_len(params: &BlockScoreParams, rows: usize) -> usize {
    2 * rows * params.num_heads as usize * params.score_stride as usize
}

/// Checks `rows`, `[row of q, KV length, first entry of its table, 0]`, and the blocks of `tables` that they read, against a
/// pool of `num_blocks` blocks and buffers of `q_len` and `scores_len` f32.
///
/// # Errors
/// Heads that do not divide, a row outside q, a table that names no block of the pool, or a row with more blocks than
/// `score_stride`.
pub fn check(
    shape: &KvShape,
    params: &BlockScoreParams,
    select_block: u32,
    rows: &[[u32; 4]],
    tables: (&[u32], u32),
    [q_len, scores_len]: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.whole_pages(select_block, shape.block_size)?;
    launch.not_zero("heads per set", params.heads_per_set)?;
    launch.multiple("query heads", params.num_heads, params.num_kv_heads)?;
    launch.multiple("query heads", params.num_heads, params.heads_per_set)?;
    launch.multiple("heads per set", params.heads_per_set, params.num_heads / params.num_kv_heads)?;
    launch.at_most("rows", rows.len() as u64, 65_535)?;
    let scores = self::scores_len(params, rows.len()) as u64;
    launch.at_most("f32 of scores", scores, scores_len as u64)?;
    let width = u64::from(params.num_heads) * u64::from(shape.head_dim);
    for (entry, row) in rows.iter().enumerate() {
        let [row, len, table, _] = *row;
        let end = u64::from(row) * u64::from(params.q_stride) + width;
        launch.entry("end in q", entry, end, q_len as u64)?;
        let blocks = len.div_ceil(select_block);
        launch.entry("number of blocks", entry, blocks.into(), params.score_stride.into())?;
        launch.tokens(entry, tables, table, [0, len], shape.block_size)?;
    }
    Ok(())
}
