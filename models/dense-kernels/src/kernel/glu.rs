//! The gated unit between the matrices of an MLP or an expert.

use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::{Flag, Number};
use attn_kernels::{Variant, bindings, kernel, params};

use super::ExpertTerms;
use crate::Activation;

kernel! {
    /// The kernel; [`GluBuffers`] lists its bindings.
    "glu"(GluParams, GluBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.inner).div_ceil(WG)),
    modules: [super::MODULES],
    listed: listed,
    variants: "three activations; biased; weighted",
    bytes: "`12 * inner` per row",
    cases: crate::self_test::moe::gate,
}

fn listed(_: &Sizes) -> Listed {
    let swiglu = Activation::LimitedSwiglu { alpha: 1.702, limit: 7.0 };
    vec![
        ("silu".into(), variant(Activation::Silu, ExpertTerms { biased: false, weighted: true })),
        ("limited".into(), variant(Activation::LimitedSilu { limit: 10.0 }, ExpertTerms::NONE)),
        ("swiglu".into(), variant(swiglu, ExpertTerms { biased: true, weighted: false })),
    ]
}

params! {
    /// Uniform parameters.
    pub struct GluParams {
        /// Number of rows.
        pub rows: u32,
        /// Width of the gate and of the up projection.
        pub inner: u32,
        /// Number of f32 from one row of out to the next.
        pub out_stride: u32,
        /// Slope of the sigmoid of gates, for the activation of gpt-oss.
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
        /// Weight of each row, `[rows]`, if inputs are weighted.
        read weights: f32,
        /// Biases of experts, `[experts, 2, inner]`, if there are any.
        read biases: f32,
        /// Rows, `[rows, out_stride]`.
        write out: f32,
    }
}

const WG: u32 = 64;

/// Kind of activation.
pub(crate) const KIND: Number = Number("KIND");
/// Whether there are biases of experts.
pub(crate) const BIASED: Flag = Flag("BIASED");
/// Whether rows have weights.
pub(crate) const WEIGHTED: Flag = Flag("WEIGHTED");

/// Returns the variant for one activation. Rows are first multiplied by their weights, and the biases of their experts are added.
#[must_use]
pub fn variant(activation: Activation, ExpertTerms { biased, weighted }: ExpertTerms) -> Variant {
    Variant::new(&KERNEL)
        .set(KIND, kind(activation))
        .set(BIASED, biased)
        .set(WEIGHTED, weighted)
        .constant("WG", WG)
}

/// Value of [`KIND`].
pub(crate) fn kind(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::LimitedSilu { .. } => 1,
        Activation::LimitedSwiglu { .. } => 2,
    }
}
