//! Locations of the keys and values of a step, and their transfer to the device.

mod disk;
mod fetcher;
mod lists;
mod offload_plan;
mod residency;
mod ring;
mod staging;
mod stream;
mod stream_plan;
mod summaries;
mod transfer;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass};
use attn_kernels::rows::KvWord;
use smallvec::{SmallVec, smallvec};

use super::attention_groups::AttentionGroup;
use super::batch::{Batch, Dense};
use super::options::DecoderOptions;
use crate::batch::Slice;
use crate::{DecoderConfig, HostTraffic, KvPool, ModelError};

pub(super) use disk::DiskReport;
pub(super) use offload_plan::OffloadPlan;
pub(super) use residency::{Needed, PageContext, Residency, SlotCapacity, TILE_KEYS};
pub(super) use ring::{Fetches, RingKeys};
pub(super) use staging::Return;
pub(super) use stream::{RingGroup, RingLoad, Stream};
pub(super) use transfer::TransferContext;

/// Memory that holds the blocks of the cache.
#[derive(Debug)]
pub(super) enum KeySource {
    /// All blocks are on the device.
    Device,
    /// Some blocks are on the host: they pass through the ring.
    Ring(RingKeys),
    /// All blocks are on the host: pages of selected blocks have slots on the device, and rows that attend everything use the
    /// ring.
    Pages { ring: RingKeys, pages: Box<Residency> },
}

/// Location of the keys of some rows.
#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    /// All keys are on the device.
    Device,
    /// Some keys pass through the ring.
    Ring(&'a Stream),
    /// The pages that the rows attend have slots, after they were made resident.
    Slots(SlotCapacity),
}

/// Minimum number of rows of a step whose keys and values are written to the host as whole blocks, if pages are selected.
const WHOLE_BLOCKS_FROM: usize = 64;

/// Maximum size of whole blocks relative to the rows that a step writes. If whole blocks are larger, rows are written
/// one by one, as for many sequences that add a token each.
const WHOLE_BLOCKS_COST: usize = 4;

impl<'a> Keys<'a> {
    /// Returns the location of the keys for rows of an attention group that attend everything they see.
    pub(super) fn of(offload_plan: &'a OffloadPlan, attn_group: usize, rows: Dense) -> Self {
        offload_plan.stream(attn_group, rows).map_or(Keys::Device, Keys::Ring)
    }
}

/// Destination of new keys and values, for the rows that have a slot in it.
pub(super) struct KvDestination<'a> {
    pub(super) slots: Bind<i32>,
    /// Buffers of keys and of values, or of latents.
    pub(super) buffers: SmallVec<[&'a Buf<KvWord>; 2]>,
}

impl KeySource {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        kv: &KvPool,
    ) -> Result<Self, ModelError> {
        if kv.ring().is_none() {
            return Ok(Self::Device);
        }
        let ring = RingKeys::new(gpu, kv, config.num_layers)?;
        Ok(match options.selection().filter(|_| kv.page_slots() > 0) {
            None => Self::Ring(ring),
            Some(sparse) => {
                if kv.spill().is_some() && !sparse.selects_from_disk() {
                    let lacks = "a policy that selects by position, or that kernels rank by digests or hashes, where they lie on disk";
                    return Err(ModelError::Offload { lacks });
                }
                if kv.segments() > 1 && sparse.reads_one_buffer() {
                    let lacks = "one buffer a layer beside a policy that chooses by the keys of all blocks";
                    return Err(ModelError::Offload { lacks });
                }
                let pages = Box::new(Residency::new(gpu, config, options, &*sparse.policy, kv)?);
                Self::Pages { ring, pages }
            }
        })
    }

    /// Whether blocks are on disk, so that the host takes part in a step and no two steps have the same commands.
    pub(super) fn on_disk(&self) -> bool {
        self.pages().is_some_and(Residency::on_disk)
    }

    fn ring(&self) -> Option<&RingKeys> {
        match self {
            Self::Device => None,
            Self::Ring(ring) | Self::Pages { ring, .. } => Some(ring),
        }
    }

    /// Returns the ring, if blocks pass through one.
    pub(super) fn ring_mut(&mut self) -> Option<&mut RingKeys> {
        match self {
            Self::Device => None,
            Self::Ring(ring) | Self::Pages { ring, .. } => Some(ring),
        }
    }

    /// Returns the slots for selected pages, if there are any.
    pub(super) fn pages(&self) -> Option<&Residency> {
        match self {
            Self::Pages { pages, .. } => Some(pages),
            Self::Device | Self::Ring(_) => None,
        }
    }

    pub(super) fn pages_mut(&mut self) -> Option<&mut Residency> {
        match self {
            Self::Pages { pages, .. } => Some(pages),
            Self::Device | Self::Ring(_) => None,
        }
    }

    /// Returns, for each layer, whether a prefetch is pending.
    pub(super) fn pending_prefetches(&self) -> Vec<bool> {
        self.pages().map_or_else(Vec::new, Residency::pending_prefetches)
    }

    /// Restores which layers have a pending prefetch.
    pub(super) fn set_pending_prefetches(&mut self, pending_prefetches: &[bool]) {
        self.pages_mut().into_iter().for_each(|pages| pages.set_pending_prefetches(pending_prefetches));
    }

    /// Returns the traffic between device and host so far.
    pub(super) fn traffic(&self) -> HostTraffic {
        self.ring().map_or_else(HostTraffic::default, RingKeys::traffic)
    }

    /// Plans where a step writes, and which of its rows use the ring. `selects` says whether blocks are selected in every layer.
    pub(super) fn plan(
        &mut self,
        kv: &KvPool,
        attn_groups: &[AttentionGroup],
        slices: &[Slice<'_>],
        batch: &mut Batch,
        offload_plan: &mut OffloadPlan,
        selects: bool,
    ) -> Result<(), ModelError> {
        offload_plan.clear(attn_groups.len());
        let one_by_one = self.pages().is_some_and(|pages| !pages.on_disk());
        let (ring, pages) = match self {
            Self::Device => return Ok(()),
            Self::Ring(ring) => (ring, None),
            Self::Pages { ring, pages } => (ring, Some(pages)),
        };
        let Some(of_kv) = kv.ring() else { return Ok(()) };
        let block_size = kv.shape().block_size;
        if offload_plan.take_slots(of_kv, block_size, batch) {
            let rows = offload_plan.written_rows();
            let whole = offload_plan.dirty.blocks().len() * block_size as usize;
            let few = one_by_one && (rows < WHOLE_BLOCKS_FROM || whole > WHOLE_BLOCKS_COST * rows);
            let tokens = match few {
                true => {
                    offload_plan.write_in_place(kv);
                    rows
                }
                false => offload_plan.divert(block_size),
            };
            if let Some(summaries) = pages.and_then(|pages| pages.summaries()) {
                let read_only = summaries.due(slices, |block| offload_plan.dirty.is_written(block));
                offload_plan.dirty.add_read_only(&read_only, &mut offload_plan.lists.pairs);
            }
            ring.wrote(tokens as u64 * (kv.plan().block_bytes() / u64::from(block_size)));
        }
        stream_plan::plan_streams(kv, of_kv, attn_groups, slices, batch, offload_plan, selects)?;
        self.pages_mut().map_or(Ok(()), |pages| pages.plan(kv, batch, offload_plan))
    }

    /// Uploads the lists of a step.
    pub(super) fn upload(
        &mut self,
        gpu: &Gpu,
        kv: &KvPool,
        offload_plan: &OffloadPlan,
    ) -> Result<(), ModelError> {
        self.ring_mut().map_or(Ok(()), |ring| ring.fit_staging(gpu, kv, &offload_plan.dirty))?;
        self.pages_mut().map_or(Ok(()), |pages| pages.upload(gpu))
    }

    /// Returns the numbers that the step's commands depend on, apart from its batch; `None` if the host takes part.
    pub(super) fn shape(&self, kv: &KvPool, offload_plan: &OffloadPlan) -> Option<Vec<usize>> {
        let mut shape = Vec::new();
        if let Some(ring) = self.ring().filter(|_| offload_plan.writes() || offload_plan.streams()) {
            shape.extend(ring.shape()?);
            shape.extend(offload_plan.shape(kv));
        }
        if let Some(pages) = self.pages() {
            shape.extend(pages.shape()?);
        }
        Some(shape)
    }

    /// Fails if pages of selected blocks could not be fetched.
    pub(super) fn check(&mut self) -> Result<(), ModelError> {
        self.pages_mut().and_then(Residency::take_failure).map_or(Ok(()), Err)
    }

    /// Starts recording a step.
    pub(super) fn begin(&mut self) {
        self.ring_mut().into_iter().for_each(RingKeys::begin);
    }

    /// Takes the fetches of the commands that were recorded last.
    pub(super) fn take_fetches(&mut self) -> Fetches {
        self.ring_mut().map_or_else(Fetches::default, RingKeys::take_fetches)
    }

    /// Counts what the commands of the current step fetch.
    pub(super) fn sent(&mut self, kv: &KvPool, offload_plan: &OffloadPlan, fetches: &Fetches) {
        self.ring_mut().into_iter().for_each(|ring| ring.sent(kv, &offload_plan.lists, fetches));
    }

    /// Returns the destinations of a layer's new keys and values.
    pub(super) fn destinations<'a>(
        &'a self,
        kv: &'a KvPool,
        batch: &'a Batch,
        offload_plan: &'a OffloadPlan,
        attn_group: usize,
        layer: usize,
    ) -> SmallVec<[KvDestination<'a>; 2]> {
        let mut destinations = smallvec![];
        // Where blocks are selected all live on the host.
        if self.pages().is_none() && offload_plan.writes_resident() {
            let slots = batch.attn_groups[attn_group].slots.bind();
            destinations.push(KvDestination { slots, buffers: kv.attended(layer).0.iter().collect() });
        }
        let staging = self.ring().filter(|_| offload_plan.dirty.in_staging());
        destinations.extend(offload_plan.slots().map(|(segment, slots)| {
            let buffers = match staging {
                Some(ring) => ring.staging(layer).collect(),
                None => kv.host_attended(layer, segment).iter().collect(),
            };
            KvDestination { slots, buffers }
        }));
        destinations
    }

    /// Ends a step whose commands are done, and starts writing its blocks to disk. Returns times and read errors of the disk.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<DiskReport, ModelError> {
        self.ring_mut().map_or_else(|| Ok(DiskReport::default()), |ring| ring.end(gpu))
    }

    /// Records the readback of dirty blocks, if kernels cannot write to the host.
    pub(super) fn read_dirty(&self, pass: &mut Pass, kv: &KvPool, offload_plan: &OffloadPlan) -> Vec<Return> {
        self.ring().map_or_else(Vec::new, |ring| ring.read_dirty(pass, kv, &offload_plan.dirty))
    }
}
