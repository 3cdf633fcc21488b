//! Least recently used.

use kvblock::BlockHash;

use super::EvictionPolicy;
use crate::recency::Recency;

/// Evicts the block whose last use is longest ago.
#[derive(Default, Debug)]
pub struct LruPolicy {
    blocks: Recency,
}

impl EvictionPolicy for LruPolicy {
    fn insert(&mut self, key: BlockHash) {
        self.blocks.touch(key);
    }

    fn touch(&mut self, key: BlockHash, _ready: bool) {
        if self.blocks.contains(&key) {
            self.blocks.touch(key);
        }
    }

    fn victims(&self, count: usize, evictable: &dyn Fn(&BlockHash) -> bool) -> Option<Vec<BlockHash>> {
        let victims: Vec<_> = self.blocks.iter().filter(evictable).take(count).collect();
        (victims.len() == count).then_some(victims)
    }

    fn evict(&mut self, key: BlockHash) {
        self.blocks.remove(&key);
    }

    fn remove(&mut self, key: BlockHash) {
        self.blocks.remove(&key);
    }
}
