//! First half of the experts of few rows: both of its matrices, the activation, and the result as codes of 8 bits.
//!
//! A dispatch of one workgroup for every 32 elements of a pair of a row and an expert takes the place of products of sorted
//! pairs, [`glu`] and [`quantize_rows`](super::quantize_rows). Pairs that share an expert read its matrices once
//! each, so this is for fewer pairs than there are experts.

use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::profile::Registers;
use attn_kernels::{Variant, bindings, kernel, params};

use super::glu::{self, BIASED};
use super::matmul::{SLICES, WEIGHTS};
use super::matmul_int8::BATCH;
use super::moe_combine::TOP;
use crate::MoeConfig;
use crate::pack::Format;

kernel! {
    /// The kernel; [`ExpertGateUpBuffers`] lists its bindings.
    "expert_gate_up"(ExpertGateUpParams, ExpertGateUpBuffers): Dense,
    grid: |params, _| [params.inner / COLUMNS, params.pairs, 1],
    modules: [super::MODULES],
    listed: listed,
    variants: "nine encodings of at most 8 bits; experts a row; three activations; biased; less in flight for *few registers*",
    bytes: "the columns of both matrices once for each pair, `1.25` per activation and workgroup",
    cases: crate::self_test::moe::expert_gate_up,
}

fn listed(_: &Sizes) -> Listed {
    let silu = Experts { top: 8, kind: 0, biased: false };
    let limited = Experts { kind: 1, ..silu };
    let swiglu = Experts { top: 4, kind: 2, biased: true };
    let few = [
        ("q4k-lean", variant(Format::Q4K, silu, Registers::Few)),
        ("q4k-limited", variant(Format::Q4K, limited, Registers::Many)),
        ("mxfp4-swiglu", variant(Format::Mxfp4, swiglu, Registers::Many)),
    ];
    let few = few.map(|(part, variant)| (part.to_owned(), variant));
    Format::listed_codes(|format| variant(format, silu, Registers::Many)).into_iter().chain(few).collect()
}

params! {
    /// Uniform parameters.
    pub struct ExpertGateUpParams {
        /// Number of pairs of a row and an expert.
        pub pairs: u32,
        /// Width of the gate and of the up projection, a multiple of 32.
        pub inner: u32,
        /// Number of blocks of 32 along k.
        pub blocks: u32,
        /// Number of experts of this dispatch.
        pub matrices: u32,
        /// Index of the first expert of this dispatch.
        pub first_matrix: u32,
        /// Slope of the sigmoid of gates, for the activation of gpt-oss.
        pub alpha: f32,
        /// Upper limit of gates, and limit of the magnitude of ups.
        pub limit: f32,
    }
}

bindings! {
    /// Buffers of `expert_gate_up`.
    pub struct ExpertGateUpBuffers(ExpertGateUpParams) {
        /// Codes of activations, `[rows, blocks, 2]`.
        read x: [u32; 4],
        /// Scale and scaled sum of each block of codes, `[rows, blocks]`.
        read scales: [f32; 2],
        /// Quants of the weights, in the layout of their format.
        read wq: [u32; 4],
        /// Scales of the weights, in the layout of their format.
        read ws: u32,
        /// Expert of each pair, `[pairs]`.
        read experts: u32,
        /// Biases of experts, `[experts, 2, inner]`, if there are any.
        read biases: f32,
        /// Codes of the results, `[pairs, inner / 32, 8]`.
        write codes_out: u32,
        /// Scale and scaled sum of each block of the results, `[pairs, inner / 32]`.
        write scales_out: [f32; 2],
    }
}

/// Properties of a model's experts that kernels are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Experts {
    /// Number of experts per row.
    pub top: u32,
    /// Kind of activation: see [`glu`].
    pub kind: u32,
    /// Whether the experts have biases.
    pub biased: bool,
}

impl From<&MoeConfig> for Experts {
    fn from(moe: &MoeConfig) -> Self {
        Self { top: moe.top_k, kind: glu::kind(moe.activation), biased: moe.biases }
    }
}

/// Number of columns of a workgroup: a block of codes.
pub const COLUMNS: u32 = 32;

/// Returns the variant for one storage type of weights, for lanes with `registers`.
#[must_use]
pub fn variant(weights: Format, experts: Experts, registers: Registers) -> Variant {
    let batch = if registers == Registers::Few { 1 } else { 4 };
    Variant { registers: Some(registers), ..Variant::new(&KERNEL) }
        .set_data(WEIGHTS, weights, weights.label())
        .set(TOP, experts.top)
        .set(glu::KIND, experts.kind)
        .set(BIASED, experts.biased)
        .set(SLICES, 8)
        .set(BATCH, batch)
}
