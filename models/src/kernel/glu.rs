//! The gated unit between the matrices of an MLP or an expert.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

use crate::Activation;

/// Bindings: x, experts, weights, biases, out.
pub static KERNEL: Kernel = Kernel {
    name: "glu",
    wgsl: include_str!("../../wgsl/glu.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<GluParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GluParams {
    /// Rows.
    pub rows: u32,
    /// Width of gate and of up.
    pub inner: u32,
    /// f32 from row to row of out.
    pub out_stride: u32,
    /// Slope of the gate's sigmoid, in kind 2.
    pub alpha: f32,
    /// Largest gate, and largest up in size.
    pub limit: f32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

const WG: u32 = 64;

/// The kernel for one activation; `biased` adds the biases of the row's expert, `weighted` multiplies by its weight first.
#[must_use]
pub fn variant(activation: Activation, biased: bool, weighted: bool) -> Variant {
    let kind = match activation {
        Activation::Silu => 0,
        Activation::LimitedSilu { .. } => 1,
        Activation::LimitedSwiglu { .. } => 2,
    };
    Variant::new(&KERNEL)
        .size("KIND", kind)
        .size("BIASED", u32::from(biased))
        .size("WEIGHTED", u32::from(weighted))
        .constant("WG", WG)
}

/// Workgroups for `rows` rows of `inner` elements.
#[must_use]
pub fn grid(rows: u32, inner: u32) -> [u32; 3] {
    flat_grid((rows * inner).div_ceil(WG))
}
