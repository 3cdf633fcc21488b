//! Dumps by shards: a block is collected here, and written once it is whole.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvblock::BlockHash;

use super::{Shared, StoreError, Task, Work};
use crate::sync::lock;
use crate::tier::{BlockLayout, TierError};

/// Blocks that are saved shard by shard, for instance layer by layer.
///
/// A block is written to the tiers, and visible to lookups, only once its last shard has arrived. Dropping the dump
/// gives up the blocks that have not all their shards; no other dump of the same blocks is affected.
pub struct Dump {
    shared: Arc<Shared>,
    blocks: Vec<Arc<Partial>>,
}

impl Dump {
    pub(super) fn new(shared: Arc<Shared>, keys: Vec<BlockHash>) -> Result<Self, StoreError> {
        let layout = shared.tiers.layout();
        let collects = layout.shards() > 1;
        let places = shared.places.take(if collects { keys.len() } else { 0 })?;
        let mut places = places.into_iter();
        let block = |key| {
            let collected = collects.then(|| Collected {
                bytes: Vec::new(),
                have: vec![false; layout.shards() as usize],
                _place: places.next().expect("a place was taken for each block"),
            });
            Arc::new(Partial { key, collected: Mutex::new(collected) })
        };
        let blocks = keys.into_iter().map(block).collect();
        Ok(Self { shared, blocks })
    }

    /// Saves one shard of each block, `bytes` in the order of the blocks. The task succeeds once the shards have been
    /// taken over and every block completed by them has been written.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`], [`StoreError::Layout`] for a shard of the wrong size, or
    /// [`StoreError::BlockCount`]. Nothing was queued then, and the shard may be given again.
    pub fn shard(&self, shard: u32, bytes: Vec<Arc<[u8]>>) -> Result<Task, StoreError> {
        if bytes.len() != self.blocks.len() {
            return Err(StoreError::BlockCount { given: bytes.len(), expected: self.blocks.len() });
        }
        let layout = self.shared.tiers.layout();
        for bytes in &bytes {
            layout.check_shard(shard, bytes.len()).map_err(|source| StoreError::Layout { source })?;
        }
        let work = |(block, bytes): (&Arc<Partial>, _)| {
            (block.key, Work::Dump { block: block.clone(), shard, bytes })
        };
        self.shared.enqueue(self.blocks.iter().zip(bytes).map(work).collect())
    }
}

/// A block whose shards arrive one by one.
pub(super) struct Partial {
    key: BlockHash,
    /// `None` once the block is whole, and for blocks of one shard.
    collected: Mutex<Option<Collected>>,
}

struct Collected {
    /// The block; empty before its first shard.
    bytes: Vec<u8>,
    /// `[shards]`
    have: Vec<bool>,
    _place: Place,
}

impl Partial {
    /// Takes a shard over. Returns the block if it is whole now.
    pub(super) fn take(
        &self,
        layout: BlockLayout,
        shard: u32,
        bytes: &[u8],
    ) -> Result<Option<Whole>, TierError> {
        let mut collected = lock(&self.collected);
        // A shard that comes again after the block was whole.
        let Some(partial) = collected.as_mut() else { return Ok(None) };
        partial.bytes.resize(layout.block_bytes(), 0);
        partial.bytes[layout.shard_range(shard)?].copy_from_slice(bytes);
        partial.have[shard as usize] = true;
        let whole = partial.have.iter().all(|&have| have);
        Ok(if whole { collected.take().map(Whole) } else { None })
    }
}

/// A block with all its shards; it keeps its place until it is written.
pub(super) struct Whole(Collected);

impl Whole {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// The places for blocks of which only some shards have come.
pub(super) struct Places {
    taken: Arc<AtomicUsize>,
    partial_max: usize,
}

/// One place; it is free again when this is dropped.
struct Place(Arc<AtomicUsize>);

impl Places {
    pub(super) fn new(partial_max: usize) -> Self {
        Self { taken: Arc::default(), partial_max }
    }

    /// Takes `count` places or none.
    fn take(&self, count: usize) -> Result<Vec<Place>, StoreError> {
        let partial_max = self.partial_max;
        let more = |taken: usize| taken.checked_add(count).filter(|&taken| taken <= partial_max);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|taken| StoreError::TooManyPartial { partial: taken + count, partial_max })?;
        Ok((0..count).map(|_| Place(self.taken.clone())).collect())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
