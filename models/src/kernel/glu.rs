//! The gated unit between the matrices of an MLP or an expert.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Kernel, Params, Variant, bindings, params};

use super::ExpertTerms;
use crate::Activation;

/// The kernel; [`GluBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "glu",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/glu.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: GluParams::LAYOUT,
    bindings: GluBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct GluParams {
        /// Rows.
        pub rows: u32,
        /// Width of gate and of up.
        pub inner: u32,
        /// f32 from row to row of out.
        pub out_stride: u32,
        /// Slope of the gate's sigmoid, in kind 2.
        pub alpha: f32,
        /// Upper limit of gates, and limit of the magnitude of ups.
        pub limit: f32,
    }
}

bindings! {
    /// Buffers of `glu`.
    pub struct GluBuffers(GluParams) {
        /// Gate then up of each row, `[rows, 2, inner]`.
        read x: f32,
        /// Expert of each row, `[rows]`, whose biases are added.
        read experts: u32,
        /// Weight of each row, `[rows]`, where inputs are weighed.
        read weights: f32,
        /// Biases of experts, `[experts, 2, inner]`, where there are some.
        read biases: f32,
        /// Rows, `[rows, out_stride]`.
        write out: f32,
    }
}

const WG: u32 = 64;

/// The kernel for one activation: rows are multiplied by their weights, and the biases of their experts are added, first.
#[must_use]
pub fn variant(activation: Activation, ExpertTerms { biased, weighted }: ExpertTerms) -> Variant {
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
