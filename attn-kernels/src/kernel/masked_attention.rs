//! Attention to listed blocks under a boolean mask over the whole context, with scattered outputs: the gather-scatter
//! form of gather-based sparse attention (GSA).

use super::attention::Attention;
use super::{KvLayout, KvShape};
use crate::declare::{Listed, Sizes};
use crate::rows::{KvWord, PhysicalBlock};
use crate::{Variant, slot};
use bytemuck::{Pod, Zeroable};

kernel! {
    /// The kernel; [`MaskedAttentionBuffers`] lists its bindings.
    "masked_attention"(MaskedAttentionParams, MaskedAttentionBuffers): Attention,
    grid: |params, _| {
        let [y, z, _] = super::flat_grid(params.rows);
        [params.num_heads, y, z]
    },
    listed: listed,
    variants: "f16, f32, fp8, int8, each in the v0 layout too",
    bytes: "`4 * H * D` per listed key and row, of which caches serve the heads of a group",
    cases: crate::self_test::masked_attention::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    sizes.each_layout(&[KvLayout::Native, KvLayout::V0], |shape| variant(shape, sizes.select(64)))
}

params! {
    /// Uniform parameters.
    pub struct MaskedAttentionParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Number of entries from one list of selected blocks to the next.
        pub list_stride: u32,
        /// Number of u32 between successive masks, which have a bit for each position.
        pub mask_stride: u32,
        /// Number of rows.
        pub rows: u32,
        /// Factor on scores, usually `1 / sqrt(head_dim)`.
        pub scale: f32,
        /// Scale of keys in fp8.
        pub k_scale: f32,
        /// Scale of values in fp8.
        pub v_scale: f32,
    }
}

bindings! {
    /// Buffers of `masked_attention`.
    pub struct MaskedAttentionBuffers(MaskedAttentionParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        read v_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: MaskedRow,
        /// Masks, `[*, mask_stride]`: bit p % 32 of word p / 32 says whether the key at position p is attended.
        read masks: u32,
        /// Output, `[*, num_heads, head_dim]`; zero for a row that sees no key.
        write out: f32,
        /// Lists of blocks: count, then ascending blocks; the list of a row serves all its heads.
        read selected: u32,
    }
}

/// A row of queries with its mask, list and destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct MaskedRow {
    /// Row of queries.
    pub q: u32,
    /// Row of the output.
    pub out: u32,
    /// Index of the mask.
    pub mask: u32,
    /// List of selected blocks, for all heads.
    pub list: u32,
    /// Number of tokens of the context.
    pub len: u32,
    /// First entry of the block table.
    pub table: u32,
}

/// Returns the variant for one cache shape and blocks of `select_block` tokens.
///
/// # Panics
/// When [`KvShape::validate`] refuses the shape, or a selection block is not whole blocks of the cache.
#[must_use]
pub fn variant(shape: &KvShape, select_block: u32) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL)
        .over_cache(super::KV, shape)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size);
    Attention::blocks(select_block).order(variant, shape, 1)
}
