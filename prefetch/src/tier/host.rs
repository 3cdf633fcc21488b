//! The host tier: blocks in memory of this process.

use std::fmt;
use std::sync::{Arc, Mutex};

use kvblock::BlockHash;

use super::{BlockLayout, Stored, Tier, TierError, TierName};
use crate::changes::Changes;
use crate::index::{IndexError, Lookup, TierIndex};
use crate::policy::{PolicyKind, ReuseFilter};
use crate::sync::lock;

/// A bounded map from hash to block. Several [stacks](crate::stack::TierStack) may use it at a time.
///
/// Reads and writes copy outside of the lock: a reader holds a reference to its block, which may outlive the
/// block's eviction, and a writer copies before it has a slot. Memory can therefore exceed the capacity by
/// one block for each reader and writer.
pub struct HostTier {
    layout: BlockLayout,
    inner: Mutex<Inner>,
}

struct Inner {
    index: TierIndex,
    /// Blocks by slot, up to the last slot ever used.
    blocks: Vec<Option<Arc<[u8]>>>,
}

impl fmt::Debug for HostTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTier")
            .field("layout", &self.layout)
            .field("index", &lock(&self.inner).index)
            .finish_non_exhaustive()
    }
}

impl HostTier {
    /// A tier for `capacity_blocks` blocks. Memory is allocated as blocks arrive.
    #[must_use]
    pub fn new(
        layout: BlockLayout,
        capacity_blocks: u32,
        policy: PolicyKind,
        reuse: Option<ReuseFilter>,
    ) -> Self {
        let index = TierIndex::new(capacity_blocks, policy, reuse);
        Self { layout, inner: Mutex::new(Inner { index, blocks: Vec::new() }) }
    }

    /// Reports the blocks of the tier to a queue, and then each change, until the last clone of the queue is dropped.
    pub fn follow(&self, changes: &Changes) {
        lock(&self.inner).index.follow(TierName::HOST, changes);
    }

    fn block(&self, key: BlockHash, is_use: bool) -> Result<Arc<[u8]>, TierError> {
        let mut inner = lock(&self.inner);
        if is_use {
            inner.index.touch(&[key]);
        }
        let slots = inner.index.prepare_load(&[key]);
        let slots = slots.map_err(|_| TierError::NotFound { tier: TierName::HOST, key })?;
        // The reference keeps the bytes, so the pin need not outlive the lock.
        inner.index.complete_load(&[key]);
        Ok(inner.blocks[slots[0] as usize].clone().expect("a ready block has bytes"))
    }
}

impl Tier for HostTier {
    fn name(&self) -> TierName {
        TierName::HOST
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    fn capacity_blocks(&self) -> Option<u64> {
        Some(lock(&self.inner).index.capacity().into())
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        Ok(lock(&self.inner).index.lookup(key) == Lookup::Ready)
    }

    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_shard(shard, into.len())?;
        let range = self.layout.shard_range(shard)?;
        into.copy_from_slice(&self.block(key, shard == 0)?[range]);
        Ok(())
    }

    fn read_block(&self, key: BlockHash, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_block(into.len())?;
        into.copy_from_slice(&self.block(key, true)?);
        Ok(())
    }

    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError> {
        self.layout.check_block(block.len())?;
        if let Some(stored) = lock(&self.inner).index.admission(key) {
            return Ok(stored);
        }
        let bytes: Arc<[u8]> = block.into();
        let mut inner = lock(&self.inner);
        // Another writer may have been faster while this one copied.
        if let Some(stored) = inner.index.admission(key) {
            return Ok(stored);
        }
        let capacity_blocks = inner.index.capacity().into();
        let prepared = inner.index.prepare_store(&[key]);
        let prepared = prepared.ok_or(TierError::Full { tier: TierName::HOST, capacity_blocks })?;
        for (_, slot) in prepared.evicted {
            inner.blocks[slot as usize] = None;
        }
        let slot = prepared.to_store[0].1 as usize;
        if inner.blocks.len() <= slot {
            inner.blocks.resize(slot + 1, None);
        }
        inner.blocks[slot] = Some(bytes);
        inner.index.complete_store(&[key], true);
        Ok(Stored::Written)
    }

    fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        let mut inner = lock(&self.inner);
        let removed = inner.index.remove(key).map_err(|error| in_use(TierName::HOST, error))?;
        if let Some(slot) = removed {
            inner.blocks[slot as usize] = None;
        }
        Ok(removed.is_some())
    }
}

/// The tier error for a block that cannot be removed now.
pub(crate) fn in_use(tier: TierName, error: IndexError) -> TierError {
    match error {
        IndexError::InUse { key, pins } => TierError::InUse { tier, key, pins },
        IndexError::NotReady { key } => TierError::InUse { tier, key, pins: 0 },
    }
}
