//! Copies whole blocks from one pool to another, as between a device's cache and a mapped host buffer.

use crate::Variant;
use crate::declare::one;
use crate::rows::{BlockCopy, KvWord};

kernel! {
    /// The kernel; [`SwapBlocksBuffers`] lists its bindings.
    "swap_blocks"(SwapBlocksParams, SwapBlocksBuffers): Cache,
    grid: |params, _| [params.workgroups, 1, 1],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "twice the blocks copied",
    cases: crate::self_test::copy_blocks::swap_blocks,
}

params! {
    /// Uniform parameters.
    pub struct SwapBlocksParams {
        /// Number of 16-byte units of a block: [`block_quads`](super::copy_blocks::block_quads).
        pub block_quads: u32,
        /// Number of entries of `pairs` that count.
        pub num_pairs: u32,
        /// Number of workgroups, which share the pairs: see [`Link`].
        pub workgroups: u32,
        /// Index of the first pair that is copied.
        pub first_pair: u32,
        /// First block that the source holds.
        pub first_source: u32,
        /// First block that the target holds.
        pub first_target: u32,
    }
}

bindings! {
    /// Buffers of `swap_blocks`.
    pub struct SwapBlocksBuffers(SwapBlocksParams) {
        /// Block of the source and block of the target, `[n]`; no target is named twice. [`BlockCopy::NONE`] copies nothing.
        read pairs: BlockCopy,
        /// Blocks of `block_quads` times 16 bytes, keys or values of any layout that keeps a block together.
        read source: KvWord,
        /// Blocks that are written.
        write pool: KvWord,
    }
}

const WG: u32 = 256;

/// Number of workgroups that saturate a bus, with 16 KiB in transfer each. On an H200, 4 for K and 4 for V reach 49
/// GB/s, and a prefill that runs at the same time keeps 0.98 of its speed; with 16 of each, 0.85.
const OVER_BUS: u32 = 4;

/// Connection between the two pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// Both buffers are in device memory.
    Memory,
    /// One of the buffers is in host memory.
    Bus,
}

impl SwapBlocksParams {
    /// Parameters for the first `num_pairs` pairs of blocks of `block_quads` 16-byte units, if the buffers hold whole
    /// pools.
    #[must_use]
    pub const fn new(block_quads: u32, num_pairs: u32, way: Link) -> Self {
        let most = match way {
            Link::Memory => 65_535,
            Link::Bus => OVER_BUS,
        };
        let workgroups = if num_pairs < most { num_pairs } else { most };
        Self { block_quads, num_pairs, workgroups, first_pair: 0, first_source: 0, first_target: 0 }
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}
