//! Attention to compressed values, after `nsa_probs`: the first branch of NSA.

use super::{KvShape, block_digest};
use crate::declare::FLOATS;
use crate::rows::{DecodeRow, PhysicalBlock};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`NsaAttendBuffers`] lists its bindings.
    "nsa_attend"(NsaAttendParams, NsaAttendBuffers): Attention,
    grid: |params, _| [params.num_heads, params.rows, 1],
    listed: |sizes| sizes.each(&FLOATS, |shape| variant(shape, sizes.select(64))),
    variants: "digests f16, f32",
    bytes: "`2 * Hkv * D` per page of a row, once more (from caches) for each head of a group",
    cases: crate::self_test::retrieval::nsa_attend,
}

params! {
    /// Uniform parameters.
    pub struct NsaAttendParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one head's probabilities to the next.
        pub prob_stride: u32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `nsa_attend`.
    pub struct NsaAttendBuffers(NsaAttendParams) {
        /// Probabilities of compressed keys, `[n, num_heads, prob_stride]`.
        read probs: f32,
        /// Mean values of full pages by `block_digest`, `[num_blocks, num_kv_heads, head_dim]`: f32 for caches in f32, else
        /// f16.
        read digests: u32,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Output, `[rows, num_heads, head_dim]`.
        write out: f32,
    }
}

/// Returns the variant for compressed values of `block` consecutive tokens.
///
/// # Panics
/// When `block` is not a multiple of the page size.
#[must_use]
pub fn variant(shape: &KvShape, block: u32) -> Variant {
    shape.check();
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::PAGES, shape.pages_of(block))
        .set(block_digest::READ, block_digest::dtype(shape.dtype))
}
