//! What the experts of a row made of it, weighed and added.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: x, experts, weights, biases, y.
pub static KERNEL: Kernel = Kernel {
    name: "moe_combine",
    wgsl: include_str!("../../wgsl/moe_combine.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<MoeCombineParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MoeCombineParams {
    /// Rows.
    pub rows: u32,
    /// Elements a row.
    pub width: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

const WG: u32 = 64;

/// The kernel for `top` experts a row; `biased` adds the expert's bias, unless `weighted` weights count as 1.
#[must_use]
pub fn variant(top: u32, biased: bool, weighted: bool) -> Variant {
    Variant::new(&KERNEL)
        .size("TOP", top)
        .size("BIASED", u32::from(biased))
        .size("WEIGHTED", u32::from(weighted))
        .constant("WG", WG)
}

/// Workgroups for `rows` rows of `width` elements.
#[must_use]
pub fn grid(rows: u32, width: u32) -> [u32; 3] {
    flat_grid((rows * width).div_ceil(WG))
}
