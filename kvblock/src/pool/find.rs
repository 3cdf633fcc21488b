//! Lookups by content.

use super::BlockPool;
use crate::content::SeqContent;
use crate::hash::{BlockHash, CacheKey, block_hash};
use crate::id::{BlockId, BlockSize, GroupId, TokenId};

impl BlockPool {
    /// The first cached block of `hash` in each of `groups`, or `None` unless all have one. O(groups).
    #[must_use]
    pub fn cached(&self, hash: BlockHash, groups: &[GroupId]) -> Option<Vec<BlockId>> {
        groups.iter().map(|&group| self.cached.get(&CacheKey { hash, group }, &self.blocks)).collect()
    }

    /// The cached block of `hash` in `group`. With token verification, its tokens must equal `tokens`.
    #[must_use]
    pub(crate) fn cached_verified(
        &self,
        hash: BlockHash,
        group: GroupId,
        tokens: &[TokenId],
    ) -> Option<BlockId> {
        let key = CacheKey { hash, group };
        if !self.options.verify_tokens {
            return self.cached.get(&key, &self.blocks);
        }
        self.cached.duplicates(&key, &self.blocks).find(|id| *self.tokens[id.index()] == *tokens)
    }

    /// Whether a block holds the tokens of block `index` of a sequence in `group`, so that lookups find the block by
    /// these tokens.
    pub(crate) fn holds(
        &self,
        id: BlockId,
        content: SeqContent<'_>,
        index: usize,
        size: BlockSize,
        group: GroupId,
    ) -> bool {
        let hash = block_hash(content.hashes, index, size, self.hash_block_size);
        let tokens = index * size.get() as usize..(index + 1) * size.get() as usize;
        let same_tokens = || content.tokens.get(tokens) == Some(&*self.tokens[id.index()]);
        self.blocks[id.index()].key == Some(CacheKey { hash, group })
            && (!self.options.verify_tokens || same_tokens())
    }
}
