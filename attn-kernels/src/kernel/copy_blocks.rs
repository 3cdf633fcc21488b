//! Copies whole blocks inside a cache.

use super::KvShape;
use crate::Variant;
use crate::declare::one;
use crate::rows::{BlockCopy, KvWord};

kernel! {
    /// The kernel; [`CopyBlocksBuffers`] lists its bindings.
    "copy_blocks"(CopyBlocksParams, CopyBlocksBuffers): Cache,
    grid: |params, _| [params.block_quads.div_ceil(WG), params.copies, 1],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "twice the blocks copied",
    cases: crate::self_test::copy_blocks::cases,
}

params! {
    /// Uniform parameters.
    pub struct CopyBlocksParams {
        /// Number of 16-byte units of a block.
        pub block_quads: u32,
        /// Number of pairs of blocks, at most 65,535.
        pub copies: u32,
    }
}

bindings! {
    /// Buffers of `copy_blocks`.
    pub struct CopyBlocksBuffers(CopyBlocksParams) {
        /// Source block and destination block of each copy, `[n]`.
        read pairs: BlockCopy,
        /// Blocks of `block_quads` times 16 bytes, keys or values of any layout that keeps a block together.
        write cache: KvWord,
    }
}

const WG: u32 = 64;

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}

/// Number of 16-byte units of a block in one buffer.
#[must_use]
pub fn block_quads(shape: &KvShape) -> u32 {
    u32::try_from(shape.block_bytes() / 16).expect("a block is far smaller than 64 GiB")
}
