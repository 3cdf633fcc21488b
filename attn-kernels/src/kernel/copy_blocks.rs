//! Copies whole blocks inside a cache.

use super::KvShape;
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: pairs, cache.
pub static KERNEL: Kernel = Kernel {
    name: "copy_blocks",
    wgsl: include_str!("../../wgsl/copy_blocks.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<CopyBlocksParams>(),
    bindings: &[Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct CopyBlocksParams {
    /// 16-byte units of a block.
    pub block_quads: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

const WG: u32 = 64;

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}

/// 16-byte units of a block of one buffer.
#[must_use]
pub fn block_quads(shape: &KvShape) -> u32 {
    u32::try_from(shape.block_bytes() / 16).expect("a block is far smaller than 64 GiB")
}

/// Workgroups for `copies` pairs, at most 65,535.
#[must_use]
pub fn grid(shape: &KvShape, copies: u32) -> [u32; 3] {
    grid_of(block_quads(shape), copies)
}

/// Workgroups for `copies` pairs, at most 65,535, of blocks of `block_quads` 16-byte units.
#[must_use]
pub fn grid_of(block_quads: u32, copies: u32) -> [u32; 3] {
    [block_quads.div_ceil(WG), copies, 1]
}
