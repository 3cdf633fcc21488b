//! Changes of what a cache holds, for components that mirror it (a router).

use core::fmt;
use core::ops::Range;

use crate::content::SeqContent;
use crate::extra_keys::{ExtraKey, ExtraKeys};
use crate::hash::{BlockHash, CacheKey, block_hash};
use crate::id::{BlockSize, GroupId, TokenId};

/// Kind of memory that holds a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Medium {
    /// The pool of the device.
    #[default]
    Gpu,
    /// Memory of the host.
    Cpu,
    /// A disk, or a store that several engines share.
    Storage,
}

impl Medium {
    /// Returns vLLM's name: `GPU`, `CPU` or `STORAGE`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
            Self::Storage => "STORAGE",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One change of the cached content.
///
/// A pool records those of its own blocks, on [`Medium::Gpu`]. Whoever keeps blocks elsewhere makes events of these:
/// the media are independent of each other, except that [`AllCleared`](Self::AllCleared) empties all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CacheEvent {
    /// Consecutive blocks of one sequence are now on a medium that held none of their contents before.
    Stored(StoredBlocks),
    /// The last block with this content left a medium.
    #[non_exhaustive]
    Removed {
        /// The content.
        key: CacheKey,
        /// Medium that held the block.
        medium: Medium,
    },
    /// The whole cache was reset.
    AllCleared,
}

impl CacheEvent {
    /// The removal of the last block with this content from a medium.
    #[must_use]
    pub const fn removed(key: CacheKey, medium: Medium) -> Self {
        Self::Removed { key, medium }
    }
}

/// Consecutive blocks of one sequence that a [`CacheEvent`] tells of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoredBlocks {
    /// Hashes of the blocks, in sequence order.
    pub hashes: Vec<BlockHash>,
    /// Hash of the block before the first; `None` at the start of a sequence.
    pub parent: Option<BlockHash>,
    /// Tokens of all the blocks, `hashes.len() * block_size` of them.
    pub tokens: Vec<TokenId>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Group the blocks belong to.
    pub group: GroupId,
    /// LoRA adapter of the sequence.
    pub adapter: Option<String>,
    /// Keys that the hash of each block depends on in addition to its tokens, one list per block; empty if no block has any.
    pub extra_keys: Vec<Vec<ExtraKey>>,
    /// Medium that holds the blocks.
    pub medium: Medium,
}

impl StoredBlocks {
    /// The blocks at `positions` of a sequence's table in a group, on the device. Each hash of `content` covers
    /// `hash_block_size` tokens, and `block_size` is a multiple of this number.
    ///
    /// # Panics
    /// When there is no block, or `content` has no hash or no tokens for one of them.
    #[must_use]
    pub fn new(
        content: SeqContent<'_>,
        positions: Range<usize>,
        block_size: BlockSize,
        hash_block_size: BlockSize,
        group: GroupId,
    ) -> Self {
        assert!(!positions.is_empty(), "an event of no blocks");
        let size = block_size.get() as usize;
        let hash_of = |index: usize| block_hash(content.hashes, index, block_size, hash_block_size);
        let tokens = positions.start * size..positions.end * size;
        let keys = |extra: &ExtraKeys| -> Vec<Vec<ExtraKey>> {
            positions.clone().map(|index| extra.of_block(index * size, size).collect()).collect()
        };
        let extra_keys = content.extra_keys.map(keys).unwrap_or_default();
        Self {
            hashes: positions.clone().map(hash_of).collect(),
            parent: positions.start.checked_sub(1).map(hash_of),
            tokens: content.tokens[tokens].to_vec(),
            block_size,
            group,
            adapter: content.extra_keys.and_then(|extra| extra.adapter.clone()),
            extra_keys: if extra_keys.iter().all(Vec::is_empty) { Vec::new() } else { extra_keys },
            medium: Medium::Gpu,
        }
    }

    /// Moves the blocks to another medium.
    #[must_use]
    pub fn on(self, medium: Medium) -> Self {
        Self { medium, ..self }
    }

    /// Appends `next` if its blocks follow these blocks in the same sequence on the same medium; otherwise returns
    /// `next` unchanged.
    #[must_use]
    pub fn append(&mut self, mut next: Self) -> Option<Self> {
        let about = |blocks: &Self| (blocks.group, blocks.medium, blocks.block_size);
        let follows = next.parent.is_some() && next.parent.as_ref() == self.hashes.last();
        if !follows || about(self) != about(&next) || self.adapter != next.adapter {
            return Some(next);
        }
        let (own, more) = (self.hashes.len(), next.hashes.len());
        if !self.extra_keys.is_empty() || !next.extra_keys.is_empty() {
            self.extra_keys.resize(own, Vec::new());
            next.extra_keys.resize(more, Vec::new());
            self.extra_keys.append(&mut next.extra_keys);
        }
        self.hashes.append(&mut next.hashes);
        self.tokens.append(&mut next.tokens);
        None
    }
}
