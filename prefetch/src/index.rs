//! The index of one tier: which block is in which slot, and which blocks are being written or read.

use std::fmt;

use kvblock::BlockHash;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::changes::{Changes, Follower};
use crate::policy::{EvictionPolicy, PolicyKind, ReuseFilter};
use crate::tier::{Stored, TierName};

/// State of a block in an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The block can be read.
    Ready,
    /// The block is being written; try again later.
    InFlight,
    /// The tier does not hold the block.
    Missing,
}

/// Slots to write, and the blocks evicted for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PreparedStore {
    /// Blocks to write, each with its slot; blocks already in the tier are omitted.
    pub to_store: Vec<(BlockHash, u32)>,
    /// Evicted blocks, each with the slot it had.
    pub evicted: Vec<(BlockHash, u32)>,
}

/// Why a block could not be pinned or removed.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IndexError {
    /// The block is missing or not yet written.
    #[error("block {key:?} is not readable")]
    NotReady {
        /// The block.
        key: BlockHash,
    },
    /// The block is pinned.
    #[error("block {key:?} is in use by {pins} readers")]
    InUse {
        /// The block.
        key: BlockHash,
        /// Number of readers that pin the block.
        pins: u32,
    },
}

/// Why an index cannot be restored from a list of blocks and slots.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RestoreError {
    /// Two blocks are listed with the same slot.
    #[error("slot {slot} holds block {first:?} and block {second:?}")]
    SlotTwice {
        /// The slot.
        slot: u32,
        /// The block listed first.
        first: BlockHash,
        /// The second block.
        second: BlockHash,
    },
    /// A block is listed with two slots.
    #[error("block {key:?} is in slot {first} and in slot {second}")]
    BlockTwice {
        /// The block.
        key: BlockHash,
        /// The slot listed first.
        first: u32,
        /// The second slot.
        second: u32,
    },
    /// A block is listed with a slot that the tier does not have.
    #[error("block {key:?} is in slot {slot} of {capacity}")]
    NoSuchSlot {
        /// The block.
        key: BlockHash,
        /// Slot of the block.
        slot: u32,
        /// Number of slots.
        capacity: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    ready: bool,
    pins: u32,
}

/// Blocks, slots and eviction order of one tier. Pure: it moves no bytes.
pub struct TierIndex {
    capacity: u32,
    entries: FxHashMap<BlockHash, Entry>,
    /// Slots that were in use and are free again; the last one is used next.
    free: Vec<u32>,
    /// First slot that was never in use. This slot and all later ones take no memory.
    unused: u32,
    policy: Box<dyn EvictionPolicy>,
    reuse: Option<ReuseFilter>,
    followers: Vec<Follower>,
}

impl fmt::Debug for TierIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierIndex")
            .field("capacity", &self.capacity)
            .field("blocks", &self.entries.len())
            .finish_non_exhaustive()
    }
}

impl TierIndex {
    /// An empty index over slots `0..capacity`.
    #[must_use]
    pub fn new(capacity: u32, policy: PolicyKind, reuse: Option<ReuseFilter>) -> Self {
        Self {
            capacity,
            entries: FxHashMap::default(),
            free: Vec::new(),
            unused: 0,
            policy: policy.build(capacity as usize),
            reuse,
            followers: Vec::new(),
        }
    }

    /// Reports all blocks that can be read to the queue `changes`, as blocks of `tier`, and from now on each change.
    pub fn follow(&mut self, tier: TierName, changes: &Changes) {
        let ready = self.entries.iter().filter(|(_, entry)| entry.ready);
        ready.for_each(|(key, _)| changes.tell(tier, *key, true));
        self.followers.push(changes.follower(tier));
    }

    fn tell(&mut self, key: BlockHash, held: bool) {
        self.followers.retain(|follower| follower.tell(key, held));
    }

    /// Number of slots.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Number of slots not in use.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.free.len() + (self.capacity - self.unused) as usize
    }

    fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = Some(self.unused).filter(|&slot| slot < self.capacity)?;
            self.unused += 1;
            Some(slot)
        })
    }

    /// The state of a block. Counts as a request for the reuse filter.
    pub fn lookup(&mut self, key: BlockHash) -> Lookup {
        if let Some(reuse) = &mut self.reuse {
            reuse.request(key);
        }
        match self.entries.get(&key) {
            Some(entry) if entry.ready => Lookup::Ready,
            Some(_) => Lookup::InFlight,
            None => Lookup::Missing,
        }
    }

    /// Marks blocks as used, the first of `keys` most recently, so that the tail of a prefix is evicted
    /// first.
    pub fn touch(&mut self, keys: &[BlockHash]) {
        for &key in keys.iter().rev() {
            let ready = self.entries.get(&key).is_some_and(|entry| entry.ready);
            self.policy.touch(key, ready);
        }
    }

    /// Pins blocks for reading and returns their slots. If a block cannot be read, none is pinned.
    ///
    /// # Errors
    /// [`IndexError::NotReady`] names the first block that cannot be read.
    pub fn prepare_load(&mut self, keys: &[BlockHash]) -> Result<Vec<u32>, IndexError> {
        for &key in keys {
            if !self.entries.get(&key).is_some_and(|entry| entry.ready) {
                return Err(IndexError::NotReady { key });
            }
        }
        let pinned = keys.iter().map(|key| {
            let entry = self.entries.get_mut(key).expect("checked above");
            entry.pins += 1;
            entry.slot
        });
        Ok(pinned.collect())
    }

    /// Unpins blocks that [`Self::prepare_load`] pinned.
    ///
    /// # Panics
    /// When a block is not pinned.
    pub fn complete_load(&mut self, keys: &[BlockHash]) {
        for key in keys {
            let entry = self.entries.get_mut(key).filter(|entry| entry.pins > 0);
            let entry = entry.unwrap_or_else(|| panic!("{key:?} is unpinned more often than it was pinned"));
            entry.pins -= 1;
        }
    }

    /// Why `key` would get no slot from [`Self::prepare_store`]; `None` when it would.
    #[must_use]
    pub fn admission(&self, key: BlockHash) -> Option<Stored> {
        if self.entries.contains_key(&key) {
            return Some(Stored::AlreadyThere);
        }
        let filtered = self.reuse.as_ref().is_some_and(|reuse| !reuse.admits(&key));
        filtered.then_some(Stored::Filtered)
    }

    /// Assigns slots to the blocks of `keys` that are not in the tier, evicting others if needed. Blocks of `keys`, pinned
    /// blocks and blocks being written are not evicted; when too few others are left, returns `None` and changes nothing.
    pub fn prepare_store(&mut self, keys: &[BlockHash]) -> Option<PreparedStore> {
        let mut seen = FxHashSet::default();
        let missing: Vec<BlockHash> =
            keys.iter().copied().filter(|&key| self.admission(key).is_none() && seen.insert(key)).collect();
        let evicted = self.evict(missing.len().saturating_sub(self.free_slots()), keys)?;
        let to_store: Vec<(BlockHash, u32)> = missing
            .into_iter()
            .map(|key| (key, self.take_slot().expect("as many slots were freed as are needed")))
            .collect();
        for &(key, slot) in &to_store {
            self.entries.insert(key, Entry { slot, ready: false, pins: 0 });
            self.policy.insert(key);
        }
        Some(PreparedStore { to_store, evicted })
    }

    /// Makes written blocks readable, or frees their slots when `success` is false.
    pub fn complete_store(&mut self, keys: &[BlockHash], success: bool) {
        for key in keys {
            let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.ready) else { continue };
            if success {
                entry.ready = true;
                self.tell(*key, true);
            } else {
                self.free.push(entry.slot);
                self.entries.remove(key);
                self.policy.remove(*key);
            }
        }
    }

    /// Evicts `count` blocks and frees their slots; `None`, with nothing changed, when too few can be
    /// evicted.
    pub fn evict(&mut self, count: usize, protected: &[BlockHash]) -> Option<Vec<(BlockHash, u32)>> {
        if count == 0 {
            return Some(Vec::new());
        }
        let protected: FxHashSet<&BlockHash> = protected.iter().collect();
        let entries = &self.entries;
        let evictable = |key: &BlockHash| {
            entries.get(key).is_some_and(|entry| entry.ready && entry.pins == 0) && !protected.contains(key)
        };
        let victims = self.policy.victims(count, &evictable)?;
        let evicted = victims.into_iter().map(|key| {
            let entry = self.entries.remove(&key).expect("a victim is in the index");
            self.policy.evict(key);
            self.free.push(entry.slot);
            self.tell(key, false);
            (key, entry.slot)
        });
        Some(evicted.collect())
    }

    /// Removes a block and returns its slot, which is now free.
    ///
    /// # Errors
    /// [`IndexError::InUse`] while it is pinned, [`IndexError::NotReady`] while it is being written.
    pub fn remove(&mut self, key: BlockHash) -> Result<Option<u32>, IndexError> {
        let Some(&Entry { slot, ready, pins }) = self.entries.get(&key) else { return Ok(None) };
        if pins > 0 {
            return Err(IndexError::InUse { key, pins });
        }
        if !ready {
            return Err(IndexError::NotReady { key });
        }
        self.entries.remove(&key);
        self.policy.remove(key);
        self.free.push(slot);
        self.tell(key, false);
        Ok(Some(slot))
    }

    /// Fills an empty index with the blocks that a reopened tier found in its slots, least recently used
    /// first.
    ///
    /// # Errors
    /// When a block or slot appears twice, or a slot is out of range. The index stays empty.
    ///
    /// # Panics
    /// When the index is not empty.
    pub fn restore(&mut self, blocks: &[(BlockHash, u32)]) -> Result<(), RestoreError> {
        assert!(self.entries.is_empty(), "an index of {} blocks is restored", self.entries.len());
        let mut taken: FxHashMap<u32, BlockHash> = FxHashMap::default();
        let mut entries: FxHashMap<BlockHash, Entry> = FxHashMap::default();
        for &(key, slot) in blocks {
            if slot >= self.capacity {
                return Err(RestoreError::NoSuchSlot { key, slot, capacity: self.capacity });
            }
            if let Some(first) = taken.insert(slot, key) {
                return Err(RestoreError::SlotTwice { slot, first, second: key });
            }
            if let Some(old) = entries.insert(key, Entry { slot, ready: true, pins: 0 }) {
                return Err(RestoreError::BlockTwice { key, first: old.slot, second: slot });
            }
        }
        self.entries = entries;
        for &(key, _) in blocks {
            self.policy.insert(key);
            self.tell(key, true);
        }
        self.unused = taken.keys().max().map_or(0, |last| last + 1);
        self.free = (0..self.unused).rev().filter(|slot| !taken.contains_key(slot)).collect();
        Ok(())
    }
}
