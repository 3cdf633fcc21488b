//! The disk tier: blocks in slab files, with an index that survives a crash.
//!
//! A directory holds `lock`, `blocks.index` and `slab-0000.kv`, `slab-0001.kv` and so on. A slab is an array of
//! slots; a slot is one block. The index has a record for each slot: the hash of its block, and the checksum of each
//! shard.
//!
//! Two rules make a crash harmless at any moment:
//!
//! 1. A block enters the index file only after its bytes are synced to its slab.
//! 2. A slot is overwritten only after its record in the index file is cleared and synced.
//!
//! So every block that the index file names is complete. Commits are batched: a crash loses at most the last
//! [`DiskConfig::blocks_per_sync`] blocks written, and never corrupts one. In addition, checksums guard
//! against bad media: they depend on the hash, so that a block is never taken for another one. A block that cannot be
//! read, whatever the reason, leaves the index, and is written again when it is needed again.

mod catalog;
mod config;
#[cfg(target_os = "linux")]
mod direct;
mod folder;
mod header;
pub(crate) mod scratch;
mod slab;

use std::fmt;
use std::sync::{Arc, Mutex};

use kvblock::BlockHash;
use rustc_hash::FxHashMap;

use super::host::in_use;
use super::{BlockLayout, Stored, Tier, TierError, TierName, TierWarning, shard_sum};
use crate::index::{IndexError, Lookup, TierIndex};
use crate::sync::lock;
use crate::volume::Volume;
use catalog::{Catalog, Contents, Opened, SlotRecord};
pub use config::DiskConfig;
use folder::Folder;
use slab::Slabs;

/// Blocks on a disk of this machine.
pub struct DiskTier {
    name: TierName,
    layout: BlockLayout,
    capacity_blocks: u32,
    blocks_per_sync: u32,
    writable: bool,
    slabs: Slabs,
    /// Held while slots are reassigned and while the index file is written. Locked before `state`.
    catalog: Mutex<Catalog>,
    state: Mutex<State>,
    warnings: Mutex<Vec<TierWarning>>,
}

struct State {
    index: TierIndex,
    /// Checksums of the shards of every readable block.
    sums: FxHashMap<BlockHash, Arc<[u64]>>,
    /// Readable blocks that the index file does not name yet, with their slots, in order of writing.
    unsynced: Vec<(BlockHash, u32)>,
    /// Slots whose records in the index file may still name blocks that are gone. While the list is not empty, no
    /// slot is assigned.
    uncleared: Vec<u32>,
}

impl fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskTier")
            .field("name", &self.name)
            .field("layout", &self.layout)
            .field("index", &lock(&self.state).index)
            .finish_non_exhaustive()
    }
}

impl DiskTier {
    /// Opens a directory and serves the complete blocks in it.
    ///
    /// # Errors
    /// [`TierError::Mismatch`] when the directory holds other blocks, [`TierError::Full`] when the capacity
    /// is smaller than one block, [`TierError::TooLarge`] when it is larger than the file system,
    /// [`TierError::Locked`] when the directory is already open, [`TierError::Directory`] when it can be neither
    /// written nor read or every user can write to it, or the system's failure.
    pub fn open(config: DiskConfig) -> Result<Self, TierError> {
        let (tier, path, capacity_bytes) = (config.name, config.directory.clone(), config.capacity_bytes);
        let folder = Folder::open(tier, path.clone(), config.direct)?;
        if folder.is_writable() {
            let total = fs4::total_space(&path);
            let total_bytes =
                total.map_err(|source| TierError::Directory { tier, path: path.clone(), source })?;
            if capacity_bytes > total_bytes {
                return Err(TierError::TooLarge { tier, path, capacity_bytes, total_bytes });
            }
        }
        Self::on(Arc::new(folder), config)
    }

    /// Opens the tier like [`Self::open`], on the files of `volume`, which no other tier uses, in place of a directory.
    ///
    /// # Errors
    /// Opens a tier on a given volume, with the errors of [`Self::open`] except [`TierError::Locked`] and
    /// [`TierError::TooLarge`].
    pub fn on(volume: Arc<dyn Volume>, config: DiskConfig) -> Result<Self, TierError> {
        let DiskConfig { name, layout, capacity_bytes, .. } = config;
        let slots = u32::try_from(capacity_bytes / slab::slot_bytes(layout)).unwrap_or(u32::MAX);
        if slots == 0 {
            return Err(TierError::Full { tier: name, capacity_blocks: 0 });
        }
        let contents = Contents::new(name, layout, &config.namespace, slots);
        let Opened { catalog, rows, unclear, slots, mut warnings } = Catalog::open(&*volume, &contents)?;
        let writable = volume.is_writable();
        if !writable {
            warnings.push(TierWarning::ReadOnly { tier: name, path: config.directory });
        }
        // What lies beyond a smaller capacity than last time is dropped, unless it only takes room elsewhere.
        let last = rows.iter().map(|row| row.slot + 1).max().unwrap_or(0);
        let capacity_blocks = if writable { slots } else { slots.max(last) };
        let (kept, beyond): (Vec<SlotRecord>, Vec<SlotRecord>) =
            rows.into_iter().partition(|row| row.slot < capacity_blocks);
        let mut index = TierIndex::new(capacity_blocks, config.policy, config.reuse);
        if let Some(changes) = &config.changes {
            index.follow(name, changes);
        }
        let restored = index.restore(&kept.iter().map(|row| (row.key, row.slot)).collect::<Vec<_>>());
        restored.expect("the catalog names each block and each slot once");
        let sums = kept.into_iter().map(|row| (row.key, row.sums)).collect();
        let uncleared = beyond.into_iter().map(|row| row.slot).chain(unclear).collect();
        Ok(Self {
            name,
            layout,
            capacity_blocks,
            blocks_per_sync: config.blocks_per_sync.max(1),
            writable,
            slabs: Slabs::new(name, volume, layout),
            catalog: Mutex::new(catalog),
            state: Mutex::new(State { index, sums, unsynced: Vec::new(), uncleared }),
            warnings: Mutex::new(warnings),
        })
    }

    /// Makes slabs durable, then the index file.
    fn sync(&self, catalog: &mut Catalog) -> Result<(), TierError> {
        let (uncleared, rows) = lock(&self.state).take_pending();
        if uncleared.is_empty() && rows.is_empty() {
            return Ok(());
        }
        let slabs = self.slabs.sync(rows.iter().map(|row| row.slot));
        let lost = slabs.is_err();
        let synced = slabs.and_then(|()| catalog.commit(&uncleared, &rows));
        synced.map_err(|source| {
            let mut state = lock(&self.state);
            state.uncleared.extend(uncleared);
            // Without those that were removed in the meantime.
            for row in rows.iter().filter(|row| state.sums.contains_key(&row.key)).collect::<Vec<_>>() {
                // Bytes that the system could not write may be gone, though the next sync reports success.
                if !lost || state.drop_block(row.key).is_err() {
                    state.unsynced.push((row.key, row.slot));
                }
            }
            TierError::NotDurable { tier: self.name, blocks: rows.len(), source: Box::new(source) }
        })
    }

    /// Returns a slot for `key` that no durable record names, or the reason why the block need not be written.
    fn reserve(&self, key: BlockHash) -> Result<Result<u32, Stored>, TierError> {
        let mut catalog = lock(&self.catalog);
        loop {
            // The slot is taken under the lock under which no record was left to clear: a block that is removed in
            // the meantime gives its slot back, and its record names it still.
            let mut state = lock(&self.state);
            if let Some(stored) = state.index.admission(key) {
                return Ok(Err(stored));
            }
            if state.index.free_slots() == 0 {
                self.make_room(&mut state)?;
            }
            if state.uncleared.is_empty() {
                let prepared = state.index.prepare_store(&[key]).expect("a slot is free");
                return Ok(Ok(prepared.to_store.first().expect("admitted above").1));
            }
            drop(state);
            self.sync(&mut catalog)?;
        }
    }

    /// Evicts some blocks at once, so that a full tier does not sync for every block.
    fn make_room(&self, state: &mut State) -> Result<(), TierError> {
        let batch = (self.capacity_blocks / 64).max(1) as usize;
        let evicted = state.index.evict(batch, &[]).or_else(|| state.index.evict(1, &[]));
        let full = TierError::Full { tier: self.name, capacity_blocks: self.capacity_blocks.into() };
        evicted.ok_or(full)?.into_iter().for_each(|(key, slot)| state.forget(key, slot));
        Ok(())
    }

    /// Reads `into` from `offset` of the block's slot while the block is pinned.
    fn read_at(
        &self,
        key: BlockHash,
        offset: usize,
        into: &mut [u8],
        is_use: bool,
    ) -> Result<Arc<[u64]>, TierError> {
        let (slot, sums) = {
            let mut state = lock(&self.state);
            if is_use {
                state.index.touch(&[key]);
            }
            let slots = state.index.prepare_load(&[key]);
            let slots = slots.map_err(|_| TierError::NotFound { tier: self.name, key })?;
            (slots[0], state.sums[&key].clone())
        };
        let read = self.slabs.read(slot, offset, into);
        let mut state = lock(&self.state);
        state.index.complete_load(&[key]);
        if read.is_err() {
            state.drop_unreadable(key);
        }
        read.map(|()| sums)
    }

    fn verify(&self, key: BlockHash, shard: u32, bytes: &[u8], sums: &[u64]) -> Result<(), TierError> {
        let (found, expected) = (shard_sum(key, shard, bytes), sums[shard as usize]);
        if found == expected {
            return Ok(());
        }
        lock(&self.state).drop_unreadable(key);
        Err(TierError::Corrupt { tier: self.name, key, shard, found, expected })
    }
}

impl State {
    /// Slots to clear and rows to write in the index file.
    fn take_pending(&mut self) -> (Vec<u32>, Vec<SlotRecord>) {
        let row = |(key, slot)| Some(SlotRecord { key, slot, sums: self.sums.get(&key)?.clone() });
        let rows = std::mem::take(&mut self.unsynced).into_iter().filter_map(row).collect();
        (std::mem::take(&mut self.uncleared), rows)
    }

    /// Removes a block, unless it is being read.
    fn drop_block(&mut self, key: BlockHash) -> Result<bool, IndexError> {
        let removed = self.index.remove(key)?;
        if let Some(slot) = removed {
            self.forget(key, slot);
        }
        Ok(removed.is_some())
    }

    /// Drops a block that cannot be read, so that it is written again. A block that is being read stays until its last reader
    /// finds the same fault.
    fn drop_unreadable(&mut self, key: BlockHash) {
        let _ = self.drop_block(key);
    }

    /// Forgets a block that has left the index.
    fn forget(&mut self, key: BlockHash, slot: u32) {
        self.sums.remove(&key);
        self.unsynced.retain(|(unsynced, _)| *unsynced != key);
        self.uncleared.push(slot);
    }
}

impl Tier for DiskTier {
    fn name(&self) -> TierName {
        self.name
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    fn capacity_blocks(&self) -> Option<u64> {
        Some(self.capacity_blocks.into())
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        Ok(lock(&self.state).index.lookup(key) == Lookup::Ready)
    }

    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_shard(shard, into.len())?;
        let offset = self.layout.shard_range(shard)?.start;
        let sums = self.read_at(key, offset, into, shard == 0)?;
        self.verify(key, shard, into, &sums)
    }

    fn read_block(&self, key: BlockHash, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_block(into.len())?;
        let sums = self.read_at(key, 0, into, true)?;
        let mut shards = (0..self.layout.shards()).zip(into.chunks_exact(self.layout.shard_bytes()));
        shards.try_for_each(|(shard, bytes)| self.verify(key, shard, bytes, &sums))
    }

    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError> {
        self.layout.check_block(block.len())?;
        if !self.writable {
            return Ok(lock(&self.state).index.admission(key).unwrap_or(Stored::ReadOnly));
        }
        let shards = (0..).zip(block.chunks_exact(self.layout.shard_bytes()));
        let sums = shards.map(|(shard, bytes)| shard_sum(key, shard, bytes)).collect();
        let slot = match self.reserve(key)? {
            Ok(slot) => slot,
            Err(stored) => return Ok(stored),
        };
        let written = self.slabs.write(slot, block);
        let due = {
            let mut state = lock(&self.state);
            state.index.complete_store(&[key], written.is_ok());
            written?;
            state.sums.insert(key, sums);
            state.unsynced.push((key, slot));
            state.unsynced.len() >= self.blocks_per_sync as usize
        };
        if due {
            self.flush()?;
        }
        Ok(Stored::Written)
    }

    fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        lock(&self.state).drop_block(key).map_err(|error| in_use(self.name, error))
    }

    fn flush(&self) -> Result<(), TierError> {
        if self.writable { self.sync(&mut lock(&self.catalog)) } else { Ok(()) }
    }

    fn take_warnings(&self) -> Vec<TierWarning> {
        std::mem::take(&mut lock(&self.warnings))
    }
}

impl Drop for DiskTier {
    /// Flushes the tier and ignores errors, because they cannot be reported here. Call [`Tier::flush`] before to see
    /// them: blocks that are not yet synced may be lost.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

fn failed(tier: TierName, action: &'static str, source: std::io::Error) -> TierError {
    TierError::Backend { tier, action, source: Box::new(source) }
}
