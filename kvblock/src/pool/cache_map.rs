//! Map from content hashes to the physical blocks that hold the content.

use core::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;

use super::Block;
use crate::hash::CacheKey;
use crate::id::BlockId;

/// Map from [`CacheKey`] to blocks, duplicates allowed: two sequences that compute the same block at once
/// keep one each, because a block table is append-only and cannot be redirected later.
///
/// The keys are stored in the blocks and the table holds only ids: five bytes per entry instead of a second
/// copy of the key. Duplicates are linked through the blocks, first inserted first.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheMap {
    first: HashTable<BlockId>,
}

fn hash_of(key: &CacheKey) -> u64 {
    FxBuildHasher.hash_one(key)
}

fn key_hash(blocks: &[Block]) -> impl Fn(&BlockId) -> u64 {
    |id| hash_of(&blocks[id.index()].key.expect("the map holds blocks with content"))
}

impl CacheMap {
    /// Adds `block` under the key it has. Returns whether no other block has the key.
    pub(crate) fn insert(&mut self, block: BlockId, blocks: &mut [Block]) -> bool {
        let key = blocks[block.index()].key.expect("only content can be found");
        let same = |id: &BlockId| blocks[id.index()].key == Some(key);
        match self.first.entry(hash_of(&key), same, key_hash(blocks)) {
            Entry::Vacant(place) => {
                place.insert(block);
                true
            }
            Entry::Occupied(place) => {
                let last = chain(*place.get(), blocks).last().expect("a chain starts with its first block");
                blocks[last.index()].next_duplicate = block;
                false
            }
        }
    }

    /// The block that was inserted first among duplicates.
    pub(crate) fn get(&self, key: &CacheKey, blocks: &[Block]) -> Option<BlockId> {
        self.first.find(hash_of(key), |id| blocks[id.index()].key == Some(*key)).copied()
    }

    /// All blocks of a key, first inserted first.
    pub(crate) fn duplicates<'a>(
        &self,
        key: &CacheKey,
        blocks: &'a [Block],
    ) -> impl Iterator<Item = BlockId> + use<'a> {
        chain(self.get(key, blocks).unwrap_or(BlockId::NULL), blocks)
    }

    /// Removes `block`, if it is in the map, and its key. Returns the key if no other block has it.
    pub(crate) fn remove(&mut self, block: BlockId, blocks: &mut [Block]) -> Option<CacheKey> {
        let key = blocks[block.index()].key?;
        let same = |id: &BlockId| *id == block || blocks[id.index()].key == Some(key);
        let place = self.first.find_entry(hash_of(&key), same);
        let mut place =
            place.unwrap_or_else(|_| panic!("{block:?} has {key:?}, which the map does not hold"));
        let first = *place.get();
        let next = blocks[block.index()].next_duplicate;
        if first != block {
            let before = chain(first, blocks).find(|id| blocks[id.index()].next_duplicate == block);
            let before = before.unwrap_or_else(|| panic!("{block:?} is not among the blocks of {key:?}"));
            blocks[before.index()].next_duplicate = next;
        } else if next.is_null() {
            place.remove();
        } else {
            *place.get_mut() = next;
        }
        let content = &mut blocks[block.index()];
        (content.key, content.next_duplicate) = (None, BlockId::NULL);
        (first == block && next.is_null()).then_some(key)
    }

    pub(crate) fn clear(&mut self) {
        self.first.clear();
    }

    pub(crate) fn num_keys(&self) -> usize {
        self.first.len()
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        self.first.allocation_size()
    }
}

/// The blocks from `first` on, along the links between duplicates.
fn chain(first: BlockId, blocks: &[Block]) -> impl Iterator<Item = BlockId> {
    let some = |id: BlockId| (!id.is_null()).then_some(id);
    core::iter::successors(some(first), move |id| some(blocks[id.index()].next_duplicate))
}
