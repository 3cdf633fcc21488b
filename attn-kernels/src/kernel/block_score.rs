//! Scores of a sequence's blocks for decode rows, from digests of blocks of the cache, and bounds of logits for
//! certificates.

use super::block_digest::{self, Digest};
use super::{KvDtype, KvShape, heads_together};
use crate::Variant;
use crate::declare::{FLOATS, Listed, Sizes};
use crate::rows::{DecodeRow, PhysicalBlock};
use crate::slot::{self, Flag, Number, OneOf};

kernel! {
    /// The kernel; [`BlockScoreBuffers`] lists its bindings.
    "block_score"(BlockScoreParams, BlockScoreBuffers): Selection,
    grid: grid,
    listed: listed,
    variants: "digests f16, f32; bound (Quest), with bounds kept or not, or mean key",
    bytes: "`2 * vectors * Hkv * D` per page, `4 * sets` per block, `4 * H` with bounds",
    cases: crate::self_test::block_score::cases,
}

/// Lists the variants of these sizes for the documentation. Caches of codes need none of their own, because they have
/// digests like f16 caches, except for bounds of int8 that f16 cannot hold.
fn listed(sizes: &Sizes) -> Listed {
    let heads = sizes.num_heads;
    [("min_max", Digest::MinMax), ("mean", Digest::Mean)]
        .into_iter()
        .flat_map(|(part, digest)| {
            let all = sizes.each(&FLOATS, |shape| variant(shape, heads, digest, sizes.select(64)));
            all.into_iter().map(move |(dtype, variant)| (format!("{part}-{dtype}"), variant))
        })
        .chain(
            sizes
                .each(&[KvDtype::F16, KvDtype::F32, KvDtype::Int8], |shape| {
                    with_bounds(shape, heads, sizes.select(64))
                })
                .into_iter()
                .map(|(dtype, variant)| (format!("bounds-{dtype}"), variant)),
        )
        .collect()
}

params! {
    /// Uniform parameters.
    pub struct BlockScoreParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Number of query heads that share a selection: those of a KV head (Quest), or all (GSA and ESA of UCM).
        pub heads_per_set: u32,
        /// Number of f32 between successive rows of scores: at least the maximum number of blocks of a row.
        pub score_stride: u32,
        /// Number of blocks at the start that are always selected.
        pub sink_blocks: u32,
        /// Number of blocks at the end that are always selected. The block of the last token is always selected, even
        /// if this is 0.
        pub recent_blocks: u32,
        /// Flag: 1 if `recent_blocks` counts full blocks only (GSA of UCM).
        pub recent_full: u32,
        /// Factor on scores: 1, or 1 / (number of heads averaged) for mean keys.
        pub scale: f32,
        /// Positive infinity, as a parameter because WGSL cannot write it.
        pub infinity: f32,
        /// Factor above 0 by which attention multiplies `q·k`. Bounds are of logits, which include this factor.
        pub logit_scale: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `block_score`.
    pub struct BlockScoreBuffers(BlockScoreParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Digests, `[num_blocks, num_kv_heads, VECTORS, head_dim]`, from block_digest: f32 for caches in f32, else f16.
        read digests: u32,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores, `[n, sets, score_stride]`: +inf for the block of the last token, the largest f32 for the first sink_blocks and
        /// the last recent_blocks, -inf beyond the sequence.
        write scores: f32,
        /// Bounds of each block, `[n, num_heads, score_stride, 2]`: the logarithm of the largest sum that the block's
        /// exponentials can have, and the rounding error of a logit in the block.
        write bounds: f32 = None,
    }
}

impl Default for BlockScoreParams {
    /// Scores without forced blocks except the last. Heads and strides are to be set.
    fn default() -> Self {
        Self { scale: 1.0, infinity: f32::INFINITY, logit_scale: 1.0, ..bytemuck::Zeroable::zeroed() }
    }
}

/// Number of chunks of eight channels of mean keys that a lane loads at once: as many as 16 lanes need for all KV
/// heads, up to 8.
fn chunks_ahead(shape: &KvShape) -> u32 {
    (shape.num_kv_heads * shape.head_dim / 8).div_ceil(16).min(8)
}

/// Number of blocks that a workgroup scores.
fn blocks(digest: Digest) -> u32 {
    match digest {
        Digest::MinMax => 32,
        Digest::Mean => 16,
    }
}

/// Ways to score a block.
pub(crate) const SCORING: OneOf<Digest> =
    OneOf::new("scoring", &[(Digest::MinMax, "blocks_bound"), (Digest::Mean, "blocks_mean")]);
/// Whether bounds of each query head are stored.
pub(crate) const BOUNDS: OneOf<bool> = OneOf::new("bounds", &[(false, "bounds_none"), (true, "bounds_kept")]);
/// Maximum of [`AHEAD`](slot::AHEAD).
const MOST_AHEAD: Number = Number("MOST_AHEAD");
/// Whether bounds may be infinities.
pub(crate) const OVERFLOWS: Flag = Flag("OVERFLOWS");

/// Number of query heads that share one read of a digest.
fn heads_per_read(shape: &KvShape, num_heads: u32) -> u32 {
    // Their queries and partial scores take at most 14 KiB of workgroup memory, at 576 elements a head.
    heads_together(num_heads / shape.num_kv_heads, 4)
}

/// Returns the variant for one cache shape and blocks of `select_block` tokens. [`Digest::MinMax`] scores a block by
/// Quest's upper bound and takes the largest score of a set's heads; [`Digest::Mean`] scores it by the mean key and
/// adds the scores of the heads.
///
/// # Panics
/// When `select_block` is not a multiple of the page size.
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, digest: Digest, select_block: u32) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::PAGES, shape.pages_of(select_block))
        .set(block_digest::READ, block_digest::dtype(shape.dtype));
    match digest {
        Digest::MinMax => variant
            .set(SCORING, digest)
            .set(slot::HEADS, heads_per_read(shape, num_heads))
            .set(OVERFLOWS, shape.dtype == KvDtype::Int8),
        Digest::Mean => variant.set(SCORING, digest).set(slot::AHEAD, chunks_ahead(shape)),
    }
}

/// Returns the variant of [`Digest::MinMax`] that also computes a bound of every query head, `[rows, num_heads,
/// score_stride]`. A bound is two f32. The first is an upper bound of the natural logarithm of a block's sum of
/// `e^logit`, rounding included. The second is the possible rounding error of a logit in the block: [`TERM_ERROR`]
/// times the largest sizes that its terms may have.
///
/// # Panics
/// As [`variant`].
#[must_use]
pub fn with_bounds(shape: &KvShape, num_heads: u32, select_block: u32) -> Variant {
    let variant = variant(shape, num_heads, Digest::MinMax, select_block);
    // Of f32 each takes 16 registers as loaded, and 16 as joined.
    let variant = if shape.dtype == KvDtype::F32 { variant.set(MOST_AHEAD, 1) } else { variant };
    variant.set(BOUNDS, true).with("bounds")
}

/// Number of f32 of the scores of `rows` rows, `[rows, sets, score_stride]`.
#[must_use]
pub fn scores_len(params: &BlockScoreParams, rows: usize) -> usize {
    rows * (params.num_heads / params.heads_per_set) as usize * params.score_stride as usize
}

/// Error bound of a dot product in f32, relative to the sizes of its terms: 160 roundings.
pub const TERM_ERROR: f32 = 1e-5;

/// Number of f32 of the bounds of `rows` rows, `[rows, num_heads, score_stride, 2]`.
#[must_use]
pub fn bounds_len(params: &BlockScoreParams, rows: usize) -> usize {
    2 * rows * params.num_heads as usize * params.score_stride as usize
}

/// Returns the grid of `block_score` and `block_score_subgroup`.
pub(super) fn grid(params: &BlockScoreParams, variant: &Variant) -> [u32; 3] {
    // `block_score_subgroup` has no such slot, and scores by bounds.
    let digest = variant.get(SCORING).unwrap_or(Digest::MinMax);
    [params.score_stride.div_ceil(blocks(digest)), params.num_heads / params.heads_per_set, params.rows]
}
