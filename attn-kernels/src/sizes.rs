//! Sizes of the model that variants are listed for.

use crate::kernel::{KvDtype, KvLayout, KvShape};

/// Sizes of a model, for which variants are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Number of elements of a head.
    pub head_dim: u32,
    /// Number of query heads.
    pub num_heads: u32,
    /// Number of KV heads.
    pub num_kv_heads: u32,
    /// Number of tokens of a block of the cache.
    pub block_size: u32,
}

impl Sizes {
    /// Sizes of Llama 3 8B, with heads of `head_dim` elements.
    #[must_use]
    pub const fn of_heads(head_dim: u32) -> Self {
        Self { head_dim, num_heads: 32, num_kv_heads: 8, block_size: 16 }
    }

    /// Number of tokens of a selected block: `tokens`, or a block of the cache if that has more.
    #[must_use]
    pub fn select(&self, tokens: u32) -> u32 {
        tokens.max(self.block_size)
    }

    /// Shape of the cache with elements of type `dtype`.
    #[must_use]
    pub const fn cache(&self, dtype: KvDtype) -> KvShape {
        let Self { head_dim, num_kv_heads, block_size, .. } = *self;
        KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
    }

    /// Shape of the cache with elements in f16.
    #[must_use]
    pub const fn f16(&self) -> KvShape {
        self.cache(KvDtype::F16)
    }
}
