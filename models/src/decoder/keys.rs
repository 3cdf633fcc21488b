//! Places of the keys and values that a step attends, and their way to the device.

mod context;
mod disk;
mod fetcher;
mod residency;
mod ring;
mod rooms;
mod stream;
mod taken_in;

use attn_kernels::gpu::{Buf, Gpu, Pass};
use attn_kernels::rows::KvWord;
use smallvec::{SmallVec, smallvec};

use super::inputs::{Plan, Rows, ViewRows};
use super::options::DecoderOptions;
use super::views::View;
use crate::batch::Slice;
use crate::kv::Ring;
use crate::{DecoderConfig, HostTraffic, KvPool, ModelError};

pub(super) use disk::DiskReport;
pub(super) use residency::{Bench, Needed, PageContext, Residency, SlotRoom};
pub(super) use ring::{Load, RingKeys, TransferContext};
pub(super) use rooms::{Fresh, Return};
pub(super) use stream::{Group, Stream, StreamLists};

/// Memory that blocks of the cache live in.
#[derive(Debug)]
pub(super) enum KeySource {
    /// Everything is on the device.
    Device,
    /// Some on the host: those pass through the ring.
    Ring(RingKeys),
    /// All on the host: pages of selected blocks have slots on the device, and rows that attend everything go through the ring.
    Pages { ring: RingKeys, pages: Box<Residency> },
}

/// Places of the keys of some rows.
#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    /// Everything is on the device.
    Device,
    /// Some pass through the ring.
    Ring(&'a Stream),
    /// Selected pages are in slots, once they are made resident.
    Slots(SlotRoom),
}

/// Minimum number of rows of a step whose keys and values go to the host as whole blocks, if pages are selected. Fewer rows are
/// written there one by one, as whole blocks would be many more bytes.
const WRITTEN_THROUGH: u32 = 64;

impl<'a> Keys<'a> {
    /// Places of the keys of rows that attend to all that they see.
    pub(super) fn of(rows: &'a Rows) -> Self {
        rows.stream.as_ref().map_or(Keys::Device, Keys::Ring)
    }
}

/// A place that new keys and values go to: those of rows that have a slot there.
pub(super) struct Home<'a> {
    pub(super) slots: &'a Buf<i32>,
    /// K and V, or latents.
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
        Ok(match options.sparse.as_ref().filter(|_| kv.page_slots() > 0) {
            None => Self::Ring(ring),
            Some(sparse) => {
                if kv.spill().is_some() && !sparse.selects_from_disk() {
                    let lacks = "a policy that selects by position, or that kernels rank by digests or hashes, where they lie on disk";
                    return Err(ModelError::Offload { lacks });
                }
                let pages = Box::new(Residency::new(gpu, config, options, &*sparse.policy, kv)?);
                Self::Pages { ring, pages }
            }
        })
    }

    /// Whether the host takes part in what a step does: commands of two steps differ then.
    pub(super) fn on_disk(&self) -> bool {
        self.pages().is_some_and(Residency::on_disk)
    }

    fn ring(&self) -> Option<&RingKeys> {
        match self {
            Self::Device => None,
            Self::Ring(ring) | Self::Pages { ring, .. } => Some(ring),
        }
    }

    /// The ring, where blocks pass through one.
    pub(super) fn ring_mut(&mut self) -> Option<&mut RingKeys> {
        match self {
            Self::Device => None,
            Self::Ring(ring) | Self::Pages { ring, .. } => Some(ring),
        }
    }

    /// Slots for selected pages, where there are some.
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

    /// Traffic between device and host so far.
    pub(super) fn traffic(&self) -> HostTraffic {
        self.ring().map_or_else(HostTraffic::default, RingKeys::traffic)
    }

    /// Finds out where a step writes, and which of its rows go through the ring. `selects` says whether blocks are selected in
    /// every layer.
    pub(super) fn plan(
        &mut self,
        kv: &KvPool,
        views: &[View],
        slices: &[Slice<'_>],
        plan: &mut Plan,
        selects: bool,
    ) -> Result<(), ModelError> {
        let few = self.pages().is_some_and(|pages| !pages.on_disk()) && plan.rows < WRITTEN_THROUGH;
        let (ring, pages) = match self {
            Self::Device => return Ok(()),
            Self::Ring(ring) => (ring, None),
            Self::Pages { ring, pages } => (ring, Some(pages)),
        };
        let Some(of_kv) = kv.ring() else { return Ok(()) };
        let block_size = kv.shape().block_size;
        plan.host_slots = host_slots(of_kv, block_size, plan);
        if let Some(slots) = &mut plan.host_slots {
            plan.fresh = Fresh::of(slots, block_size, of_kv.host_blocks());
            let mut tokens = slots.iter().filter(|slot| **slot >= 0).count();
            if !few {
                plan.fresh.divert(slots, block_size, &mut plan.stream);
                tokens = plan.fresh.on_host().count() * block_size as usize;
            }
            if let Some(taken_in) = pages.and_then(|pages| pages.taken_in()) {
                let looked = taken_in.due(slices, |block| plan.fresh.is_written(block));
                plan.fresh.look_at(&looked, &mut plan.stream);
            }
            ring.wrote(tokens as u64 * (kv.plan().block_bytes() / u64::from(block_size)));
        }
        stream::plan_streams(of_kv, block_size, views, slices, plan, selects)
    }

    /// Fails if pages of selected blocks could not be brought.
    pub(super) fn check(&mut self) -> Result<(), ModelError> {
        self.pages_mut().and_then(Residency::take_failure).map_or(Ok(()), Err)
    }

    /// Makes room for what a step asks of the device and writes.
    pub(super) fn begin(&mut self, gpu: &Gpu, kv: &KvPool, plan: &Plan) -> Result<(), ModelError> {
        if let Some(pages) = self.pages_mut() {
            pages.begin(gpu, kv, plan)?;
        }
        self.ring_mut().map_or(Ok(()), |ring| ring.begin(gpu, kv, &plan.fresh))
    }

    /// The places that new keys and values of a layer go to.
    pub(super) fn homes<'a>(
        &'a self,
        kv: &'a KvPool,
        plan: &Plan,
        layer: usize,
        slots: &'a Buf<i32>,
        host_slots: Option<&'a Buf<i32>>,
    ) -> SmallVec<[Home<'a>; 2]> {
        let mut homes = smallvec![];
        let resident = || plan.views.iter().any(|view| view.slots.iter().any(|slot| *slot >= 0));
        // Where blocks are selected all live on the host.
        if self.pages().is_none() && (host_slots.is_none() || resident()) {
            homes.push(Home { slots, buffers: kv.attended(layer).0.iter().collect() });
        }
        if let Some(slots) = host_slots {
            let buffers = match self.ring().filter(|_| plan.fresh.in_rooms()) {
                Some(ring) => ring.rooms(layer).collect(),
                None => kv.host_attended(layer).iter().collect(),
            };
            homes.push(Home { slots, buffers });
        }
        homes
    }

    /// Ends a step whose commands are done: what it wrote is on its way to the disk. Returns times and losses of the disk's part.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<DiskReport, ModelError> {
        self.ring_mut().map_or_else(|| Ok(DiskReport::default()), |ring| ring.end(gpu))
    }

    /// Records the way back of what the step wrote where kernels cannot reach the host.
    pub(super) fn read_fresh(&self, pass: &mut Pass, kv: &KvPool, plan: &Plan) -> Vec<Return> {
        self.ring().map_or_else(Vec::new, |ring| ring.read_fresh(pass, kv, &plan.fresh))
    }
}

impl Plan {
    /// Whether some rows go through the ring.
    pub(super) fn streams(&self) -> bool {
        self.views.iter().any(|view| view.all.stream.is_some() || view.whole.stream.is_some())
    }

    /// Blocks that the step writes in the layers of a view, each perhaps several times.
    pub(super) fn written_blocks(
        &self,
        view: &ViewRows,
        block_size: u32,
    ) -> impl Iterator<Item = u32> + use<> {
        // Where blocks are selected and live on the host, none is written elsewhere.
        let mut blocks: Vec<u32> = match self.host_slots {
            Some(_) => self.fresh.blocks().to_vec(),
            None => view.slots.iter().map(|slot| slot.cast_unsigned() / block_size).collect(),
        };
        blocks.dedup();
        blocks.into_iter()
    }
}

/// Returns the slots beyond the device of rows whose blocks lie on the host or on disk, -1 for the others; `None` where there
/// are no such rows. They leave the lists of the views.
fn host_slots(ring: &Ring, block_size: u32, plan: &mut Plan) -> Option<Vec<i32>> {
    let beyond = |slot: i32| ring.beyond(slot.cast_unsigned() / block_size);
    let slot_of = |slot: &i32| match beyond(*slot) {
        Some(block) => (block * block_size + slot.cast_unsigned() % block_size).cast_signed(),
        None => -1,
    };
    let all = plan.views.first().map_or(&[][..], |view| &view.slots);
    let host: Vec<i32> = all.iter().map(slot_of).collect();
    if host.iter().all(|slot| *slot < 0) {
        return None;
    }
    for view in &mut plan.views {
        for (slot, host) in view.slots.iter_mut().zip(&host) {
            *slot = if *host < 0 { *slot } else { -1 };
        }
    }
    Some(host)
}
