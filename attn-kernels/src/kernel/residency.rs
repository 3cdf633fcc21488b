//! Assigns slots on the device to pages of the blocks that lists name.

use super::KvShape;
use crate::declare::one;
use crate::rows::{PageRequest, PhysicalBlock};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`ResidencyBuffers`] lists its bindings.
    "residency"(ResidencyParams, ResidencyBuffers): Cache,
    grid: |params, _| [params.num_kv_heads, 1, 1],
    listed: |sizes| one(variant(&sizes.f16(), sizes.select(64))),
    variants: "one",
    bytes: "`32` per page of a list and head, `8` per slot",
    cases: crate::self_test::residency::cases,
}

params! {
    /// Uniform parameters.
    #[derive(PartialEq, Eq)]
    pub struct ResidencyParams {
        /// First request of the dispatch.
        pub first_request: u32,
        /// Number of requests of the dispatch.
        pub requests: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of entries from one list to the next.
        pub list_stride: u32,
        /// Number of tokens of a block.
        pub block_size: u32,
        /// Index in each list of the first page that the dispatch handles.
        pub first_page: u32,
        /// Maximum number of pages of each list.
        pub num_pages: u32,
        /// Number of slots of each KV head.
        pub num_slots: u32,
        /// Maximum number of pages to fetch per head; further ones are dropped.
        pub max_fetches: u32,
        /// Flag: 1 if the places of pages are written to the lists, 0 for a prefetch, which no attention reads yet.
        pub write_pages: u32,
    }
}

bindings! {
    /// Buffers of `residency`.
    pub struct ResidencyBuffers(ResidencyParams) {
        /// Lists whose pages are requested, `[n]`.
        read requests: PageRequest,
        /// Lists, `[groups, num_kv_heads]` of list_stride u32: count, then that many ascending blocks of PAGES pages.
        read lists: u32,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Places, `[num_blocks, num_kv_heads]`: slot + 2 for a page on the device, 0 otherwise.
        index places: u32,
        /// Slots, `[num_slots + 1, num_kv_heads]`: block + 1, or 0 for an empty slot, and the number of the call that
        /// last used the slot. The last row has 0 and the number of calls so far.
        index slots: [u32; 2],
        /// Fetches, `[num_kv_heads]` of `4 + 2 * num_slots` u32: number of pages to fetch; numbers of hits, misses
        /// and drops since the start; then (block, slot) of each page to fetch.
        index fetches: u32,
        /// Slots of the pages of the lists, `[entries of tables, num_kv_heads]`, which attention reads as block tables.
        index pages: PhysicalBlock,
    }
}

/// Number of words before the pages of each head's fetches: the number of pages, then hits, misses and drops since
/// the start.
pub const HEADER: usize = 4;

/// Returns the variant for lists of blocks of `select_block` tokens.
///
/// # Panics
/// When `select_block` is not a multiple of the block size.
#[must_use]
pub fn variant(shape: &KvShape, select_block: u32) -> Variant {
    Variant::new(&KERNEL).set(slot::PAGES, shape.pages_of(select_block))
}

/// Number of entries of the slots of all heads, with the row that counts calls.
#[must_use]
pub fn slots_len(shape: &KvShape, num_slots: u32) -> usize {
    shape.num_kv_heads as usize * (num_slots as usize + 1)
}

/// Number of words of the fetches of all heads.
#[must_use]
pub fn fetches_len(shape: &KvShape, num_slots: u32) -> usize {
    shape.num_kv_heads as usize * (HEADER + 2 * num_slots as usize)
}
