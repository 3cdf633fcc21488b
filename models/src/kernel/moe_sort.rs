//! Pairs of a row and an expert, ordered by expert and cut into tiles.

use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: experts, tiles, order.
pub static KERNEL: Kernel = Kernel {
    name: "moe_sort",
    wgsl: include_str!("../../wgsl/moe_sort.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<MoeSortParams>(),
    bindings: &[Access::Read, Access::Write, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MoeSortParams {
    /// Pairs.
    pub pairs: u32,
    /// Most pairs of a tile.
    pub tile: u32,
    /// Tiles that the matmul runs: see [`most_tiles`].
    pub most_tiles: u32,
    /// Zero.
    pub pad0: u32,
}

/// The kernel for `experts` experts.
#[must_use]
pub fn variant(experts: u32) -> Variant {
    Variant::new(&KERNEL).size("EXPERTS", experts)
}

/// Tiles that `pairs` pairs make at most: every expert that has any may have one that is not full.
#[must_use]
pub fn most_tiles(pairs: u32, experts: u32, tile: u32) -> u32 {
    let begun = pairs.min(experts);
    begun + (pairs - begun) / tile
}
