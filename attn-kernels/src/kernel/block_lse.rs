//! Log-sum-exp of the logits of blocks that a certified selection must know: the blocks that [`mass_cut`](super::mass_cut)
//! added.

use super::{KvShape, heads_together};
use crate::declare::TYPES;
use crate::rows::{DecodeRow, KvWord, PhysicalBlock};
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`BlockLseBuffers`] lists its bindings.
    "block_lse"(BlockLseParams, BlockLseBuffers): Selection,
    grid: |params, variant| {
        let select_block = variant.number(slot::PAGES) * variant.number(slot::BLOCK_SIZE);
        [params.stride.div_ceil((LANES / select_block).max(1)), params.num_kv_heads, params.rows]
    },
    listed: |sizes| sizes.each(&TYPES, |shape| variant(shape, sizes.num_heads, sizes.select(64))),
    variants: "f16, f32, fp8, int8",
    bytes: "the keys of the blocks that `mass_cut` added, once for each 4 heads of a group, and `4 * H` each",
    cases: crate::self_test::mass_cut::block_lse,
}

params! {
    /// Uniform parameters.
    pub struct BlockLseParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Number of f32 between the scores or log-sum-exps of successive rows and heads: at least the maximum number
        /// of blocks of a row.
        pub stride: u32,
        /// Factor by which attention multiplies `q·k`.
        pub scale: f32,
        /// Flag: 1 if only the last block of each row is computed, and cuts are not read.
        pub first: u32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `block_lse`.
    pub struct BlockLseBuffers(BlockLseParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores, `[n, num_kv_heads, stride]` of `block_score`, which order the blocks.
        read scores: f32,
        /// Cuts of `mass_cut`, `[n, num_kv_heads]`: sort key and index of the last known block, then those of the
        /// last kept block.
        read cuts: [u32; 4],
        /// Log-sum-exps (natural logarithm), `[n, num_heads, stride]`.
        write lses: f32,
    }
}

/// Number of lanes of a workgroup. Each lane has a token.
const LANES: u32 = 256;

/// Returns the variant for one cache and blocks of `select_block` tokens.
///
/// # Panics
/// When `select_block` is not a power of two and a multiple of the page size.
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, select_block: u32) -> Variant {
    shape.check();
    assert!(select_block.is_power_of_two(), "selection block {select_block} is not a power of two");
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::PAGES, shape.pages_of(select_block))
        .set(slot::HEADS, heads_together(num_heads / shape.num_kv_heads, 4))
        .over_cache(super::KEYS, shape)
}
