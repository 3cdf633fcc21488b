//! Places on the device for pages that lists of blocks name.

use super::error::Launch;
use super::{KvShape, LaunchError};
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: asks, lists, tables, places, slots, fetches, pages.
pub static KERNEL: Kernel = Kernel {
    name: "residency",
    wgsl: include_str!("../../wgsl/residency.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<ResidencyParams>(),
    bindings: &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Write,
    ],
};

/// Uniform parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ResidencyParams {
    /// First ask of the dispatch.
    pub first_ask: u32,
    /// Asks of the dispatch.
    pub asks: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Entries from one list to the next.
    pub list_stride: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// First page of each list, counted in its order.
    pub first_page: u32,
    /// Pages of each list, at most.
    pub num_pages: u32,
    /// Slots of each KV head.
    pub num_slots: u32,
    /// Number of the call, from 1 on: what is older was used longer ago.
    pub now: u32,
    /// Most pages of a head to fetch; the others are dropped.
    pub most: u32,
    /// 1: pages are told where they are; 0 for a wish, which nothing attends yet.
    pub write_pages: u32,
    /// Zero.
    pub pad0: u32,
}

/// Words before the pages of each head's fetches: their number, then hits, misses and drops since the start.
pub const HEADER: usize = 4;

/// The kernel for lists of blocks of `select_block` tokens.
///
/// # Panics
/// When `select_block` is not a multiple of the block size.
#[must_use]
pub fn variant(shape: &KvShape, select_block: u32) -> Variant {
    Variant::new(&KERNEL).size("PAGES", shape.pages_of(select_block))
}

/// Words of the fetches of all heads.
#[must_use]
pub fn fetches_len(shape: &KvShape, num_slots: u32) -> usize {
    shape.num_kv_heads as usize * (HEADER + 2 * num_slots as usize)
}

/// Workgroups.
#[must_use]
pub fn grid(shape: &KvShape) -> [u32; 3] {
    [shape.num_kv_heads, 1, 1]
}

/// Checks a dispatch over `asks` for blocks of `select_block` tokens, `[list group, KV length, first entry of its table, 0]`, whose
/// lists have at most `list_stride - 1` blocks, and the blocks of `tables` that they name, against a pool of `num_blocks` blocks on
/// the host and buffers of `lists_len` and `pages_len` u32.
///
/// # Errors
/// Pages that do not divide, an ask outside the lists, a table that names no block of the pool, or pages that all slots of a head
/// cannot hold at one time.
pub fn check(
    params: &ResidencyParams,
    select_block: u32,
    asks: &[[u32; 4]],
    tables: (&[u32], u32),
    [lists_len, pages_len]: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.whole_pages(select_block, params.block_size)?;
    launch.not_zero("list stride", params.list_stride)?;
    launch.not_zero("number of the call", params.now)?;
    launch.at_most("asks", u64::from(params.first_ask) + u64::from(params.asks), asks.len() as u64)?;
    let together = u64::from(params.asks) * u64::from(params.num_pages);
    launch.at_most("pages at one time", together, params.num_slots.into())?;
    for (entry, &[group, len, table, _]) in asks.iter().enumerate() {
        let lists = (u64::from(group) + 1) * u64::from(params.num_kv_heads) * u64::from(params.list_stride);
        launch.entry("end in the lists", entry, lists, lists_len as u64)?;
        launch.tokens(entry, tables, table, [0, len], params.block_size)?;
        let end = u64::from(table) + u64::from(len.div_ceil(params.block_size));
        launch.entry("end in the pages", entry, end * u64::from(params.num_kv_heads), pages_len as u64)?;
    }
    Ok(())
}
