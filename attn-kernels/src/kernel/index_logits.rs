//! Logits of the DSA indexer over paged index keys.

use super::{KvDtype, KvLayout, KvShape, Stored};
use crate::Variant;
use crate::declare::{FLOATS, Listed, Sizes};
use crate::rows::{KeyRow, KvWord, PhysicalBlock};
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`IndexLogitsBuffers`] lists its bindings.
    "index_logits"(IndexLogitsParams, IndexLogitsBuffers): Selection,
    grid: |params, _| [params.logit_stride.div_ceil(TILE), params.rows, 1],
    listed: listed,
    variants: "fp8 with scales, f16, f32 keys",
    bytes: "`L * (D + 8)` per row at fp8; queries once per tile of 64 keys",
    cases: crate::self_test::indexer::index_logits,
}

fn listed(sizes: &Sizes) -> Listed {
    let cached = |shape: &KvShape| IndexKeys::Cached(KvShape { num_kv_heads: 1, ..*shape });
    let mut all = sizes.each(&FLOATS, |shape| variant(&cached(shape)));
    all.push(("fp8".into(), variant(&IndexKeys::PUBLISHED)));
    all
}

params! {
    /// Uniform parameters.
    pub struct IndexLogitsParams {
        /// Number of heads of the indexer.
        pub num_heads: u32,
        /// Number of f32 between successive rows of logits: at least the number of keys of the longest row.
        pub logit_stride: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `index_logits`.
    pub struct IndexLogitsBuffers(IndexLogitsParams) {
        /// Queries, `[rows, num_heads, head_dim]`; for fp8 keys, the values of their codes without scales.
        read q: f32,
        /// Cache of keys, with one head per token.
        read k_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows, `[n]`.
        read rows: KeyRow,
        /// Weights of heads, `[rows, num_heads]`, with the scales of queries and all norms folded in.
        read gates: f32,
        /// Logits, `[n, logit_stride]`. Column 0 is key 0 of the sequence; keys that the row does not see get -inf.
        write logits: f32,
    }
}

/// Format of cached index keys, which have one head per token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IndexKeys {
    /// fp8 e4m3 with one scale per key. A page has the codes of `page` tokens, `head_dim` bytes per token, and then
    /// their f32 scales.
    Fp8 {
        /// Number of channels of a key, a multiple of 8.
        head_dim: u32,
        /// Number of tokens of a page; 64 as published.
        page: u32,
    },
    /// Keys in the K buffer of a paged cache with one KV head.
    Cached(KvShape),
}

impl IndexKeys {
    /// Keys of DeepSeek V3.2, as published.
    pub const PUBLISHED: Self = Self::Fp8 { head_dim: 128, page: 64 };

    /// Layout and element type of the keys.
    pub(super) const fn stored(&self) -> Stored {
        match self {
            Self::Fp8 { .. } => (KvLayout::Native, KvDtype::Fp8),
            Self::Cached(shape) => shape.stored(),
        }
    }

    /// Number of channels of a key, and number of tokens of a page.
    #[must_use]
    pub fn head_dim_and_page(&self) -> (u32, u32) {
        match self {
            Self::Fp8 { head_dim, page } => (*head_dim, *page),
            Self::Cached(shape) => (shape.head_dim, shape.block_size),
        }
    }
}

/// Module that reads the published pages of fp8.
pub(crate) const PUBLISHED: OneOf<()> = OneOf::new("k", &[((), "k_index_fp8")]);

/// Number of keys that a workgroup scores.
const TILE: u32 = 64;

/// Returns the variant for one kind of keys.
///
/// # Panics
/// When the head size is not a multiple of 8, or a cache has more than one KV head.
#[must_use]
pub fn variant(keys: &IndexKeys) -> Variant {
    let (head_dim, page) = keys.head_dim_and_page();
    assert!(head_dim.is_multiple_of(8), "head size {head_dim} is not a multiple of 8");
    let variant = Variant::new(&KERNEL).set(slot::HEAD_DIM, head_dim).set(slot::BLOCK_SIZE, page);
    match keys {
        IndexKeys::Fp8 { .. } => variant.over_stored(PUBLISHED, (), keys.stored()),
        IndexKeys::Cached(shape) => {
            assert!(shape.num_kv_heads == 1, "{} KV heads of index keys, which have one", shape.num_kv_heads);
            variant.over_cache(super::KEYS, shape)
        }
    }
}
