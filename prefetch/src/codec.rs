//! KV compression for the slower tiers: blocks as stored, or re-quantised to fp8 or int8 (feature `compress`).

#[cfg(feature = "compress")]
mod coded;

#[cfg(feature = "compress")]
pub use coded::{Codec, CodecError, CodedTier};

/// Order of the elements of one token and head (a row) in a shard of f16 elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowLayout {
    /// `[rows, head_dim]`: V blocks, and K blocks of flat caches.
    Contiguous {
        /// Number of elements of a row.
        head_dim: u32,
    },
    /// `[num_kv_heads, head_dim / 8, block_size, 8]`: K blocks of the paged cache, with 16 bytes of a token
    /// contiguous.
    PagedKey {
        /// Number of elements of a row, a multiple of 8.
        head_dim: u32,
        /// Number of tokens of a block.
        block_size: u32,
    },
    /// A paged K block, then the V block of the same tokens, `[num_kv_heads, block_size, head_dim]`. The engine stores a
    /// block of one layer in this form.
    PagedKeyValue {
        /// Number of elements of a row, a multiple of 8.
        head_dim: u32,
        /// Number of tokens of a block.
        block_size: u32,
        /// Number of rows per token, in K and in V each.
        num_kv_heads: u32,
    },
}
