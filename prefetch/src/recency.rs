//! Block hashes in order of last use.

use std::collections::BTreeMap;

use kvblock::BlockHash;
use rustc_hash::FxHashMap;

/// A set of block hashes ordered by last use. Every operation is O(log n).
///
/// A tree over use stamps rather than an intrusive list: it needs no index arithmetic, and its cost is small compared to the
/// I/O or the copy of each call.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recency {
    stamps: FxHashMap<BlockHash, u64>,
    order: BTreeMap<u64, BlockHash>,
    next_stamp: u64,
}

impl Recency {
    /// Makes `key` the most recently used; true when it was not in the set.
    pub(crate) fn touch(&mut self, key: BlockHash) -> bool {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let old = self.stamps.insert(key, stamp);
        if let Some(old) = old {
            self.order.remove(&old);
        }
        self.order.insert(stamp, key);
        old.is_none()
    }

    /// Removes `key`; false when it was not in the set.
    pub(crate) fn remove(&mut self, key: &BlockHash) -> bool {
        match self.stamps.remove(key) {
            Some(stamp) => self.order.remove(&stamp).is_some(),
            None => false,
        }
    }

    /// Removes and returns the least recently used key.
    pub(crate) fn pop_oldest(&mut self) -> Option<BlockHash> {
        let (_, key) = self.order.pop_first()?;
        self.stamps.remove(&key);
        Some(key)
    }

    pub(crate) fn contains(&self, key: &BlockHash) -> bool {
        self.stamps.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.stamps.len()
    }

    /// Least recently used first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.order.values().copied()
    }
}
