//! Converts rows to codes of 8 bits, directly or after an RMS norm: the activations of
//! [`matmul_int8`](super::matmul_int8).
//!
//! A block of 32 elements shares one scale, its largest magnitude over 127: the coding that llama.cpp calls `Q8_1`.

use attn_kernels::declare::Listed;
use attn_kernels::declare::levels;
use attn_kernels::slot::{self, OneOf};
use attn_kernels::{Level, Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`QuantizeRowsBuffers`] lists its bindings.
    "quantize_rows"(QuantizeRowsParams, QuantizeRowsBuffers): Dense,
    grid: |params, _| [params.blocks.div_ceil(LANES / 8), params.rows, 1],
    modules: [super::MODULES],
    listed: |_| Input::listed(variant),
    variants: "as it is, or after an RMS norm; reductions by tree or subgroup",
    bytes: "`5.25` per element; normed, `4` more for each 1,024 of the row",
    cases: crate::self_test::matmul::quantize_rows,
}

params! {
    /// Uniform parameters.
    pub struct QuantizeRowsParams {
        /// Number of rows of x.
        pub rows: u32,
        /// Number of blocks of 32 in a row.
        pub blocks: u32,
        /// Number of vec4 from one row of x to the next.
        pub x_stride: u32,
        /// Epsilon added to the mean square, for rows after a norm.
        pub eps: f32,
    }
}

bindings! {
    /// Buffers of `quantize_rows`.
    pub struct QuantizeRowsBuffers(QuantizeRowsParams) {
        /// Rows, `[rows, 4 * x_stride]`.
        read x: f32,
        /// Codes, `[rows, blocks, 8]` words, element `i` of a block in byte `i % 4` of word `i / 4`, signed.
        write codes: [u32; 4],
        /// Scale, and scale times the sum of codes, of each block, `[rows, blocks]`.
        write scales: [f32; 2],
        /// Weight of the RMS norm before the rounding.
        read weight: f32 = None,
    }
}

/// Number of lanes of a workgroup; each converts four elements.
const LANES: u32 = 256;

/// Treatment of rows before they become codes, or f16.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// Rows without a norm.
    Plain,
    /// Rows after an RMS norm.
    Normed,
}

impl Input {
    /// The variants for each input at both levels.
    pub(super) fn listed(variant: impl Fn(Self, Level) -> Variant) -> Listed {
        let inputs = [("plain", Self::Plain), ("normed", Self::Normed)];
        levels(|level| inputs.map(|(part, input)| (part.into(), variant(input, level))).into())
    }
}

/// Treatment of rows before the conversion.
pub(crate) const NORM: OneOf<Input> =
    OneOf::new("norm", &[(Input::Plain, "norm_none"), (Input::Normed, "norm_rms")]);

/// Returns the variant for one kind of input.
#[must_use]
pub fn variant(input: Input, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .with_if("weight", input == Input::Normed)
        .set(slot::WG, LANES)
        .by_level(slot::REDUCE, level)
        .set(NORM, input)
}
