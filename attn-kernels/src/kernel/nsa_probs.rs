//! Attention to compressed keys, for NSA: `nsa_block_score` computes scores of blocks from it.

use super::{KvShape, block_digest};
use crate::declare::FLOATS;
use crate::rows::{DecodeRow, PhysicalBlock};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`NsaProbsBuffers`] lists its bindings.
    "nsa_probs"(NsaProbsParams, NsaProbsBuffers): Selection,
    grid: |params, _| [params.num_heads, params.rows, 1],
    listed: |sizes| sizes.each(&FLOATS, |shape| variant(shape, 2 * sizes.select(16), sizes.select(16))),
    variants: "digests f16, f32",
    bytes: "`2 * Hkv * D` per page of a row, once more (from caches) for each head of a group",
    cases: crate::self_test::retrieval::nsa_probs,
}

params! {
    /// Uniform parameters.
    pub struct NsaProbsParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Number of f32 between the probabilities of successive heads: at least the number of full strides of the
        /// longest row.
        pub prob_stride: u32,
        /// Factor on scores, such as `1 / sqrt(head_dim)`.
        pub scale: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `nsa_probs`.
    pub struct NsaProbsBuffers(NsaProbsParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Means of full pages by `block_digest`, `[num_blocks, num_kv_heads, head_dim]`: f32 for caches in f32, else f16.
        read digests: u32,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Probs, `[n, num_heads, prob_stride]`; 0 beyond the compressed blocks of a row.
        write probs: f32,
    }
}

/// Returns the variant for compressed keys of `kernel_size` tokens, `stride` apart, over digests of mean keys.
///
/// # Panics
/// When `stride` is not a multiple of the page size, or `kernel_size` of `stride`.
#[must_use]
pub fn variant(shape: &KvShape, kernel_size: u32, stride: u32) -> Variant {
    shape.check();
    let page = shape.block_size;
    assert!(stride >= page && stride.is_multiple_of(page), "strides of {stride} over pages of {page}");
    assert!(kernel_size.is_multiple_of(stride), "compressed keys of {kernel_size} at stride {stride}");
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, page)
        .set(slot::PAGES, stride / page)
        .set(super::nsa_block_score::KERNEL_STRIDES, kernel_size / stride)
        .set(block_digest::READ, block_digest::dtype(shape.dtype))
}
