//! Changes of what a pool caches, for components that mirror it (lower tiers, a router).

use crate::hash::{BlockHash, CacheKey};
use crate::id::{BlockSize, GroupId, TokenId};

/// One change of the cached content.
///
/// Library only: the engine tells its tiers of the blocks that a step fills, and records no events.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CacheEvent {
    /// Consecutive blocks of one sequence entered the prefix cache.
    #[non_exhaustive]
    Stored {
        /// Hashes of the blocks, in sequence order.
        hashes: Vec<BlockHash>,
        /// Hash of the block before the first; `None` at the start of a sequence.
        parent: Option<BlockHash>,
        /// Tokens of all the blocks, `hashes.len() * block_size` of them.
        tokens: Vec<TokenId>,
        /// Tokens per block.
        block_size: BlockSize,
        /// Group the blocks belong to.
        group: GroupId,
        /// LoRA adapter of the sequence.
        adapter: Option<String>,
    },
    /// The last block with this content was evicted.
    Removed(CacheKey),
    /// The whole cache was reset.
    AllCleared,
}
