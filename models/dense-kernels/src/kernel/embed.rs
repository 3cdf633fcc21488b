//! Rows of the embedding, dequantised, times a factor.

use super::matmul;
use crate::pack::Format;
use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::kernel::flat_grid;
use attn_kernels::{Variant, bindings, kernel, params};

use super::matmul::WEIGHTS;
kernel! {
    /// The kernel; [`EmbedBuffers`] lists its bindings.
    "embed"(EmbedParams, EmbedBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.width.div_ceil(32)).div_ceil(WG)),
    modules: [super::MODULES],
    listed: listed,
    variants: "all encodings",
    bytes: "times a factor, the rows of the matrix, and `4 * width` per token",
    cases: crate::self_test::matmul::embed,
}

fn listed(_: &Sizes) -> Listed {
    let images = ("q4-images".into(), matmul::from_images(variant(Format::Q4)));
    Format::listed(variant).into_iter().chain([images]).collect()
}

params! {
    /// Uniform parameters.
    pub struct EmbedParams {
        /// Number of tokens.
        pub rows: u32,
        /// First token of this shard of the matrix.
        pub first: u32,
        /// Number of tokens of this shard.
        pub cols: u32,
        /// Number of elements of a row, a multiple of 4.
        pub width: u32,
        /// Factor on all elements.
        pub scale: f32,
    }
}

bindings! {
    /// Buffers of `embed`.
    pub struct EmbedBuffers(EmbedParams) {
        /// Tokens, `[rows]`.
        read tokens: u32,
        /// Quants of the embedding, in the layout of its format.
        read wq: [u32; 4],
        /// Scales of the embedding.
        read ws: u32,
        /// Rows, `[rows, width]`, of a width that is a multiple of 4.
        write out: f32,
    }
}

const WG: u32 = 64;

/// Returns the variant for one storage type.
#[must_use]
pub fn variant(weights: Format) -> Variant {
    Variant::new(&KERNEL).set_data(WEIGHTS, weights, weights.label()).constant("WG", WG)
}
