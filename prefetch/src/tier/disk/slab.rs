//! Slab files: arrays of slots, read and written in place at any position by any thread.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use super::failed;
use crate::sync::lock;
use crate::tier::{BlockLayout, TierError, TierName};
use crate::volume::{Access, Volume, VolumeFile, read_exact, write_all};

/// Number of bytes of a page. Slots start on page boundaries, so that no write touches the page of a neighbour.
const PAGE_BYTES: u64 = 4096;
/// Number of bytes of a slab in which slots may start. The slab ends with its last slot, which may reach beyond them.
const SLAB_BYTES: u64 = 1 << 30;

/// Number of bytes that one block takes on disk.
pub(super) fn slot_bytes(layout: BlockLayout) -> u64 {
    (layout.block_bytes() as u64).next_multiple_of(PAGE_BYTES)
}

/// The slabs of one volume. A slab is opened when a slot in it is first used.
pub(super) struct Slabs {
    tier: TierName,
    volume: Arc<dyn Volume>,
    slot_bytes: u64,
    slots_per_slab: u32,
    files: Mutex<FxHashMap<u32, Arc<dyn VolumeFile>>>,
}

impl Slabs {
    pub(super) fn new(tier: TierName, volume: Arc<dyn Volume>, layout: BlockLayout) -> Self {
        let slot_bytes = slot_bytes(layout);
        let slots_per_slab =
            u32::try_from(SLAB_BYTES.div_ceil(slot_bytes)).expect("a slab has at most 2^18 slots");
        Self { tier, volume, slot_bytes, slots_per_slab, files: Mutex::default() }
    }

    pub(super) fn read(&self, slot: u32, offset: usize, into: &mut [u8]) -> Result<(), TierError> {
        let (slab, start) = self.locate(slot)?;
        let read = read_exact(&*slab, into, start + offset as u64);
        read.map_err(|e| failed(self.tier, "reading a slab", e))
    }

    pub(super) fn write(&self, slot: u32, block: &[u8]) -> Result<(), TierError> {
        let (slab, start) = self.locate(slot)?;
        write_all(&*slab, block, start).map_err(|e| failed(self.tier, "writing a slab", e))
    }

    /// Makes the bytes in `slots` durable.
    pub(super) fn sync(&self, slots: impl Iterator<Item = u32>) -> Result<(), TierError> {
        let slabs: BTreeSet<u32> = slots.map(|slot| slot / self.slots_per_slab).collect();
        for slab in slabs {
            self.slab(slab)?.sync().map_err(|e| failed(self.tier, "syncing a slab", e))?;
        }
        Ok(())
    }

    fn locate(&self, slot: u32) -> Result<(Arc<dyn VolumeFile>, u64), TierError> {
        let slab = self.slab(slot / self.slots_per_slab)?;
        Ok((slab, u64::from(slot % self.slots_per_slab) * self.slot_bytes))
    }

    fn slab(&self, slab: u32) -> Result<Arc<dyn VolumeFile>, TierError> {
        let mut files = lock(&self.files);
        if let Some(slab) = files.get(&slab) {
            return Ok(slab.clone());
        }
        let opened = self.open(slab).map_err(|e| failed(self.tier, "opening a slab", e))?;
        files.insert(slab, opened.clone());
        Ok(opened)
    }

    fn open(&self, slab: u32) -> io::Result<Arc<dyn VolumeFile>> {
        let name = format!("slab-{slab:04}.kv");
        if !self.volume.is_writable() {
            return Ok(self.volume.open(&name, Access::Read, true)?.into());
        }
        let file = self.volume.open(&name, Access::Create, true)?;
        self.volume.sync_names()?;
        Ok(file.into())
    }
}
