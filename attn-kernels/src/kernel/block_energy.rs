//! Energies of key blocks for query blocks, from mean keys: the second step of `FlashPrefill`.

use super::KvShape;
use crate::declare::one;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`BlockEnergyBuffers`] lists its bindings.
    "block_energy"(BlockEnergyParams, BlockEnergyBuffers): Selection,
    grid: |params, _| {
        let before_last = params.current + params.first_block + params.query_blocks - 1;
        [before_last.div_ceil(TILE).max(1), params.query_blocks, params.num_heads]
    },
    listed: |sizes| one(variant(&sizes.f16(), sizes.select(128))),
    variants: "one",
    bytes: "`4 * H * D` per query row once for 64 key blocks; `4 * H` per query block and key block; means once per query block and 64 key blocks",
    cases: crate::self_test::flashprefill::block_energy,
}

params! {
    /// Uniform parameters; [`FlashPrefill`](super::flashprefill::FlashPrefill) fills them in.
    #[derive(PartialEq)]
    pub struct BlockEnergyParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Row of q of the chunk's first query.
        pub q_first: u32,
        /// Number of queries of the chunk.
        pub q_len: u32,
        /// Number of tokens of the first query block that precede the chunk's first query.
        pub front: u32,
        /// First query block of this dispatch.
        pub first_block: u32,
        /// Index of the key block that contains the chunk's first query.
        pub current: u32,
        /// Number of blocks between the means of successive KV heads.
        pub mean_stride: u32,
        /// Number of f32 from one query block's energies to the next.
        pub energy_stride: u32,
        /// Factor on scores before the sum of their powers of two: `log2(e) / sqrt(head_dim)`.
        pub scale: f32,
        /// Number of query blocks of the dispatch.
        pub query_blocks: u32,
    }
}

bindings! {
    /// Buffers of `block_energy`.
    pub struct BlockEnergyBuffers(BlockEnergyParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]` from 0.
        read q: f32,
        /// Means, `[num_kv_heads, mean_stride, head_dim]` of `block_mean`.
        read means: f32,
        /// Energies as base-2 logarithms, `[num_heads, query blocks of the dispatch, energy_stride]`, of the key blocks before
        /// the query block.
        write energies: f32,
    }
}

/// Number of key blocks of a workgroup.
const TILE: u32 = 64;

/// Returns the variant for one cache shape and blocks of `block` tokens.
///
/// # Panics
/// When a block is not a power of two of pages.
#[must_use]
pub fn variant(shape: &KvShape, block: u32) -> Variant {
    shape.check();
    assert!(block.is_power_of_two(), "a block of {block} tokens is not a power of two");
    Variant::new(&KERNEL).set(slot::HEAD_DIM, shape.head_dim).set(slot::BLOCK, block)
}
