//! Rows of the embedding, dequantised.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: tokens, wq, ws, out.
pub static KERNEL: Kernel = Kernel {
    name: "embed",
    wgsl: include_str!("../../wgsl/embed.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<EmbedParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct EmbedParams {
    /// Tokens.
    pub rows: u32,
    /// First token of this shard of the matrix.
    pub first: u32,
    /// Tokens of this shard.
    pub cols: u32,
    /// Elements of a row, a multiple of 4.
    pub width: u32,
}

const WG: u32 = 64;

/// The kernel for one storage type.
#[must_use]
pub fn variant(weights: &'static str) -> Variant {
    Variant::new(&KERNEL).module("weights", weights).constant("WG", WG)
}

/// Workgroups for `rows` tokens of `width` elements.
#[must_use]
pub fn grid(rows: u32, width: u32) -> [u32; 3] {
    flat_grid((rows * width.div_ceil(32)).div_ceil(WG))
}
