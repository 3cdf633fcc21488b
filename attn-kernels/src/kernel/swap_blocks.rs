//! Copies whole blocks from one pool to another, as between a device's cache and a mapped host buffer.

use super::LaunchError;
use super::error::Launch;
use crate::rows::{BlockCopy, KvWord};
use crate::{Kernel, Params, Variant};

/// The kernel; [`SwapBlocksBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "swap_blocks",
    role: crate::Role::Cache,
    wgsl: include_str!("../../wgsl/swap_blocks.wgsl"),
    modules: &[crate::MODULES],
    params: SwapBlocksParams::LAYOUT,
    bindings: SwapBlocksBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct SwapBlocksParams {
        /// 16-byte units of a block: [`block_quads`](super::copy_blocks::block_quads).
        pub block_quads: u32,
    }
}

bindings! {
    /// Buffers of `swap_blocks`.
    pub struct SwapBlocksBuffers(SwapBlocksParams) {
        /// Block of the source and block of the target, `[n]`; no target is named twice.
        read pairs: BlockCopy,
        /// Blocks of `block_quads` times 16 bytes, keys or values of any layout that keeps a block together.
        read source: KvWord,
        /// Blocks that are written.
        write pool: KvWord,
    }
}

const WG: u32 = 64;

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}

/// Workgroups for `pairs` pairs, at most 65,535, of blocks of `block_quads` 16-byte units.
#[must_use]
pub fn grid(block_quads: u32, pairs: u32) -> [u32; 3] {
    [block_quads.div_ceil(WG), pairs, 1]
}

/// Checks `pairs` against pools of `source_blocks` and `pool_blocks` blocks.
///
/// # Errors
/// More pairs than a dispatch has, a block outside its pool, or a target that is named twice.
pub fn check(pairs: &[[u32; 2]], source_blocks: u32, pool_blocks: u32) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.at_most("pairs", pairs.len() as u64, 65_535)?;
    for (entry, [from, to]) in pairs.iter().enumerate() {
        launch.entry("source block + 1", entry, u64::from(*from) + 1, source_blocks.into())?;
        launch.entry("target block + 1", entry, u64::from(*to) + 1, pool_blocks.into())?;
    }
    let mut targets: Vec<u32> = pairs.iter().map(|pair| pair[1]).collect();
    targets.sort_unstable();
    let named = |block: u32| pairs.iter().filter(|pair| pair[1] == block).count();
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => launch.at_most("copies into one block", named(pair[0]) as u64, 1),
        None => Ok(()),
    }
}
