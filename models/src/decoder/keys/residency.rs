//! Selected blocks of contexts on the host: their pages are fetched to slots on the device before they are attended, and pages
//! that the next step may select are prefetched.
//!
//! Everything is decided on the device, from the lists that the policy left there, so that nothing of a layer is read back,
//! unless blocks lie on disk: then the host learns from the device what is missing, and a [`Fetcher`](super::fetcher::Fetcher)
//! brings it. Slots are of each layer and KV head. New keys and values are written on the host, and anew to pages that have a
//! slot.

mod capacity;
mod copy;
mod cost;
mod forget;
mod from_disk;
mod pending;

pub(in crate::decoder) use capacity::{SlotCapacity, TILE_KEYS};
use from_disk::FromDisk;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::fetch_pages::{self, FetchPagesParams};
use attn_kernels::kernel::paged_decode::PARTITION;
use attn_kernels::kernel::residency::{self, ResidencyBuffers, ResidencyParams};
use attn_kernels::rows::{KvWord, PageRequest, PhysicalBlock, WrittenBlock};
use sparse_select::{Policy, SelectBy};

use super::offload_plan::OffloadPlan;
use super::summaries::StaleSummaries;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::{OfLayers, StepList};
use crate::decoder::options::DecoderOptions;
use crate::decoder::selecting::Lists;
use crate::kv::ROWS;
use crate::{DecoderConfig, KvPool, ModelError, Reach};

/// Pages on the device, in the layers that select.
#[derive(Debug)]
pub(in crate::decoder) struct Residency {
    assign: Arc<Pipeline>,
    copy: Arc<Pipeline>,
    /// Parameters that all copies share.
    copied: FetchPagesParams,
    num_slots: u32,
    /// Bytes of a page: K and V of a block for one KV head.
    page_bytes: u64,
    pages_per_block: u32,
    block_size: u32,
    /// Number of pages per partition.
    partition_pages: u32,
    layers: Vec<Option<Resident>>,
    /// Requests of all lists of the step.
    requests: StepList<PageRequest>,
    /// Number of requests of decode rows; the others are of tiles.
    decode_requests: u32,
    /// Blocks that the step writes.
    touched: StepList<WrittenBlock>,
    /// Block tables of the step by KV head, which map pages to slots.
    pages: OfLayers<PhysicalBlock>,
    num_pages: usize,
    /// State of blocks on disk, if there are any.
    disk: Option<FromDisk>,
    /// The first error of the step that is being recorded.
    failure: Option<ModelError>,
}

/// The slots of one layer; see the kernel [`residency`].
#[derive(Debug)]
struct Resident {
    places: Buf<u32>,
    slots: Buf<[u32; 2]>,
    /// Fetches of pages that the selection of a step lacked.
    needed: Buf<u32>,
    /// Fetches of pages that the next step may select.
    prefetch_list: Buf<u32>,
    progress: PageProgress,
}

/// State of a layer's pages before the layer runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageProgress {
    /// Nothing is prefetched, or the prefetch is done.
    None,
    /// The prefetch for the next step is listed, and pending.
    Listed,
    /// The pages of the step's lists have slots, and their fetch is pending.
    Assigned,
    /// The pages are fetched.
    Fetched,
}

/// Pages of lists that are about to be attended.
pub(in crate::decoder) struct Needed<'a> {
    pub(in crate::decoder) layer: usize,
    pub(in crate::decoder) lists: &'a Lists,
    pub(in crate::decoder) requests: Range<u32>,
    pub(in crate::decoder) pages: Range<u32>,
}

/// Layer and step for which decisions are recorded.
pub(in crate::decoder) struct PageContext<'a> {
    pub(in crate::decoder) pass: &'a mut Pass,
    pub(in crate::decoder) kv: &'a KvPool,
    /// Block tables of the step.
    pub(in crate::decoder) tables: &'a Buf<PhysicalBlock>,
    /// K and V of what the step wrote, if it is in staging blocks.
    pub(in crate::decoder) written: Option<[&'a Buf<KvWord>; 2]>,
}

/// Reason for fetching pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FetchReason {
    /// The pages that a step selects are not in slots.
    Needed,
    /// The next step may select the pages.
    Prefetch,
}

impl Resident {
    fn fetches(&self, reason: FetchReason) -> &Buf<u32> {
        match reason {
            FetchReason::Needed => &self.needed,
            FetchReason::Prefetch => &self.prefetch_list,
        }
    }
}

impl Residency {
    /// Creates the slots of a pool that are reserved for what `policy` selects.
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        policy: &dyn Policy,
        kv: &KvPool,
    ) -> Result<Self, ModelError> {
        let (shape, num_slots) = (kv.shape(), kv.page_slots());
        let at_once = policy.select_by() == SelectBy::Previous;
        let (heads, select_block) = (shape.num_kv_heads as usize, policy.block_size().get());
        let resident = |(layer, reach): (u32, Reach)| {
            // Layers with a window or chunk attend all of it, through the ring.
            let dense = reach != Reach::Full || policy.keeps_all(Some(layer), usize::MAX);
            let fetches = residency::fetches_len(shape, num_slots);
            let resident = || -> Result<Resident, ModelError> {
                Ok(Resident {
                    places: gpu.buffer("places", kv.num_blocks() as usize * heads)?,
                    slots: gpu.buffer("slots", residency::slots_len(shape, num_slots))?,
                    needed: gpu.buffer("needed", fetches)?,
                    prefetch_list: gpu.buffer("prefetch_list", fetches)?,
                    progress: PageProgress::None,
                })
            };
            (!dense).then(resident).transpose()
        };
        Ok(Self {
            assign: gpu.pipeline(&residency::variant(shape, select_block))?,
            copy: gpu.pipeline(&fetch_pages::variant())?,
            copied: FetchPagesParams::new(shape, num_slots).for_device(gpu.profile()),
            num_slots,
            page_bytes: 2 * shape.block_bytes() as u64 / u64::from(shape.num_kv_heads),
            pages_per_block: select_block / shape.block_size,
            block_size: shape.block_size,
            partition_pages: (PARTITION / shape.block_size).max(1),
            layers: (0..)
                .zip(config.layers.iter().map(|layer| layer.reach))
                .map(resident)
                .collect::<Result<_, _>>()?,
            requests: StepList::new(gpu, "page_requests", 1)?,
            decode_requests: 0,
            touched: StepList::new(gpu, "touched", 1)?,
            pages: OfLayers::new(gpu, "pages", 1, at_once.then_some(config.num_layers as usize))?,
            num_pages: 0,
            disk: FromDisk::new(gpu, config, options, policy, kv)?,
            failure: None,
        })
    }

    /// Whether there are blocks on disk.
    pub(super) fn on_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Returns the summaries of blocks on disk that are out of date.
    pub(super) fn summaries(&mut self) -> Option<&mut StaleSummaries> {
        self.disk.as_mut().map(|disk| &mut disk.summaries)
    }

    /// Takes the first error since the last call.
    pub(super) fn take_failure(&mut self) -> Option<ModelError> {
        self.failure.take()
    }

    /// Whether pages of a layer are selected.
    pub(in crate::decoder) fn selects(&self, layer: usize) -> bool {
        self.layers[layer].is_some()
    }

    /// Returns the number of pages of one layer and KV head that fit on the device.
    pub(in crate::decoder) fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Returns the capacity for the pages of the current step.
    pub(in crate::decoder) fn capacity(&self) -> SlotCapacity {
        SlotCapacity {
            num_slots: self.num_slots,
            block_size: self.block_size,
            partition_pages: self.partition_pages,
            tile_requests: u32_of(self.tile_requests().len()),
        }
    }

    /// Returns the range of the requests of tiles.
    pub(in crate::decoder) fn tile_requests(&self) -> Range<u32> {
        self.decode_requests..u32_of(self.requests.len())
    }

    /// Returns the block tables by KV head of a layer.
    pub(in crate::decoder) fn pages(&self, layer: usize) -> &Buf<PhysicalBlock> {
        self.pages.of(layer)
    }

    /// Plans the requests of a step, and the blocks that it writes.
    pub(super) fn plan(
        &mut self,
        kv: &KvPool,
        batch: &Batch,
        offload_plan: &OffloadPlan,
    ) -> Result<(), ModelError> {
        let shape = kv.shape();
        for resident in self.layers.iter_mut().flatten() {
            if resident.progress != PageProgress::Listed {
                resident.progress = PageProgress::None;
            }
        }
        // Attention groups share the tables, since there is one cache group; blocks are selected in the one with full attention.
        let attn_group = batch
            .attn_groups
            .iter()
            .find(|attn_group| !attn_group.selecting.is_empty())
            .unwrap_or(&batch.attn_groups[0]);
        self.requests.clear();
        self.decode_requests = 0;
        for selecting in &attn_group.selecting {
            for list in 0..selecting.lists {
                let (len, table) = (u32_of(selecting.kv_len()), u32_of(selecting.table.start));
                self.requests.push(PageRequest::new(selecting.list + list, len, table));
            }
            self.decode_requests += u32::from(selecting.is_decode());
        }
        let rows = self.decode_requests.min(ROWS);
        let unit = TILE_KEYS.div_ceil(shape.block_size);
        let needed = (rows * self.partition_pages).max(u32_of(self.tile_requests().len()) * unit);
        if needed > self.num_slots {
            return Err(ModelError::PageSlots { needed, slots: self.num_slots });
        }
        let mut touched: Vec<u32> = offload_plan.written_blocks(attn_group, shape.block_size).collect();
        touched.sort_unstable();
        touched.dedup();
        let on_disk = self.disk.is_some();
        let from = |block: u32| if on_disk { offload_plan.dirty.staging_index(block) } else { Some(block) };
        let written = |block: u32| WrittenBlock {
            block,
            from: from(block).expect("what is written has a staging block"),
        };
        self.touched.clear();
        self.touched.extend(touched.into_iter().map(written));
        self.num_pages = batch.tables.len() * shape.num_kv_heads as usize;
        if let Some(disk) = &mut self.disk {
            disk.begin(batch, attn_group);
        }
        Ok(())
    }

    /// Uploads the lists, and allocates the tables by KV head.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.requests.upload(gpu)?;
        self.touched.upload(gpu)?;
        self.pages.fit(gpu, self.num_pages)
    }

    /// Returns the numbers that the step's commands depend on; `None` if the host takes part.
    pub(super) fn shape(&self) -> Option<Vec<usize>> {
        if self.on_disk() {
            return None;
        }
        let buffers =
            [self.requests.on_device().len(), self.touched.on_device().len(), self.pages.of(0).len()];
        let pending_prefetches =
            self.layers.iter().flatten().filter(|resident| resident.progress == PageProgress::Listed).count();
        let requests =
            [self.decode_requests as usize, self.requests.len(), self.touched.len(), pending_prefetches];
        Some(requests.into_iter().chain(buffers).collect())
    }

    /// Records the fetch of the pages of lists, and of what the step wrote to them.
    pub(in crate::decoder) fn make_resident(&mut self, context: &mut PageContext<'_>, needed: &Needed<'_>) {
        let progress = self.layers[needed.layer].as_ref().map(|resident| resident.progress);
        if !matches!(progress, Some(PageProgress::Assigned | PageProgress::Fetched)) {
            self.assign_slots(context, needed);
        }
        let fetch = progress != Some(PageProgress::Fetched);
        if progress == Some(PageProgress::Assigned) {
            self.set_progress(needed.layer, PageProgress::Fetched);
        }
        self.copy_step(context, needed.layer, FetchReason::Needed, fetch, u32_of(self.touched.len()));
    }

    /// Records the assignment of slots to the pages of a layer's lists before the layer runs, if all of them fit and the host
    /// takes no part. They are fetched during the layer before.
    pub(in crate::decoder) fn assign_ahead(
        &mut self,
        context: &mut PageContext<'_>,
        layer: usize,
        lists: &Lists,
    ) {
        let pages = lists.blocks * self.pages_per_block;
        let fits = self.decode_requests * pages <= self.num_slots && self.tile_requests().is_empty();
        if self.layers[layer].is_none() || !fits || self.disk.is_some() {
            return;
        }
        self.assign(
            context,
            FetchReason::Needed,
            &Needed { layer, lists, requests: 0..self.decode_requests, pages: 0..pages },
        );
        self.set_progress(layer, PageProgress::Assigned);
    }

    /// Records the assignment of slots to the pages of lists.
    fn assign_slots(&mut self, context: &mut PageContext<'_>, needed: &Needed<'_>) {
        let max = needed.lists.blocks * self.pages_per_block;
        let pages = needed.pages.start..needed.pages.end.min(max.max(needed.pages.start));
        self.assign(
            context,
            FetchReason::Needed,
            &Needed { pages, requests: needed.requests.clone(), ..*needed },
        );
    }

    /// Records the update of pages on the device with what the step wrote, in a layer that selects nothing.
    pub(in crate::decoder) fn renew(&self, context: &mut PageContext<'_>, layer: usize) {
        self.copy_step(context, layer, FetchReason::Needed, false, u32_of(self.touched.len()));
    }

    /// Records which pages the next step may select: the best of those that this selection leaves out.
    pub(in crate::decoder) fn list_prefetch(
        &mut self,
        context: &mut PageContext<'_>,
        layer: usize,
        lists: &Lists,
    ) {
        // Without decode rows there are no scores.
        if self.decode_requests == 0 || self.layers[layer].is_none() {
            return;
        }
        let pages = 0..lists.blocks * self.pages_per_block;
        self.assign(
            context,
            FetchReason::Prefetch,
            &Needed { layer, lists, requests: 0..self.decode_requests, pages },
        );
        match &mut self.disk {
            // The host reads them first.
            Some(disk) => disk.unread_prefetch = Some(layer),
            None => self.set_progress(layer, PageProgress::Listed),
        }
    }

    /// Records the pending fetch of a layer's pages, if there is such a layer and its pages have slots.
    pub(in crate::decoder) fn fetch_ahead(&mut self, context: &mut PageContext<'_>, layer: usize) {
        let Some(Some(resident)) = self.layers.get(layer) else { return };
        let (reason, then) = match resident.progress {
            PageProgress::None | PageProgress::Fetched => return,
            PageProgress::Listed => (FetchReason::Prefetch, PageProgress::None),
            PageProgress::Assigned => (FetchReason::Needed, PageProgress::Fetched),
        };
        self.copy_step(context, layer, reason, true, 0);
        self.set_progress(layer, then);
    }

    fn set_progress(&mut self, layer: usize, progress: PageProgress) {
        self.layers[layer].iter_mut().for_each(|resident| resident.progress = progress);
    }

    fn assign(&mut self, context: &mut PageContext<'_>, reason: FetchReason, needed: &Needed<'_>) {
        let Some(resident) = &mut self.layers[needed.layer] else { return };
        let (shape, Needed { lists, requests, pages, .. }) = (context.kv.shape(), needed);
        let params = ResidencyParams {
            first_request: requests.start,
            requests: requests.end - requests.start,
            num_kv_heads: shape.num_kv_heads,
            list_stride: lists.stride,
            block_size: shape.block_size,
            first_page: pages.start,
            num_pages: pages.end - pages.start,
            num_slots: self.num_slots,
            // Prefetched pages get no slots if the host has to read them first.
            max_fetches: if reason == FetchReason::Prefetch && self.disk.is_some() {
                0
            } else {
                self.num_slots
            },
            write_pages: u32::from(reason == FetchReason::Needed),
        };
        let together = params.requests * params.num_pages;
        assert!(together <= self.num_slots, "{together} pages for {} slots", self.num_slots);
        let buffers = ResidencyBuffers {
            requests: self.requests.bind(),
            lists: lists.bind.clone(),
            tables: context.tables.bind(),
            places: resident.places.bind(),
            slots: resident.slots.bind(),
            fetches: resident.fetches(reason).bind(),
            pages: self.pages.of(needed.layer).bind(),
        };
        context.pass.dispatch(&self.assign, &params, buffers);
    }
}
