//! From content hash to the physical blocks that hold it.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::hash::BlockHash;
use crate::id::{BlockId, GroupId};

/// Content of a block in one cache group. The same tokens have one physical block a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CacheKey {
    /// Chained hash of the block's tokens.
    pub hash: BlockHash,
    /// The group whose layers the block holds.
    pub group: GroupId,
}

/// Map from [`CacheKey`] to blocks, duplicates allowed: two sequences that compute the same block at once
/// keep one each, because a block table is append-only and cannot be redirected later.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheMap {
    blocks: FxHashMap<CacheKey, SmallVec<[BlockId; 1]>>,
}

impl CacheMap {
    pub(crate) fn insert(&mut self, key: CacheKey, block: BlockId) {
        self.blocks.entry(key).or_default().push(block);
    }

    /// The block that was inserted first among duplicates.
    pub(crate) fn get(&self, key: &CacheKey) -> Option<BlockId> {
        self.blocks.get(key).map(|duplicates| duplicates[0])
    }

    /// All blocks of a key, first inserted first.
    pub(crate) fn duplicates(&self, key: &CacheKey) -> &[BlockId] {
        self.blocks.get(key).map_or(&[], |duplicates| duplicates)
    }

    /// Removes `block` from `key`. Tells whether the key has no block left; `None` when the block was not
    /// under it.
    pub(crate) fn remove(&mut self, key: &CacheKey, block: BlockId) -> Option<bool> {
        let duplicates = self.blocks.get_mut(key)?;
        let place = duplicates.iter().position(|&b| b == block)?;
        duplicates.remove(place);
        let last = duplicates.is_empty();
        if last {
            self.blocks.remove(key);
        }
        Some(last)
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }

    pub(crate) fn num_keys(&self) -> usize {
        self.blocks.len()
    }
}
