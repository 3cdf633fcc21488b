//! Scores of blocks from the attention over compressed keys, for NSA.

use crate::Variant;
use crate::declare::one;
use crate::rows::DecodeRow;
use crate::slot::{self, Number};

kernel! {
    /// The kernel; [`NsaBlockScoreBuffers`] lists its bindings.
    "nsa_block_score"(NsaBlockScoreParams, NsaBlockScoreBuffers): Selection,
    grid: |params, _| [params.score_stride.div_ceil(64), params.num_kv_heads, params.rows],
    listed: |_| one(variant(32, 16, 64)),
    variants: "one",
    bytes: "`4 * H` per compressed block of a row",
    cases: crate::self_test::retrieval::nsa_block_score,
}

params! {
    /// Uniform parameters.
    pub struct NsaBlockScoreParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one head's probabilities to the next.
        pub prob_stride: u32,
        /// Number of f32 from one KV head's scores to the next.
        pub score_stride: u32,
        /// Number of tokens from one compressed block to the next.
        pub stride: u32,
        /// Number of blocks at the start that are always selected.
        pub init_blocks: u32,
        /// Number of blocks at the end that are always selected.
        pub local_blocks: u32,
        /// Infinity, which WGSL cannot write.
        pub infinity: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `nsa_block_score`.
    pub struct NsaBlockScoreBuffers(NsaBlockScoreParams) {
        /// Probs, `[n, num_heads, prob_stride]`; only blocks that a row sees are read.
        read probs: f32,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores, `[n, num_kv_heads, score_stride]`: +inf for the first init_blocks and the last local_blocks, -inf beyond the
        /// sequence.
        write scores: f32,
    }
}

/// Number of strides of a compressed key.
pub(crate) const KERNEL_STRIDES: Number = Number("KERNEL");

/// Returns the variant for compressed blocks of `kernel_size` tokens, `stride` apart, and selection blocks of `block`
/// tokens; 32, 16 and 64 as published.
///
/// # Panics
/// When either is not a multiple of `stride`.
#[must_use]
pub fn variant(kernel_size: u32, stride: u32, block: u32) -> Variant {
    assert!(kernel_size.is_multiple_of(stride), "compressed blocks of {kernel_size} at stride {stride}");
    assert!(block.is_multiple_of(stride), "selection blocks of {block} at stride {stride}");
    Variant::new(&KERNEL).set(KERNEL_STRIDES, kernel_size / stride).set(slot::BLOCK, block / stride)
}
