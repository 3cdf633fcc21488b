//! Weighs and adds the outputs of a row's experts.

use attn_kernels::declare::one;
use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::Number;
use attn_kernels::{Variant, bindings, kernel, params};

use super::ExpertTerms;

kernel! {
    /// The kernel; [`MoeCombineBuffers`] lists its bindings.
    "moe_combine"(MoeCombineParams, MoeCombineBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.width).div_ceil(WG)),
    modules: [super::MODULES],
    listed: |_| one(variant(4, ExpertTerms { biased: true, weighted: true })),
    variants: "experts a row; biased; weighted",
    bytes: "`4 * width * (K + 2)` per row",
    cases: crate::self_test::moe::combine,
}

params! {
    /// Uniform parameters.
    pub struct MoeCombineParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of elements a row.
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
        /// Weights of the experts, `[rows, top]`.
        read weights: f32,
        /// Biases of experts, `[experts, width]`, if there are any.
        read biases: f32,
        /// Rows that the sum is added to, `[rows, width]`.
        write y: f32,
    }
}

const WG: u32 = 64;

/// Number of experts of a row.
pub(crate) const TOP: Number = Number("TOP");

/// Returns the variant for `top` experts per row. The bias of each expert is added first; absent weights count as 1.
#[must_use]
pub fn variant(top: u32, ExpertTerms { biased, weighted }: ExpertTerms) -> Variant {
    Variant::new(&KERNEL)
        .set(TOP, top)
        .set(super::glu::BIASED, biased)
        .set(super::glu::WEIGHTED, weighted)
        .constant("WG", WG)
}
