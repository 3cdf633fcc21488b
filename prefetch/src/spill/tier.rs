//! A spill as a tier: selections request blocks by name, in any order, ahead of need.

use std::sync::Arc;

use kvblock::BlockHash;

use super::{Spill, SpillRun};
use crate::tier::{BlockLayout, Stored, Tier, TierError, TierName};

/// Blocks of a spill as an [engine](crate::engine::Engine) loads and caches them. A block of this tier combines the
/// contents of one block number in neighbouring regions, K and V of a layer for instance; each region is a shard.
///
/// Names tell contents: [`key`](Self::key) has the number of writes in it, so that what was loaded before a write is not found by
/// names from after it. Only [`Spill::write`] writes.
#[derive(Debug)]
pub struct SpillTier {
    spill: Arc<Spill>,
    layout: BlockLayout,
}

/// Contents of a key: the position of a block in the spill, and the state of the block.
struct Named {
    region: u32,
    block: u32,
    writes: u32,
}

impl Named {
    fn key(&self) -> BlockHash {
        let mut bytes = [0; 32];
        for (at, part) in [self.block, self.region, self.writes].into_iter().enumerate() {
            bytes[4 * at..][..4].copy_from_slice(&part.to_le_bytes());
        }
        BlockHash::from_bytes(bytes)
    }

    fn of(key: BlockHash) -> Self {
        let bytes = key.as_bytes();
        let part = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { block: part(0), region: part(4), writes: part(8) }
    }
}

impl SpillTier {
    /// Creates a tier with blocks of `regions` regions each. `None` if the spill's regions are not a multiple of
    /// `regions`, or if blocks are larger than a tier allows.
    #[must_use]
    pub fn new(spill: Arc<Spill>, regions: u32) -> Option<Self> {
        let shape = spill.shape();
        let whole = regions > 0 && shape.regions.is_multiple_of(regions);
        let layout = BlockLayout::new(regions, u32::try_from(shape.block_bytes).ok()?).filter(|_| whole)?;
        Some(Self { spill, layout })
    }

    /// Key of a block that begins at the region `first`, in its state after all writes that were begun.
    ///
    /// # Panics
    /// When the block leaves the spill.
    #[must_use]
    pub fn key(&self, first: u32, block: u32) -> BlockHash {
        Named { region: first, block, writes: self.writes(first, block) }.key()
    }

    /// The spill.
    #[must_use]
    pub fn spill(&self) -> &Arc<Spill> {
        &self.spill
    }

    /// Number of writes of a block in all of its regions, which every write increases.
    fn writes(&self, first: u32, block: u32) -> u32 {
        let regions = first..first + self.layout.shards();
        regions.fold(0, |sum: u32, region| sum.wrapping_add(self.spill.writes(region, block)))
    }

    /// The contents of a key; `None` unless it names the current state of a block.
    fn current(&self, key: BlockHash) -> Option<Named> {
        let named = Named::of(key);
        let shape = self.spill.shape();
        let inside = named.block < shape.blocks
            && named.region.is_multiple_of(self.layout.shards())
            && named.region < shape.regions;
        (inside && named.key() == key && self.writes(named.region, named.block) == named.writes)
            .then_some(named)
    }
}

impl Tier for SpillTier {
    fn name(&self) -> TierName {
        TierName::DISK
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    fn capacity_blocks(&self) -> Option<u64> {
        let shape = self.spill.shape();
        Some(u64::from(shape.blocks) * u64::from(shape.regions / self.layout.shards()))
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        Ok(self.current(key).is_some())
    }

    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_shard(shard, into.len())?;
        let absent = || TierError::NotFound { tier: self.name(), key };
        let Named { region, block, .. } = self.current(key).ok_or_else(absent)?;
        let run = SpillRun { region: region + shard, blocks: block..block + 1 };
        if let Some(lost) = self.spill.read_into(&run, into).into_iter().next() {
            return Err(TierError::Backend { tier: self.name(), action: "read", source: Box::new(lost) });
        }
        // A write that was begun meanwhile may have been read.
        self.current(key).map(drop).ok_or_else(absent)
    }

    fn write(&self, _: BlockHash, _: &[u8]) -> Result<Stored, TierError> {
        Ok(Stored::ReadOnly)
    }

    fn remove(&self, _: BlockHash) -> Result<bool, TierError> {
        Ok(false)
    }
}
