//! Selects the blocks with at least a share of the largest energy, as lists: the last step of `FlashPrefill`.

use crate::declare::one;
use crate::{Level, Variant, slot};

kernel! {
    /// The kernel; [`KeepBlocksBuffers`] lists its bindings.
    "keep_blocks"(KeepBlocksParams, KeepBlocksBuffers): Selection,
    grid: |params, _| [params.query_blocks, params.num_kv_heads, 1],
    listed: |_| one(variant(4)),
    variants: "one, by the heads of a group",
    bytes: "`8 * H` per query block and key block, half of it from caches",
    cases: crate::self_test::flashprefill::keep_blocks,
}

params! {
    /// Uniform parameters; [`FlashPrefill`](super::flashprefill::FlashPrefill) fills them in.
    #[derive(PartialEq)]
    pub struct KeepBlocksParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of query blocks of this dispatch.
        pub query_blocks: u32,
        /// Number of f32 from one query block's energies to the next.
        pub energy_stride: u32,
        /// Index of the key block that contains the first query block.
        pub current: u32,
        /// Number of u32 from one list to the next.
        pub out_stride: u32,
        /// First list of this dispatch.
        pub first_list: u32,
        /// Number of blocks at the start that are always kept.
        pub sink_blocks: u32,
        /// Number of blocks, up to a query block's own, that are always kept.
        pub recent_blocks: u32,
        /// Base-2 logarithm of the fraction of the largest energy that a block must reach.
        pub log2_alpha: f32,
    }
}

bindings! {
    /// Buffers of `keep_blocks`.
    pub struct KeepBlocksBuffers(KeepBlocksParams) {
        /// Energies, `[num_heads, query_blocks, energy_stride]` of `block_energy`.
        read energies: f32,
        /// Lists `[query_blocks, num_kv_heads]` of out_stride u32 from list first_list on: count, ascending blocks.
        index out: u32,
    }
}

/// Returns the variant for `group` query heads per KV head. Its prefix sums stay in workgroup memory, as in `find_blocks`.
#[must_use]
pub fn variant(group: u32) -> Variant {
    Variant::new(&KERNEL).set(slot::GROUP, group).set(slot::SCAN, Level::Baseline)
}
