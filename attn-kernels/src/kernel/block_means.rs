//! Mean keys and values of the blocks of a sequence, by which the blocks that `FlashPrefill` skips are approximated.

use super::{KvShape, block_digest};
use crate::declare::TYPES;
use crate::rows::{KvWord, PhysicalBlock};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`BlockMeansBuffers`] lists its bindings.
    "block_means"(BlockMeansParams, BlockMeansBuffers): Selection,
    grid: |params, variant| block_digest::of_blocks(params.num_kv_heads, params.blocks, variant),
    listed: |sizes| sizes.each(&TYPES, |shape| variant(shape, sizes.select(128))),
    variants: "f16, f32, fp8, int8",
    bytes: "`4 * Hkv * D` per token, `8 * Hkv * D` per block",
    cases: crate::self_test::flashprefill::block_means,
}

params! {
    /// Uniform parameters; [`FlashPrefill`](super::flashprefill::FlashPrefill) fills them in.
    #[derive(PartialEq)]
    pub struct BlockMeansParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of blocks, counted from the first of the sequence; all are full.
        pub blocks: u32,
        /// First entry of the sequence's block table.
        pub table: u32,
        /// Number of blocks from one KV head's means to the next's.
        pub mean_stride: u32,
        /// Scale of keys in fp8.
        pub k_scale: f32,
        /// Scale of values in fp8.
        pub v_scale: f32,
    }
}

bindings! {
    /// Buffers of `block_means`.
    pub struct BlockMeansBuffers(BlockMeansParams) {
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        read v_cache: KvWord,
        /// Means of keys, `[num_kv_heads, mean_stride, head_dim]`.
        write mean_keys: f32,
        /// Means of values, in the layout of the means of keys.
        write mean_values: f32,
    }
}

/// Returns the variant for one cache shape; blocks of `block` tokens.
///
/// # Panics
/// When a block is not a power of two of pages.
#[must_use]
pub fn variant(shape: &KvShape, block: u32) -> Variant {
    shape.check();
    assert!(block.is_power_of_two(), "a block of {block} tokens is not a power of two");
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::PAGES, shape.pages_of(block))
        .over_cache(super::KV, shape)
}
