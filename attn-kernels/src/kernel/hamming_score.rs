//! Block scores by Hamming distance, for hash retrieval.

use super::KvShape;
use crate::Variant;
use crate::declare::one;
use crate::rows::{DecodeRow, PhysicalBlock};
use crate::slot::{self, Number};

kernel! {
    /// The kernel; [`HammingScoreBuffers`] lists its bindings.
    "hamming_score"(HammingScoreParams, HammingScoreBuffers): Selection,
    grid: |params, variant| {
        let select_block = variant.number(slot::PAGES) * variant.number(slot::BLOCK_SIZE);
        [params.score_stride.div_ceil((256 / select_block).max(1)), params.rows, 1]
    },
    listed: |sizes| one(variant(&sizes.f16(), sizes.select(128), 4)),
    variants: "one",
    bytes: "`4 * words * Hkv` per token of a row",
    cases: crate::self_test::retrieval::hamming_score,
}

params! {
    /// Uniform parameters.
    pub struct HammingScoreParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 between successive rows of scores: at least the maximum number of blocks of a row.
        pub score_stride: u32,
        /// Number of tokens at the start that count as distance 0.
        pub sink_tokens: u32,
        /// Number of tokens at the end that count as distance 0.
        pub recent_tokens: u32,
        /// Indices of blocks that are always selected, in the first `num_must` elements; negative ones count from the
        /// end.
        pub must_select: [i32; 4],
        /// Number of indices in `must_select`, at most 4.
        pub num_must: u32,
        /// Positive infinity, as a parameter because WGSL cannot write it.
        pub infinity: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `hamming_score`.
    pub struct HammingScoreBuffers(HammingScoreParams) {
        /// Codes of queries, `[n, num_kv_heads, words]`.
        read queries: u32,
        /// Codes of keys, `[num_blocks, num_kv_heads, block_size, words]` of `hash_codes`.
        read codes: u32,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores of blocks, `[n, score_stride]`: +inf for blocks in `must_select` (negative ones count from the end),
        /// -inf beyond the sequence; the first `sink_tokens` and the last `recent_tokens` are at distance 0.
        write scores: f32,
    }
}

/// Number of words of a code.
pub(crate) const WORDS: Number = Number("WORDS");

/// Returns the variant for pages of this shape, blocks of `select_block` tokens and codes of `words` u32.
///
/// # Panics
/// When `select_block` is not a multiple of the page size.
#[must_use]
pub fn variant(shape: &KvShape, select_block: u32, words: u32) -> Variant {
    shape.check();
    Variant::new(&KERNEL)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::PAGES, shape.pages_of(select_block))
        .set(WORDS, words)
}
