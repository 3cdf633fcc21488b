//! Queries of a chunk in the order in which `strided_qk` multiplies them: the first step of XAttention.

use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::slot::{self, Flag};

kernel! {
    /// The kernel; [`StrideQueriesBuffers`] lists its bindings.
    "stride_queries"(StrideQueriesParams, StrideQueriesBuffers): Selection,
    grid: |params, variant| {
        let chunks = variant.number(slot::HEAD_DIM) / 8 * variant.number(slot::STRIDE);
        [chunks.div_ceil(WG), params.rows, params.num_heads]
    },
    listed: listed,
    variants: "strides in f16, for matrices, or f32",
    bytes: "`4 * D` per query and head, and `2` or `4` times `D` per token of a row",
    cases: crate::self_test::xattn::stride_queries,
}

fn listed(sizes: &Sizes) -> Listed {
    [("f16", StrideType::F16), ("f32", StrideType::F32)]
        .map(|(part, to)| (part.into(), variant(sizes.head_dim, 8, to)))
        .into()
}

params! {
    /// Uniform parameters; [`Estimate`](super::xattn::Estimate) fills them in.
    #[derive(PartialEq, Eq)]
    pub struct StrideQueriesParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of f32 from one query row to the next, a multiple of 4.
        pub q_stride: u32,
        /// Row of q of the chunk's first query.
        pub q_first: u32,
        /// Number of queries of the chunk.
        pub q_len: u32,
        /// Number of zero queries before the first, which align the chunk with the key blocks.
        pub front: u32,
        /// First row of this dispatch, in strides of queries.
        pub first_row: u32,
        /// Number of rows of this dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `stride_queries`.
    pub struct StrideQueriesBuffers(StrideQueriesParams) {
        /// Queries, rows of `q_stride` f32 that begin with `[num_heads, head_dim]`. The chunk's first query is row `q_first`;
        /// `front` zero queries that are not in the buffer precede it.
        read q: f32,
        /// Rows of strides, `[num_heads, rows, head_dim / 8, stride, 8]`, two f16 or an f32 a word: channels of the tokens of a
        /// stride, the last token first, zeros beyond either end of the chunk.
        write strides: u32,
    }
}

/// Type of the strides that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrideType {
    /// Values rounded to f16, two in a word, for cooperative matrices.
    F16,
    /// Values in f32, without rounding.
    F32,
}

impl StrideType {
    /// Returns the number of words of a row of strides: `stride` queries of `head_dim` channels.
    #[must_use]
    pub const fn row_words(self, head_dim: u32, stride: u32) -> u32 {
        match self {
            Self::F16 => head_dim * stride / 2,
            Self::F32 => head_dim * stride,
        }
    }
}

/// Number of lanes of a workgroup.
const WG: u32 = 64;

/// Whether strides are in f16.
pub(crate) const HALVES: Flag = Flag("HALVES");

/// Returns the variant for heads of `head_dim` channels.
///
/// # Panics
/// If `head_dim` is not a multiple of 8.
#[must_use]
pub fn variant(head_dim: u32, stride: u32, to: StrideType) -> Variant {
    assert!(head_dim.is_multiple_of(8), "heads of {head_dim} channels are not a multiple of 8");
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, head_dim)
        .set(slot::STRIDE, stride)
        .set(HALVES, to == StrideType::F16)
}
