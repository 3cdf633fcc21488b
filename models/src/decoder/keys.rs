//! Places of the keys and values that a step attends, and their way to the device.

mod residency;
mod staged;
mod stream;

use attn_kernels::rows::{BlockCopy, KvWord};
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::swap_blocks::{self, SwapBlocksBuffers, SwapBlocksParams};
use smallvec::{SmallVec, smallvec};

use super::inputs::Plan;
use super::options::DecoderOptions;
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::kv::{Ring, Run};
use crate::{DecoderConfig, HostTraffic, KvPool, ModelError};

pub(super) use residency::{Bench, Needed, PageContext, Residency, SlotRoom};
pub(super) use staged::{Fresh, Return};
pub(super) use stream::{Group, Stream};

use staged::Staged;

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

/// Keys that pass through the ring.
#[derive(Debug)]
pub(super) struct RingKeys {
    transfer: Transfer,
    traffic: HostTraffic,
}

/// Transport of blocks between host and device.
#[derive(Debug)]
enum Transfer {
    /// Kernels reach memory of the host: this one brings blocks, and others write there.
    Kernels(Arc<Pipeline>),
    /// Kernels do not: copies of the queue bring blocks, and what a step writes goes to spare blocks on the device.
    Copies(Staged),
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

/// A chunk of keys that rows of a layer attend next.
pub(super) struct Fetch<'a> {
    pub(super) layer: usize,
    pub(super) group: &'a Group,
    pub(super) number: usize,
    /// The [pairs](Stream::pairs) of the step.
    pub(super) pairs: &'a Buf<BlockCopy>,
}

/// Contents of the slots of a layer's ring while its attention is recorded.
pub(super) struct Loaded(Vec<Option<usize>>);

impl Loaded {
    /// An empty ring.
    pub(super) fn new(kv: &KvPool) -> Self {
        Self(vec![None; kv.ring().map_or(0, Ring::slots) as usize])
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
        let transfer = match Staged::new(gpu, kv, config.num_layers)? {
            Some(staged) => Transfer::Copies(staged),
            None => Transfer::Kernels(gpu.pipeline(&swap_blocks::variant())?),
        };
        let ring = RingKeys { transfer, traffic: HostTraffic::default() };
        Ok(match options.sparse.as_ref().filter(|_| kv.page_slots() > 0) {
            None => Self::Ring(ring),
            Some(sparse) => {
                let pages = Box::new(Residency::new(gpu, config, &*sparse.policy, kv)?);
                Self::Pages { ring, pages }
            }
        })
    }

    fn ring(&self) -> Option<&RingKeys> {
        match self {
            Self::Device => None,
            Self::Ring(ring) | Self::Pages { ring, .. } => Some(ring),
        }
    }

    fn ring_mut(&mut self) -> Option<&mut RingKeys> {
        match self {
            Self::Device => None,
            Self::Ring(ring) | Self::Pages { ring, .. } => Some(ring),
        }
    }

    /// Rooms for what a step writes, where kernels cannot reach the blocks on the host.
    fn staged(&self) -> Option<&Staged> {
        match &self.ring()?.transfer {
            Transfer::Copies(staged) => Some(staged),
            Transfer::Kernels(_) => None,
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
        self.ring().map_or_else(HostTraffic::default, |ring| ring.traffic)
    }

    /// Finds out which rows of a step go through the ring. `selects` says whether blocks are selected in every layer.
    pub(super) fn plan(
        &mut self,
        kv: &KvPool,
        slices: &[Slice<'_>],
        plan: &mut Plan,
        selects: bool,
    ) -> Result<(), ModelError> {
        let Some(ring) = self.ring_mut() else { return Ok(()) };
        ring.traffic.written_bytes += stream::plan_stream(kv, slices, plan, selects)?;
        Ok(())
    }

    /// Makes room for what a step asks of the device and writes.
    pub(super) fn begin(&mut self, gpu: &Gpu, kv: &KvPool, plan: &Plan) -> Result<(), ModelError> {
        if let Some(pages) = self.pages_mut() {
            pages.begin(gpu, kv, plan)?;
        }
        match self.ring_mut().map(|ring| &mut ring.transfer) {
            Some(Transfer::Copies(staged)) => staged.begin(gpu, kv, &plan.fresh),
            Some(Transfer::Kernels(_)) | None => Ok(()),
        }
    }

    /// The places that new keys and values of a layer go to.
    pub(super) fn homes<'a>(
        &'a self,
        kv: &'a KvPool,
        layer: usize,
        slots: &'a Buf<i32>,
        host_slots: Option<&'a Buf<i32>>,
    ) -> SmallVec<[Home<'a>; 2]> {
        let mut homes = smallvec![];
        // Where blocks are selected all live on the host.
        if self.pages().is_none() {
            homes.push(Home { slots, buffers: kv.attended(layer).0.iter().collect() });
        }
        if let Some(slots) = host_slots {
            let buffers = match self.staged() {
                Some(staged) => staged.rooms(layer).iter().map(|room| &**room).collect(),
                None => kv.host_attended(layer).iter().collect(),
            };
            homes.push(Home { slots, buffers });
        }
        homes
    }

    /// Records that blocks to which the step adds tokens come to where it does.
    pub(super) fn fetch_begun(&mut self, pass: &mut Pass, kv: &KvPool, layer: usize, plan: &Plan) {
        let Some(ring) = self.ring_mut() else { return };
        if let Transfer::Copies(staged) = &ring.transfer {
            let blocks = staged.fetch_begun(pass, kv, layer, &plan.fresh);
            ring.traffic.fetched_bytes += blocks * kv.attended_bytes();
        }
    }

    /// Records what brings a chunk into its slot of the ring, unless it is there: a kernel where it reaches memory of the host
    /// (49 GB/s on an H200), else copies of the queue (10 GB/s).
    pub(super) fn fetch(&mut self, pass: &mut Pass, kv: &KvPool, fetch: &Fetch<'_>, loaded: &mut Loaded) {
        let Some(ring) = self.ring_mut() else { return };
        let slot = fetch.number % loaded.0.len();
        if loaded.0[slot].replace(fetch.number) == Some(fetch.number) {
            return;
        }
        let (device, words) = kv.attended(fetch.layer);
        let chunk = &fetch.group.chunks[fetch.number];
        let buffers = || kv.host_attended(fetch.layer).iter().zip(device);
        let blocks = match &ring.transfer {
            Transfer::Kernels(swap_blocks) => {
                assert!(
                    words.is_multiple_of(4),
                    "blocks of {words} words, of which four tokens are 16 bytes"
                );
                let (block_quads, count) = (u32_of(words / 4), u32_of(chunk.pairs.len()));
                let params = SwapBlocksParams { block_quads };
                let grid = swap_blocks::grid(block_quads, count);
                for (from, to) in buffers() {
                    let buffers = SwapBlocksBuffers {
                        pairs: fetch.pairs.bind_from(chunk.pairs.start),
                        source: from.bind(),
                        pool: to.bind(),
                    };
                    pass.dispatch(swap_blocks, &params, buffers, grid);
                }
                chunk.pairs.len() as u64
            }
            Transfer::Copies(staged) => {
                let mut copy = |run: &Run, from: &Buf<KvWord>, to: &Buf<KvWord>| {
                    let range = run.from.start as usize * words..run.from.end as usize * words;
                    pass.copy(from, range, to, run.device as usize * words);
                };
                for run in &chunk.host {
                    buffers().for_each(|(from, to)| copy(run, from, to));
                }
                for run in &chunk.rooms {
                    staged.rooms(fetch.layer).iter().zip(device).for_each(|(from, to)| copy(run, from, to));
                }
                chunk.host.iter().map(|run| u64::from(run.from.end - run.from.start)).sum()
            }
        };
        ring.traffic.fetched_bytes += blocks * kv.attended_bytes();
    }

    /// Records the way back of what the step wrote where kernels cannot reach the host.
    pub(super) fn read_fresh(&self, pass: &mut Pass, kv: &KvPool, plan: &Plan) -> Vec<Return> {
        self.staged().map_or_else(Vec::new, |staged| staged.read(pass, kv, &plan.fresh))
    }
}
