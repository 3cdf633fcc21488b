//! Weighs and adds the outputs of a row's experts.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Kernel, Params, Variant, bindings, params};

use super::ExpertTerms;

/// The kernel; [`MoeCombineBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "moe_combine",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/moe_combine.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: MoeCombineParams::LAYOUT,
    bindings: MoeCombineBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct MoeCombineParams {
        /// Rows.
        pub rows: u32,
        /// Elements a row.
        pub width: u32,
    }
}

bindings! {
    /// Buffers of `moe_combine`.
    pub struct MoeCombineBuffers(MoeCombineParams) {
        /// Outputs of experts, `[rows, top, width]`.
        read x: f32,
        /// Experts of each row, `[rows, top]`.
        read experts: u32,
        /// Their weights, `[rows, top]`.
        read weights: f32,
        /// Biases of experts, `[experts, width]`, where there are some.
        read biases: f32,
        /// Rows that the sum is added to, `[rows, width]`.
        write y: f32,
    }
}

const WG: u32 = 64;

/// The kernel for `top` experts a row: the bias of each is added first, absent weights count as 1.
#[must_use]
pub fn variant(top: u32, ExpertTerms { biased, weighted }: ExpertTerms) -> Variant {
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
