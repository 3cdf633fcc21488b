//! Why the tiers of an engine do not open.

use attn_kernels::kernel::KvDtype;
use models::ModelError;
use prefetch::assemble::AssembleError;
use prefetch::engine::EngineError;
use prefetch::store::StoreError;
use prefetch::tier::TierError;

/// Why the tiers of an engine do not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TiersError {
    /// Compression is requested of elements that are not f16.
    #[error("compression halves f16 elements, the KV cache has {dtype:?}")]
    CompressedDtype {
        /// Element type of the cache.
        dtype: KvDtype,
    },
    /// Compression is requested of blocks that are not pairs of keys and values.
    #[error("compression is for layers that each keep keys and values")]
    CompressedLayers,
    /// The model's KV caches cannot be divided into the groups that tiers store.
    #[error(transparent)]
    Plan(#[from] ModelError),
    /// The size of a block is more than a tier can hold.
    #[error("blocks of {block_bytes} bytes are too large")]
    BlockBytes {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// The tiers cannot be built.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// A tier cannot be reached.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The workers that load do not start.
    #[error(transparent)]
    Load(#[from] EngineError),
    /// The workers that save do not start.
    #[error(transparent)]
    Save(#[from] StoreError),
    /// The weights, which are a part of the names of blocks, cannot be read.
    #[error(transparent)]
    Weights(#[from] models::WeightError),
}
