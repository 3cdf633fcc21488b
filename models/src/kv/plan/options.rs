//! Options of a cache, and the parts that a layer may have.

use attn_kernels::kernel::KvDtype;
use derive_setters::Setters;

use super::index_dtype::IndexDtype;

/// Options of a cache, in addition to the model's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct KvOptions {
    /// Element type of keys and values.
    #[setters(skip)]
    pub dtype: KvDtype,
    /// Format of index keys; `None` for [the default for `dtype`](IndexDtype::beside).
    #[setters(into)]
    pub index_dtype: Option<IndexDtype>,
    /// Number of tokens per block; a minimum if there are compressed entries, and a maximum for NSA, see
    /// [`KvPlan::block_sizes`](super::KvPlan::block_sizes).
    #[setters(skip)]
    pub block_size: u32,
    /// Free blocks that no window reaches any more. If off, every layer keeps its blocks like full attention.
    pub recycle: bool,
}

impl KvOptions {
    /// Options for blocks of `block_size` tokens, which are freed when no window reaches them any more.
    #[must_use]
    pub const fn new(dtype: KvDtype, block_size: u32) -> Self {
        Self { dtype, index_dtype: None, block_size, recycle: true }
    }

    /// Returns the format of index keys.
    #[must_use]
    pub fn of_index(&self) -> IndexDtype {
        self.index_dtype.unwrap_or(IndexDtype::beside(self.dtype))
    }
}

/// Contents of one cache of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CachePart {
    /// Keys and values of attention.
    KeyValue,
    /// Latents of keys and values, `[block_size, kv_rank + rope_dim]`; with compressed entries one vector per token,
    /// `[block_size, head_dim]`.
    Latent,
    /// Keys of an indexer, of tokens or of compressed entries.
    IndexKeys,
    /// Mean key of a cache block, from which NSA makes compressed keys, `[num_kv_heads, head_dim]`: f32 for an f32 cache, else
    /// f16.
    MeanKeys,
    /// Mean value of a cache block, in the format of [`Self::MeanKeys`].
    MeanValues,
    /// Entries of compressed attention, `[block_size / ratio, head_dim]`.
    Entries,
    /// States of tokens for future entries, f32 `[block_size, 2, windows * head_dim]`: values, then scores.
    States,
    /// States of tokens for future keys of the indexer, in the layout of [`Self::States`].
    IndexStates,
}
