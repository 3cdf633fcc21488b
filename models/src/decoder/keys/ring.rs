//! The ring: slots that blocks on the host pass through, layer by layer, and the transfers of a step between device and host.
//!
//! While a chunk is attended in one slot, the blocks of the next are copied to another, and dirty blocks are written to the host.

mod copies;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Read};
use attn_kernels::kernel::swap_blocks;
use attn_kernels::rows::KvWord;

use prefetch::spill::SpillError;
use rustc_hash::FxHashMap;

use super::disk::{DiskKeys, DiskReport, ReadKey};
use super::lists::StreamLists;
use super::staging::{DirtyBlocks, Return, StagingBlocks};
use super::stream::{BlockCopies, BlockSource, LoadId, RingLoad};
use super::transfer::TransferContext;
use crate::kv::KeysIn;
use crate::{HostTraffic, KvPool, ModelError};
use copies::{BlockTransport, End, Transfer};

/// Keys that pass through the ring.
#[derive(Debug)]
pub(in crate::decoder) struct RingKeys {
    transport: BlockTransport,
    /// Staging blocks for dirty blocks.
    staging: StagingBlocks,
    slots: Vec<Slot>,
    /// Number of loads of the step so far.
    loads: u64,
    /// The layer whose staging blocks were not written to the host yet.
    unsaved: Option<usize>,
    /// The disk's part, if there are blocks on disk.
    disk: Option<DiskKeys>,
    /// Traffic so far.
    traffic: HostTraffic,
    /// Fetches of the commands recorded last.
    fetches: Fetches,
}

/// Lists of copies that commands fetch from the host, and the number of times of each. Their contents are known when
/// the commands are submitted.
pub(in crate::decoder) type Fetches = FxHashMap<Range<usize>, u64>;

/// Contents of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    load: Option<LoadId>,
    /// Whether the slot has the dirty blocks of the chunk too.
    complete: bool,
    /// Number of the load that last used the slot.
    used: u64,
}

impl RingKeys {
    /// Creates the ring of a pool.
    pub(super) fn new(gpu: &Gpu, kv: &KvPool, layers: u32) -> Result<Self, ModelError> {
        let transport = match kv.is_staged() {
            true => BlockTransport::Queue,
            false => BlockTransport::Kernel(gpu.pipeline(&swap_blocks::variant())?),
        };
        let slots = kv.ring().map_or(0, crate::kv::Ring::slots) as usize;
        Ok(Self {
            transport,
            staging: StagingBlocks::new(gpu, kv, layers)?,
            slots: vec![Slot::default(); slots],
            loads: 0,
            unsaved: None,
            disk: kv.spill().map(|spill| DiskKeys::new(Arc::clone(spill))),
            traffic: HostTraffic::default(),
            fetches: Fetches::default(),
        })
    }

    /// Takes the fetches of the commands that were recorded last.
    pub(super) fn take_fetches(&mut self) -> Fetches {
        std::mem::take(&mut self.fetches)
    }

    /// Counts the fetches of a step's commands by its lists.
    pub(super) fn sent(&mut self, kv: &KvPool, lists: &StreamLists, fetches: &Fetches) {
        let copies = |pairs: &Range<usize>| lists.pairs[pairs.clone()].iter().filter(|copy| copy.is_some());
        let blocks: u64 = fetches.iter().map(|(pairs, times)| copies(pairs).count() as u64 * times).sum();
        self.traffic.fetched_bytes += blocks * kv.attended_bytes();
    }

    pub(super) fn traffic(&self) -> HostTraffic {
        self.traffic
    }

    pub(super) fn wrote(&mut self, bytes: u64) {
        self.traffic.written_bytes += bytes;
    }

    /// Returns K and V of the current layer's dirty blocks, if a policy selects among blocks on disk.
    pub(in crate::decoder) fn written(&self, kv: &KvPool) -> Option<[&Buf<KvWord>; 2]> {
        let mut staging = self.staging.of(0).filter(|_| !kv.board().is_empty());
        Some([staging.next()?, staging.next()?])
    }

    /// Allocates staging blocks for the dirty blocks.
    pub(super) fn fit_staging(
        &mut self,
        gpu: &Gpu,
        kv: &KvPool,
        dirty: &DirtyBlocks,
    ) -> Result<(), ModelError> {
        if dirty.in_staging() { self.staging.fit(gpu, kv, dirty) } else { Ok(()) }
    }

    /// Forgets what was recorded last.
    pub(super) fn begin(&mut self) {
        self.slots.fill(Slot::default());
        self.unsaved = None;
        self.loads = 0;
        self.fetches.clear();
        if let Some(disk) = &mut self.disk {
            disk.begin();
        }
    }

    /// Returns the numbers that the step's commands depend on; `None` if the host takes part.
    pub(super) fn shape(&self) -> Option<impl Iterator<Item = usize>> {
        let by_kernels = matches!(self.transport, BlockTransport::Kernel(_)) && self.disk.is_none();
        by_kernels.then(|| self.staging.lens())
    }

    /// Returns the staging blocks of a layer.
    pub(super) fn staging(&self, layer: usize) -> impl Iterator<Item = &Buf<KvWord>> {
        self.staging.of(layer)
    }

    /// Records the copy of partly filled blocks to their staging blocks.
    pub(in crate::decoder) fn fetch_partial_blocks(
        &mut self,
        context: &mut TransferContext<'_>,
        layer: usize,
    ) -> Result<(), ModelError> {
        let dirty = &context.offload_plan.dirty;
        if !dirty.in_staging() {
            return Ok(());
        }
        if let Some(disk) = &mut self.disk {
            let staging: Vec<&Buf<KvWord>> = self.staging.of(layer).collect();
            disk.fetch(context, ReadKey::Begun(layer), &dirty.disk_to_staging, &staging)?;
        }
        for pairs in dirty.to_staging.clone() {
            *self.fetches.entry(pairs.clone()).or_default() += 1;
            self.copy(context, layer, End::Host, End::Staging, pairs);
        }
        self.unsaved = Some(layer);
        Ok(())
    }

    /// Records the copy of a chunk to the device, unless it is there. The copy of `next` and the write of dirty blocks to
    /// the host run concurrently with the commands that follow. Returns the location of the chunk's keys.
    pub(in crate::decoder) fn bring(
        &mut self,
        context: &mut TransferContext<'_>,
        load: RingLoad<'_>,
        next: Option<RingLoad<'_>>,
    ) -> Result<KeysIn, ModelError> {
        let current = load.moves().then(|| self.slot_of(context, load, None));
        self.read_ahead(context, load, next);
        if let Some(slot) = current.filter(|slot| !self.slots[*slot].complete) {
            if let Some(disk) = &mut self.disk {
                let slot: Vec<&Buf<KvWord>> =
                    context.kv.keys_in(load.id.layer, KeysIn::Slot(slot)).iter().collect();
                disk.fetch(context, ReadKey::Chunk(load.id), &context.offload_plan.on_disk(&load), &slot)?;
            }
            for part in load.contents.parts.iter().filter(|part| part.late && part.from != BlockSource::Disk)
            {
                self.load_part(context, load.id.layer, part, slot);
            }
            self.slots[slot].complete = true;
        }
        // Copies of the queue do not run concurrently.
        if matches!(self.transport, BlockTransport::Kernel(_)) {
            let ends = next.is_none_or(|next| next.id.layer != load.id.layer);
            let next = next.filter(|next| !self.slots.iter().any(|slot| slot.load == Some(next.id)));
            let next = next.filter(|_| self.slots.len() > 1);
            if next.is_some() || (ends && self.unsaved.is_some()) {
                context.pass.split();
            }
            if let Some(next) = next {
                self.slot_of(context, next, current);
            }
            if ends {
                self.save(context);
            }
        }
        Ok(current.map_or(load.contents.at, KeysIn::Slot))
    }

    /// Starts reading the blocks on disk of a chunk and of the next one, in the order in which they are needed.
    fn read_ahead(&mut self, context: &TransferContext<'_>, load: RingLoad<'_>, next: Option<RingLoad<'_>>) {
        let Some(disk) = &mut self.disk else { return };
        if load.moves() && !self.slots.iter().any(|slot| slot.load == Some(load.id) && slot.complete) {
            disk.read_ahead(context.kv, ReadKey::Chunk(load.id), &context.offload_plan.on_disk(&load));
        }
        if let Some(next) = next {
            if next.id.layer != load.id.layer {
                disk.read_ahead(
                    context.kv,
                    ReadKey::Begun(next.id.layer),
                    &context.offload_plan.dirty.disk_to_staging,
                );
            }
            disk.read_ahead(context.kv, ReadKey::Chunk(next.id), &context.offload_plan.on_disk(&next));
        }
    }

    /// Records the copy of a layer's staged keys to the board, if there is one.
    pub(in crate::decoder) fn show(&self, context: &mut TransferContext<'_>, layer: usize) {
        if !context.kv.board().is_empty() {
            self.copy(context, layer, End::Staging, End::Board, context.offload_plan.dirty.board.clone());
        }
    }

    /// Records the write of the last layer's dirty blocks to the host, unless it is done.
    pub(in crate::decoder) fn save(&mut self, context: &mut TransferContext<'_>) {
        let Some(layer) = self.unsaved.take() else { return };
        let dirty = &context.offload_plan.dirty;
        if matches!(self.transport, BlockTransport::Kernel(_)) {
            self.copy(context, layer, End::Staging, End::Host, dirty.to_host.clone());
        }
        self.show(context, layer);
        if let Some(disk) = &mut self.disk {
            let staging: Vec<&Buf<KvWord>> = self.staging.of(layer).collect();
            disk.give_back(context, layer, &dirty.staging_to_disk, &staging);
        }
    }

    /// Ends the attention of a layer: its dirty blocks are written, and the staging blocks are free for the next layer.
    pub(in crate::decoder) fn end_layer(
        &mut self,
        context: &mut TransferContext<'_>,
    ) -> Result<(), ModelError> {
        self.save(context);
        self.disk.as_mut().map_or(Ok(()), |disk| disk.end_layer(context))
    }

    /// Submits the recorded commands, waits for them, and returns `reads`.
    pub(super) fn sync(
        &mut self,
        context: &mut TransferContext<'_>,
        reads: Vec<Read<u32>>,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        self.disk.as_mut().expect("only blocks on disk are waited for").sync(context, reads)
    }

    /// Reports blocks that could not be read.
    pub(super) fn lose(&mut self, kv: &KvPool, lost: Vec<SpillError>) {
        if let Some(disk) = &mut self.disk {
            disk.lose(kv, lost);
        }
    }

    /// Ends a step whose commands are done.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<DiskReport, ModelError> {
        self.disk.as_mut().map_or_else(|| Ok(DiskReport::default()), |disk| disk.end(gpu))
    }

    /// Returns the slot of a chunk. If it has none, takes one other than `kept`, and records the copies that do not depend on the
    /// step.
    fn slot_of(
        &mut self,
        context: &mut TransferContext<'_>,
        load: RingLoad<'_>,
        kept: Option<usize>,
    ) -> usize {
        self.loads += 1;
        let found = self.slots.iter().position(|slot| slot.load == Some(load.id));
        let slot = found.unwrap_or_else(|| {
            let oldest = (0..self.slots.len()).filter(|slot| Some(*slot) != kept);
            let slot =
                oldest.min_by_key(|slot| self.slots[*slot].used).expect("a slot beside the one in use");
            for part in load.contents.parts.iter().filter(|part| !part.late) {
                self.load_part(context, load.id.layer, part, slot);
            }
            self.slots[slot] = Slot { load: Some(load.id), complete: false, used: 0 };
            slot
        });
        self.slots[slot].used = self.loads;
        slot
    }

    /// Records copies of blocks of a layer, given a range of the step's list of pairs.
    fn copy(&self, context: &mut TransferContext<'_>, layer: usize, from: End, to: End, pairs: Range<usize>) {
        self.transport.copy(context, &self.staging, layer, Transfer { from, to, pairs });
    }

    fn load_part(
        &mut self,
        context: &mut TransferContext<'_>,
        layer: usize,
        part: &BlockCopies,
        slot: usize,
    ) {
        let from = match part.from {
            BlockSource::Host => {
                *self.fetches.entry(part.pairs.clone()).or_default() += 1;
                End::Host
            }
            BlockSource::Resident => End::Layer,
            BlockSource::Staging => End::Staging,
            BlockSource::Disk => unreachable!("the host brings what lies on disk"),
        };
        self.copy(context, layer, from, End::Slot(slot), part.pairs.clone());
    }

    /// Records the readback of dirty blocks, if kernels cannot write to the host.
    pub(super) fn read_dirty(&self, pass: &mut Pass, kv: &KvPool, dirty: &DirtyBlocks) -> Vec<Return> {
        match self.transport {
            BlockTransport::Queue => self.staging.read(pass, kv, dirty),
            BlockTransport::Kernel(_) => Vec::new(),
        }
    }
}
