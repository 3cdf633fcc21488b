//! Second half of the experts of few rows: the products with the results of [`expert_gate_up`](super::expert_gate_up), weighed
//! and added to the row in one dispatch.

use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::profile::Registers;
use attn_kernels::{Variant, bindings, kernel, params};

use super::expert_gate_up::Experts;
use super::glu::BIASED;
use super::matmul::{COLS, SLICES, WEIGHTS};
use super::matmul_int8::BATCH;
use super::moe_combine::TOP;
use crate::pack::Format;

kernel! {
    /// The kernel; [`ExpertDownBuffers`] lists its bindings.
    "expert_down"(ExpertDownParams, ExpertDownBuffers): Dense,
    grid: |params, _| [params.width.div_ceil(COLUMNS), params.rows, 1],
    modules: [super::MODULES],
    listed: listed,
    variants: "nine encodings of at most 8 bits; experts a row; biased; less in flight for *few registers*",
    bytes: "the matrix once for each pair, `1.25` per activation and workgroup",
    cases: crate::self_test::moe::expert_down,
}

fn listed(_: &Sizes) -> Listed {
    let plain = Experts { top: 8, kind: 0, biased: false };
    let biased = Experts { top: 4, biased: true, ..plain };
    let few = [
        ("q4k-lean", variant(Format::Q4K, plain, Registers::Few)),
        ("mxfp4-biased", variant(Format::Mxfp4, biased, Registers::Many)),
    ];
    let few = few.map(|(part, variant)| (part.to_owned(), variant));
    let all = Format::listed_codes(|format| variant(format, plain, Registers::Many));
    all.into_iter().chain(few).collect()
}

params! {
    /// Uniform parameters.
    pub struct ExpertDownParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of columns of a matrix.
        pub width: u32,
        /// Number of blocks of 32 along k.
        pub blocks: u32,
        /// Number of experts of this dispatch.
        pub matrices: u32,
        /// Index of the first expert of this dispatch.
        pub first_matrix: u32,
    }
}

bindings! {
    /// Buffers of `expert_down`.
    pub struct ExpertDownBuffers(ExpertDownParams) {
        /// Codes of the inputs of down projections, `[rows, top, blocks, 2]`.
        read x: [u32; 4],
        /// Scale and scaled sum of each block of codes, `[rows, top, blocks]`.
        read scales: [f32; 2],
        /// Quants of the weights, in the layout of their format.
        read wq: [u32; 4],
        /// Scales of the weights, in the layout of their format.
        read ws: u32,
        /// Experts of each row, `[rows, top]`.
        read experts: u32,
        /// Factors on the outputs of experts, `[rows, top]`.
        read factors: f32,
        /// Biases of experts, `[experts, width]`, if there are any.
        read biases: f32,
        /// Rows that the sum is added to, `[rows, width]`.
        write y: f32,
    }
}

/// Number of lanes along columns.
const COLUMNS: u32 = 8;

/// Returns the variant for one storage type of weights, for lanes with `registers`.
#[must_use]
pub fn variant(weights: Format, experts: Experts, registers: Registers) -> Variant {
    let batch = if registers == Registers::Few { 1 } else { 4 };
    Variant { registers: Some(registers), ..Variant::new(&KERNEL) }
        .set_data(WEIGHTS, weights, weights.label())
        .set(TOP, experts.top)
        .set(BIASED, experts.biased)
        .set(COLS, COLUMNS)
        .set(SLICES, 32)
        .set(BATCH, batch)
}
