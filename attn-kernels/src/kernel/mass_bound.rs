//! Bounds the attention mass of dropped blocks, from the bounds of `block_score`; `mass_merge` then computes lower
//! bounds of the kept mass.

use super::block_score::TERM_ERROR;
use super::paged_decode::Lanes;
use crate::Variant;
use crate::declare::one;
use crate::rows::DecodeRow;

kernel! {
    /// The kernel; [`MassBoundBuffers`] lists its bindings.
    "mass_bound"(MassBoundParams, MassBoundBuffers): Selection,
    grid: |params, _| [params.share_stride - 1, params.num_heads, params.rows],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4 * H` per block of a row",
    cases: crate::self_test::mass_bound::cases,
}

params! {
    /// Uniform parameters.
    pub struct MassBoundParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of tokens of a block.
        pub select_block: u32,
        /// Number of entries from one list of selected blocks to the next.
        pub list_stride: u32,
        /// Maximum number of partitions of a row, as in the run of `paged_decode`.
        pub max_partitions: u32,
        /// Number of f32 between the bounds of successive rows and heads, as in the run of `block_score`.
        pub bound_stride: u32,
        /// First row of the dispatch, in the bounds, the lists and the shares.
        pub first_row: u32,
        /// First share of the layer.
        pub first_share: u32,
        /// Number of f32 between the shares of successive rows and heads: [`share_stride`].
        pub share_stride: u32,
        /// Number of keys per partition, as in the run of `paged_decode`.
        pub partition_size: u32,
        /// Rounding factor of the `paged_decode` that wrote the stats: see [`slack`].
        pub slack: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `mass_bound`.
    pub struct MassBoundBuffers(MassBoundParams) {
        /// Bounds of `block_score`, `[rows of lists, num_heads, bound_stride, 2]`.
        read bounds: f32,
        /// Rows, `[first_row + n]`.
        read rows: DecodeRow,
        /// Lists of blocks, `[rows of lists, num_kv_heads]` of `list_stride` words: count, then ascending blocks.
        read selected: u32,
        /// Stats, `[n, num_heads, max_partitions]` (max, sum) of the kept logits, from `paged_decode`.
        read stats: [f32; 2],
        /// Shares, `[rows of lists, num_heads, share_stride]` from `first_share` on, divided by the largest kept exponential:
        /// the kept sum, negative if nothing is dropped, then the dropped sum of each run of blocks.
        write shares: f32,
    }
}

/// Factor by which logit errors of attention on `lanes` exceed those of f32: cooperative matrices round queries to
/// f16, which costs 2^-11 of every term.
#[must_use]
pub fn slack(lanes: Lanes) -> f32 {
    match lanes {
        Lanes::Matrices => 1.0 + f32::exp2(-11.0) / TERM_ERROR,
        _ => 1.0,
    }
}

/// Number of blocks whose dropped mass one share holds.
pub const RUN: u32 = 1024;

/// Number of shares of a row and head with at most `blocks` blocks: one of what is kept, and one for each [`RUN`]
/// blocks.
#[must_use]
pub const fn share_stride(blocks: u32) -> u32 {
    1 + blocks.div_ceil(RUN)
}

/// Returns the variant. It runs after `paged_decode` over the same lists and before anything overwrites the stats of
/// `paged_decode`.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
