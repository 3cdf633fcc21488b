//! What dropped blocks may hold of the attention mass, from their digests; `mass_merge` makes lower bounds of the kept mass
//! of it.

use super::error::Launch;
use super::{KvShape, LaunchError};
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: q, digests, tables, rows, selected, stats, shares.
pub static KERNEL: Kernel = Kernel {
    name: "mass_bound",
    wgsl: include_str!("../../wgsl/mass_bound.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<MassBoundParams>(),
    bindings: &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MassBoundParams {
    /// Query heads.
    pub num_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// f32 from one query row to the next.
    pub q_stride: u32,
    /// Entries from one list of selected blocks to the next.
    pub list_stride: u32,
    /// As `paged_decode` ran.
    pub max_partitions: u32,
    /// Factor on scores, as `paged_decode` ran.
    pub scale: f32,
    /// Row whose lists and shares are those of the dispatch's first row.
    pub first_list: u32,
    /// First share of the layer.
    pub first_share: u32,
    /// f32 from one row and head's shares to the next: [`share_stride`].
    pub share_stride: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

/// Blocks that one share stands for.
pub const RUN: u32 = 64;

/// Shares of a row and head of at most `blocks` blocks: the kept one, and one for each [`RUN`] blocks.
#[must_use]
pub const fn share_stride(blocks: u32) -> u32 {
    1 + blocks.div_ceil(RUN)
}

/// The kernel for one cache shape, over digests of minima and maxima; a block is `select_block` tokens. It runs after
/// `paged_decode` over the same lists and before anything overwrites its stats.
///
/// # Panics
/// When `select_block` is not a multiple of the page size.
#[must_use]
pub fn variant(shape: &KvShape, select_block: u32) -> Variant {
    shape.check();
    let page = shape.block_size;
    assert!(
        select_block >= page && select_block.is_multiple_of(page),
        "selection block {select_block} is not a multiple of page size {page}"
    );
    Variant::new(&KERNEL)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", page)
        .size("PAGES", select_block / page)
        .module("score", "score_bound")
}

/// Workgroups for `rows` rows.
#[must_use]
pub const fn grid(params: &MassBoundParams, rows: u32) -> [u32; 3] {
    [params.share_stride - 1, params.num_heads, rows]
}

/// Checks a launch over `rows` rows of at most `blocks` blocks of `select_block` tokens in pages of `page` against lists of `selected_len` entries, `stats_len` pairs and
/// `shares_len` f32;
/// [`block_score::check`](super::block_score::check) checks the rows.
///
/// # Errors
/// Heads or pages that do not divide, or a buffer that is too short.
pub fn check(
    params: &MassBoundParams,
    (rows, blocks): (usize, u32),
    [select_block, page]: [u32; 2],
    [selected_len, stats_len, shares_len]: [usize; 3],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.whole_pages(select_block, page)?;
    launch.multiple("query heads", params.num_heads, params.num_kv_heads)?;
    launch.at_most("rows", rows as u64, 65_535)?;
    let (rows, heads) = (rows as u64, u64::from(params.num_heads));
    let last = rows + u64::from(params.first_list);
    let lists = last * u64::from(params.num_kv_heads) * u64::from(params.list_stride);
    launch.at_most("entries of lists", lists, selected_len as u64)?;
    launch.at_most("pairs of stats", rows * heads * u64::from(params.max_partitions), stats_len as u64)?;
    launch.at_most("shares of a head", share_stride(blocks).into(), params.share_stride.into())?;
    let shares = u64::from(params.first_share) + last * heads * u64::from(params.share_stride);
    launch.at_most("f32 of shares", shares, shares_len as u64)
}
