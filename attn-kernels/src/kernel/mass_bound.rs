//! Bounds the attention mass of dropped blocks, from the bounds of `block_score`; `mass_merge` makes lower bounds of
//! the kept mass of it.

use super::LaunchError;
use super::block_score::TERM_ERROR;
use super::error::Launch;
use super::paged_decode::Lanes;
use crate::Variant;
use crate::declare::one;
use crate::rows::DecodeRow;

kernel! {
    /// The kernel; [`MassBoundBuffers`] lists its bindings.
    "mass_bound"(MassBoundParams, MassBoundBuffers): Selection,
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4 * H` per block of a row",
    cases: crate::self_test::mass_bound::cases,
}

params! {
    /// Uniform parameters.
    pub struct MassBoundParams {
        /// Query heads.
        pub num_heads: u32,
        /// KV heads.
        pub num_kv_heads: u32,
        /// Tokens of a block.
        pub select_block: u32,
        /// Entries from one list of selected blocks to the next.
        pub list_stride: u32,
        /// Maximum number of partitions of a row, as in the run of `paged_decode`.
        pub max_partitions: u32,
        /// f32 from one row and head's bounds to the next, as `block_score` ran.
        pub bound_stride: u32,
        /// First row of the dispatch, of its bounds, lists and shares.
        pub first_row: u32,
        /// First share of the layer.
        pub first_share: u32,
        /// f32 from one row and head's shares to the next: [`share_stride`].
        pub share_stride: u32,
        /// Keys per partition, as in the run of `paged_decode`.
        pub partition_size: u32,
        /// [`slack`] of the `paged_decode` that left the stats.
        pub slack: f32,
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
        /// Shares, `[rows of lists, num_heads, share_stride]` from `first_share` on, over the largest kept exponential:
        /// what is kept, negative where nothing is dropped, then what is dropped of each run of blocks.
        write shares: f32,
    }
}

/// Factor between the logit errors of attention on `lanes` and those of f32: through matrices, queries are rounded to
/// f16, which costs 2^-11 of every term.
#[must_use]
pub fn slack(lanes: Lanes) -> f32 {
    match lanes {
        Lanes::Matrices => 1.0 + f32::exp2(-11.0) / TERM_ERROR,
        _ => 1.0,
    }
}

/// Blocks that one share stands for.
pub const RUN: u32 = 1024;

/// Shares of a row and head of at most `blocks` blocks: the kept one, and one for each [`RUN`] blocks.
#[must_use]
pub const fn share_stride(blocks: u32) -> u32 {
    1 + blocks.div_ceil(RUN)
}

/// The kernel. It runs after `paged_decode` over the same lists and before anything overwrites its stats.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Workgroups for `rows` rows.
#[must_use]
pub const fn grid(params: &MassBoundParams, rows: u32) -> [u32; 3] {
    [params.share_stride - 1, params.num_heads, rows]
}

/// Checks a launch over `rows` rows of at most `blocks` blocks against bounds of `bounds_len` f32, lists of `selected_len`
/// entries, `stats_len` pairs and `shares_len` f32. What lists name is who fills them to answer for.
///
/// # Errors
/// Heads that do not divide, blocks of no tokens, or a buffer that is too short.
pub fn check(
    params: &MassBoundParams,
    (rows, blocks): (usize, u32),
    [bounds_len, selected_len, stats_len, shares_len]: [usize; 4],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("tokens of a block", params.select_block)?;
    launch.not_zero("keys of a partition", params.partition_size)?;
    launch.multiple("query heads", params.num_heads, params.num_kv_heads)?;
    launch.at_most("rows", rows as u64, 65_535)?;
    let (rows, heads) = (rows as u64, u64::from(params.num_heads));
    let last = rows + u64::from(params.first_row);
    launch.at_most("blocks of a row", blocks.into(), params.bound_stride.into())?;
    launch.at_most("f32 of bounds", 2 * last * heads * u64::from(params.bound_stride), bounds_len as u64)?;
    let lists = last * u64::from(params.num_kv_heads) * u64::from(params.list_stride);
    launch.at_most("entries of lists", lists, selected_len as u64)?;
    launch.at_most("pairs of stats", rows * heads * u64::from(params.max_partitions), stats_len as u64)?;
    launch.at_most("shares of a head", share_stride(blocks).into(), params.share_stride.into())?;
    let shares = u64::from(params.first_share) + last * heads * u64::from(params.share_stride);
    launch.at_most("f32 of shares", shares, shares_len as u64)
}
