//! Plan of the keys and values of a step that are not on the device: where the step writes, and how the blocks it attends come to
//! the device.

use attn_kernels::gpu::{Bind, Gpu};
use attn_kernels::rows::{BlockCopy, PhysicalBlock};

use super::lists::{ENTRIES, StreamLists, is_run};
use super::staging::DirtyBlocks;
use super::stream::{BlockSource, RingLoad, Stream};
use crate::decoder::batch::{Batch, Dense, GroupRows};
use crate::decoder::buffers::StepList;
use crate::decoder::options::DecoderOptions;
use crate::kv::Ring;
use crate::{KvPool, ModelError};

/// Plan of the keys and values of a step that are not on the device.
#[derive(Debug)]
pub(in crate::decoder) struct OffloadPlan {
    /// Slot of each row's keys and values off the device; -1 for rows that are written elsewhere. There is one list of
    /// slots of blocks for each buffer that the step writes, or one list of slots of [staging blocks](DirtyBlocks).
    slots: StepList<i32>,
    /// Segments that the step writes, and the position of each segment's slots. There is only one if slots are of staging
    /// blocks, and none if no row is written off the device.
    segments: Vec<(usize, usize)>,
    /// Whether some rows write to blocks on the device, in a step in which others do not.
    resident: bool,
    pub(super) dirty: DirtyBlocks,
    pub(super) lists: StreamLists,
    /// Streams of the rows of each attention group that attend everything they see; `None` if all of it is on the device.
    pub(super) streams: Vec<[Option<Stream>; 2]>,
}

impl OffloadPlan {
    pub(in crate::decoder) fn new(gpu: &Gpu, options: &DecoderOptions) -> Result<Self, ModelError> {
        let rows = if options.offload.is_some() { options.max_rows as usize } else { 1 };
        Ok(Self {
            slots: StepList::new(gpu, "host_slots", rows)?,
            segments: Vec::new(),
            resident: false,
            dirty: DirtyBlocks::default(),
            lists: StreamLists::new(gpu)?,
            streams: Vec::new(),
        })
    }

    /// Forgets the last step.
    pub(super) fn clear(&mut self, attn_groups: usize) {
        self.slots.clear();
        self.segments.clear();
        self.dirty = DirtyBlocks::default();
        self.lists.clear();
        self.streams.clear();
        self.streams.resize_with(attn_groups, || [None, None]);
    }

    /// Moves the slots of rows whose blocks are not on the device out of the lists of the attention groups. Returns whether there
    /// are such rows.
    pub(super) fn take_slots(&mut self, ring: &Ring, block_size: u32, batch: &mut Batch) -> bool {
        let index_of = |slot: i32| ring.off_device_index(slot.cast_unsigned() / block_size);
        let slot_of = |slot: &i32| match index_of(*slot) {
            Some(block) => (block * block_size + slot.cast_unsigned() % block_size).cast_signed(),
            None => -1,
        };
        let all = batch.attn_groups.first().map_or(&[][..], |attn_group| &attn_group.slots);
        self.slots.extend(all.iter().map(slot_of));
        if self.slots.iter().all(|slot| *slot < 0) {
            self.slots.clear();
            return false;
        }
        self.segments.push((0, 0));
        for attn_group in &mut batch.attn_groups {
            for (slot, host) in attn_group.slots.iter_mut().zip(self.slots.iter()) {
                *slot = if *host < 0 { *slot } else { -1 };
            }
        }
        self.resident = batch.attn_groups.iter().any(|group| group.slots.iter().any(|slot| *slot >= 0));
        self.dirty = DirtyBlocks::of(&self.slots, block_size, ring.host_blocks());
        true
    }

    /// Directs writes to staging blocks. Returns the number of tokens that are written to the host, in whole blocks.
    pub(super) fn divert(&mut self, block_size: u32) -> usize {
        self.dirty.divert(&mut self.slots, block_size, &mut self.lists.pairs);
        self.dirty.on_host().count() * block_size as usize
    }

    /// Directs writes to the buffers of the blocks themselves. Rows get slots in each buffer that some of them write.
    pub(super) fn write_in_place(&mut self, kv: &KvPool) {
        let block_size = kv.shape().block_size;
        let of_pool = std::mem::take(&mut *self.slots);
        let segment_of = |slot: i32| kv.segment_of(slot.cast_unsigned() / block_size);
        let mut segments: Vec<usize> =
            of_pool.iter().filter(|slot| **slot >= 0).map(|slot| segment_of(*slot)).collect();
        segments.sort_unstable();
        segments.dedup();
        self.segments.clear();
        for segment in segments {
            let first = (kv.host_segment(segment).start * block_size).cast_signed();
            let here =
                |slot: &i32| if *slot >= 0 && segment_of(*slot) == segment { *slot - first } else { -1 };
            let at = self.slots.len().next_multiple_of(ENTRIES);
            self.slots.resize(at, -1);
            self.slots.extend(of_pool.iter().map(here));
            self.segments.push((segment, at));
        }
    }

    /// Returns the number of rows that write to blocks off the device.
    pub(super) fn written_rows(&self) -> usize {
        self.slots.iter().filter(|slot| **slot >= 0).count()
    }

    /// Uploads the lists of a step.
    pub(in crate::decoder) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.slots.upload(gpu)?;
        self.lists.tables.upload(gpu)?;
        self.lists.pairs.upload(gpu)
    }

    /// Whether some rows write to blocks off the device.
    pub(super) fn writes(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Whether some rows write to blocks on the device.
    pub(super) fn writes_resident(&self) -> bool {
        !self.writes() || self.resident
    }

    /// Returns the slots of rows that write to blocks off the device, by segment.
    pub(super) fn slots(&self) -> impl Iterator<Item = (usize, Bind<i32>)> {
        self.segments.iter().map(|(segment, at)| (*segment, self.slots.bind_from(*at)))
    }

    /// Returns the numbers that the step's commands depend on, from its reads and writes of blocks off the device.
    pub(super) fn shape(&self, kv: &KvPool) -> Vec<usize> {
        let writes = [self.dirty.in_staging(), self.writes_resident()];
        let mut shape: Vec<usize> = writes.map(usize::from).into();
        shape.push(self.slots.on_device().len());
        shape.extend(self.segments.iter().flat_map(|(segment, at)| [*segment, *at]));
        shape.extend([self.lists.tables.on_device().len(), self.lists.pairs.on_device().len()]);
        shape.extend(self.dirty.copies().flat_map(|copies| [copies.start, copies.end]));
        for streams in &self.streams {
            for stream in streams {
                shape.push(usize::from(stream.is_some()));
                shape.extend(stream.iter().flat_map(Stream::shape));
            }
        }
        // Copies are of one segment each.
        if kv.segments() > 1 {
            let ends = |copy: &BlockCopy| match copy.is_some() {
                true => [copy.from, copy.to].map(|block| kv.segment_of(block)),
                false => [0; 2],
            };
            let together = |a: &BlockCopy, b: &BlockCopy| is_run(a, b, |a, b| ends(a) == ends(b));
            for run in self.lists.pairs.chunk_by(together) {
                shape.extend(ends(&run[0]).into_iter().chain([run.len()]));
            }
        }
        shape
    }

    /// Returns the blocks off the device that the step writes.
    pub(in crate::decoder) fn dirty(&self) -> &DirtyBlocks {
        &self.dirty
    }

    /// Returns the stream of rows of an attention group.
    pub(in crate::decoder) fn stream(&self, attn_group: usize, rows: Dense) -> Option<&Stream> {
        self.streams.get(attn_group).and_then(|of_group| of_group[rows as usize].as_ref())
    }

    /// Whether some rows use the ring.
    pub(in crate::decoder) fn streams(&self) -> bool {
        self.streams.iter().flatten().any(Option::is_some)
    }

    /// Binds the block tables of a stream.
    pub(in crate::decoder) fn tables(&self, stream: &Stream) -> Bind<PhysicalBlock> {
        self.lists.tables.bind_from(stream.tables_at)
    }

    /// Returns the blocks that the step writes in the layers of an attention group, possibly several times each.
    pub(in crate::decoder) fn written_blocks(
        &self,
        attn_group: &GroupRows,
        block_size: u32,
    ) -> impl Iterator<Item = u32> + use<> {
        // If blocks are selected and live on the host, none is written elsewhere.
        let mut blocks: Vec<u32> = match self.writes() {
            true => self.dirty.blocks().to_vec(),
            false => attn_group.slots.iter().map(|slot| slot.cast_unsigned() / block_size).collect(),
        };
        blocks.dedup();
        blocks.into_iter()
    }

    /// Returns the blocks of a chunk that are on disk, and their positions in its slot.
    pub(super) fn on_disk(&self, load: &RingLoad<'_>) -> Vec<(u32, u32)> {
        let parts = load.contents.parts.iter().filter(|part| part.from == BlockSource::Disk);
        let pairs = parts.flat_map(|part| &self.lists.pairs[part.pairs.clone()]);
        pairs.filter(|copy| copy.is_some()).map(|BlockCopy { from, to }| (*from, *to)).collect()
    }
}
