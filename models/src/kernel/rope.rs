//! Rotary position embedding, in place.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: cs, x.
pub static KERNEL: Kernel = Kernel {
    name: "rope",
    wgsl: include_str!("../../wgsl/rope.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<RopeParams>(),
    bindings: &[Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RopeParams {
    /// Rows.
    pub rows: u32,
    /// Heads to turn: queries, then keys.
    pub heads: u32,
    /// f32 from row to row.
    pub stride: u32,
    /// Pairs of dimensions to turn in each head.
    pub pairs: u32,
    /// First dimension to turn of the first head of a row.
    pub first: u32,
    /// 1 to turn the other way, which undoes it.
    pub back: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

const WG: u32 = 64;

/// The kernel for one head size and pairing.
#[must_use]
pub fn variant(head_dim: u32, interleaved: bool) -> Variant {
    Variant::new(&KERNEL)
        .size("HEAD_DIM", head_dim)
        .size("INTERLEAVED", u32::from(interleaved))
        .constant("WG", WG)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32, heads: u32, pairs: u32) -> [u32; 3] {
    flat_grid((rows * heads * pairs).div_ceil(WG))
}
