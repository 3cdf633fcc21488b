//! Rounds rows to f16, directly or after an RMS norm: the activations of [`matmul_coop`](super::matmul_coop).

use attn_kernels::{Level, Variant, bindings, kernel, params, slot};

use super::quantize_rows::Input;

kernel! {
    /// The kernel; [`RoundRowsBuffers`] lists its bindings.
    "round_rows"(RoundRowsParams, RoundRowsBuffers): Dense,
    grid: |params, _| [params.rows, 1, 1],
    modules: [super::MODULES],
    listed: |_| Input::listed(variant),
    variants: "as it is, or after an RMS norm; reductions by tree or subgroup",
    bytes: "`6` per element",
    cases: crate::self_test::matmul::round_rows,
}

params! {
    /// Uniform parameters.
    pub struct RoundRowsParams {
        /// Number of rows.
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
    /// Buffers of `round_rows`.
    pub struct RoundRowsBuffers(RoundRowsParams) {
        /// Rows, `[rows, 4 * x_stride]`.
        read x: f32,
        /// Rows in f16, two to a word, `[rows, 32 * blocks]`.
        write halves: [u32; 2],
        /// Weight of the RMS norm before the rounding.
        read weight: f32 = None,
    }
}

/// Returns the variant for one kind of input.
#[must_use]
pub fn variant(input: Input, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .with_if("weight", input == Input::Normed)
        .set(slot::WG, 256)
        .by_level(slot::REDUCE, level)
        .set(super::quantize_rows::NORM, input)
}
