//! The disk tier: blocks in slab files, with an index that survives a crash.
//!
//! A directory holds `lock`, `index.redb` and `slab-0000.kv`, `slab-0001.kv` and so on. A slab is an array of
//! slots; a slot is one block. The index maps a hash to its slot and to the checksum of each shard.
//!
//! Two rules make a crash harmless at any moment:
//!
//! 1. A block enters the index file only after its bytes are synced to its slab.
//! 2. A slot is overwritten only after the removal of its last block from the index file is synced.
//!
//! So every block that the index file names is complete. Commits are batched: a crash loses at most the last
//! [`DiskConfig::blocks_per_sync`] blocks written, and never corrupts one. In addition, checksums guard
//! against bad media.

mod catalog;
#[cfg(target_os = "linux")]
mod direct;
mod slab;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use kvblock::BlockHash;
use rustc_hash::FxHashMap;

use super::host::in_use;
use super::{BlockLayout, Stored, Tier, TierError, TierName, checksum};
use crate::index::{Lookup, TierIndex};
use crate::policy::{PolicyKind, ReuseFilter};
use crate::sync::lock;
use catalog::{Catalog, Row};
use slab::Slabs;

/// How a disk tier is set up.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The directory; created when missing, and locked while open.
    pub directory: PathBuf,
    /// Size and division of every block.
    pub layout: BlockLayout,
    /// Names what the blocks hold: for instance model, cache group and element type. A directory written
    /// under another name is refused.
    pub namespace: String,
    /// Bytes of all slabs together.
    pub capacity_bytes: u64,
    /// Order of eviction.
    pub policy: PolicyKind,
    /// Keeps out blocks that are requested only once.
    pub reuse: Option<ReuseFilter>,
    /// Blocks between two syncs; 1 makes every write durable before it returns.
    pub blocks_per_sync: u32,
    /// Read past the system's page cache (on Linux, if the file system supports it). This suits a tier below
    /// one in memory, which keeps what will be read again: it takes half of the processor time and no memory
    /// for the cache.
    pub direct: bool,
}

/// Blocks on a disk of this machine.
pub struct DiskTier {
    layout: BlockLayout,
    capacity_blocks: u32,
    blocks_per_sync: u32,
    slabs: Slabs,
    /// Held while slots are reassigned and while the index file is written. Locked before `state`.
    catalog: Mutex<Catalog>,
    state: Mutex<State>,
}

struct State {
    index: TierIndex,
    /// Checksums by shard of every readable block.
    sums: FxHashMap<BlockHash, Arc<[u64]>>,
    /// Readable blocks that the index file does not name yet, with their slots, in order of writing.
    unsynced: Vec<(BlockHash, u32)>,
    /// Removed blocks that the index file may still name. While there is one, no slot is assigned.
    removed: Vec<BlockHash>,
}

impl DiskTier {
    /// Opens a directory and serves the complete blocks in it.
    ///
    /// # Errors
    /// [`TierError::Mismatch`] when the directory holds other blocks, [`TierError::Full`] when the capacity
    /// is smaller than one block, [`TierError::TooLarge`] when it is larger than the file system,
    /// [`TierError::Locked`] when the directory is already open, or the system's failure.
    pub fn open(config: DiskConfig) -> Result<Self, TierError> {
        let DiskConfig {
            directory,
            layout,
            namespace,
            capacity_bytes,
            policy,
            reuse,
            blocks_per_sync,
            direct,
        } = config;
        let slots = capacity_bytes / slab::slot_bytes(layout);
        let capacity_blocks = u32::try_from(slots).unwrap_or(u32::MAX);
        if capacity_blocks == 0 {
            return Err(TierError::Full { tier: TierName::DISK, capacity_blocks: 0 });
        }
        let (tier, path) = (TierName::DISK, directory.clone());
        let total = std::fs::create_dir_all(&directory).and_then(|()| fs4::total_space(&directory));
        let total_bytes =
            total.map_err(|source| TierError::Directory { tier, path: path.clone(), source })?;
        if capacity_bytes > total_bytes {
            return Err(TierError::TooLarge { tier, path, capacity_bytes, total_bytes });
        }
        let (catalog, rows) = Catalog::open(&directory, layout, &namespace)?;
        // A smaller capacity than last time: what lies beyond it is dropped.
        let (kept, beyond): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| row.slot < capacity_blocks);
        let mut index = TierIndex::new(capacity_blocks, policy, reuse);
        // Such an index was not written by this program, and its slots may hold anything.
        let restored = index.restore(&kept.iter().map(|row| (row.key, row.slot)).collect::<Vec<_>>());
        restored.map_err(|e| failed("reading the index", e))?;
        let sums = kept.into_iter().map(|row| (row.key, row.sums)).collect();
        let removed = beyond.into_iter().map(|row| row.key).collect();
        Ok(Self {
            layout,
            capacity_blocks,
            blocks_per_sync: blocks_per_sync.max(1),
            slabs: Slabs::open(directory, layout, direct)?,
            catalog: Mutex::new(catalog),
            state: Mutex::new(State { index, sums, unsynced: Vec::new(), removed }),
        })
    }

    /// Makes slabs durable, then the index file: first removals, then additions.
    fn sync(&self, catalog: &mut MutexGuard<'_, Catalog>) -> Result<(), TierError> {
        let (removed, rows) = {
            let mut state = lock(&self.state);
            let unsynced = std::mem::take(&mut state.unsynced);
            let rows: Vec<Row> = unsynced
                .into_iter()
                .filter_map(|(key, slot)| Some(Row { key, slot, sums: state.sums.get(&key)?.clone() }))
                .collect();
            (std::mem::take(&mut state.removed), rows)
        };
        if removed.is_empty() && rows.is_empty() {
            return Ok(());
        }
        let written = self.slabs.sync(rows.iter().map(|row| row.slot));
        let synced = written.and_then(|()| catalog.commit(&removed, &rows));
        if synced.is_err() {
            let mut state = lock(&self.state);
            state.removed.extend(removed);
            state.unsynced.extend(rows.into_iter().map(|row| (row.key, row.slot)));
        }
        synced
    }

    /// A slot for `key` that nothing durable names, or why the block need not be written.
    fn reserve(&self, key: BlockHash) -> Result<Result<u32, Stored>, TierError> {
        let mut catalog = lock(&self.catalog);
        let must_sync = {
            let mut state = lock(&self.state);
            if let Some(stored) = state.index.admission(key) {
                return Ok(Err(stored));
            }
            if state.index.free_slots() == 0 {
                // Some at once, so that a full tier does not sync for every block.
                let batch = (self.capacity_blocks / 64).max(1) as usize;
                let evicted = state.index.evict(batch, &[]).or_else(|| state.index.evict(1, &[]));
                let capacity_blocks = self.capacity_blocks.into();
                let evicted = evicted.ok_or(TierError::Full { tier: TierName::DISK, capacity_blocks })?;
                evicted.into_iter().for_each(|(key, _)| state.forget(key));
            }
            !state.removed.is_empty()
        };
        if must_sync {
            self.sync(&mut catalog)?;
        }
        let mut state = lock(&self.state);
        let prepared =
            state.index.prepare_store(&[key]).expect("a slot is free, and only `reserve` takes slots");
        Ok(Ok(prepared.to_store.first().expect("admitted above").1))
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
            let slots = slots.map_err(|_| TierError::NotFound { tier: TierName::DISK, key })?;
            (slots[0], state.sums[&key].clone())
        };
        let read = self.slabs.read(slot, offset, into);
        lock(&self.state).index.complete_load(&[key]);
        read.map(|()| sums)
    }

    fn verify(&self, key: BlockHash, shard: u32, bytes: &[u8], sums: &[u64]) -> Result<(), TierError> {
        let (found, expected) = (checksum(bytes), sums[shard as usize]);
        if found == expected {
            return Ok(());
        }
        // While other readers hold it, the block stays until one of them meets the same checksum.
        let _ = self.remove(key);
        Err(TierError::Corrupt { tier: TierName::DISK, key, shard, found, expected })
    }
}

impl State {
    /// Forgets a block that has left the index.
    fn forget(&mut self, key: BlockHash) {
        self.sums.remove(&key);
        self.unsynced.retain(|(unsynced, _)| *unsynced != key);
        self.removed.push(key);
    }
}

impl Tier for DiskTier {
    fn name(&self) -> TierName {
        TierName::DISK
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
        let sums = block.chunks_exact(self.layout.shard_bytes()).map(checksum).collect();
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
        let mut state = lock(&self.state);
        let removed = state.index.remove(key).map_err(|error| in_use(TierName::DISK, error))?;
        if removed.is_some() {
            state.forget(key);
        }
        Ok(removed.is_some())
    }

    fn flush(&self) -> Result<(), TierError> {
        self.sync(&mut lock(&self.catalog))
    }
}

impl Drop for DiskTier {
    /// Blocks not yet synced would be lost, which is allowed; a failure here has nobody to tell.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

fn failed(action: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> TierError {
    TierError::Backend { tier: TierName::DISK, action, source: Box::new(source) }
}
