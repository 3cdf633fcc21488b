//! Pages of blocks on disk: the host reads what a layer's lists lack, and predicts what the next step may need. Meanwhile kernels
//! fetch pages of blocks in host memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::fetch_pages::FetchPagesBuffers;
use attn_kernels::kernel::residency::HEADER;
use rustc_hash::FxHashMap;
use sparse_select::Policy;

use super::super::fetcher::{Fetcher, Missing};
use super::super::ring::RingKeys;
use super::super::transfer::TransferContext;
use super::copy::Copied;
use super::{FetchReason, Needed, PageContext, Residency};
use crate::cast::u32_of;
use crate::decoder::batch::{Batch, GroupRows};
use crate::decoder::keys::OffloadPlan;
use crate::decoder::keys::summaries::StaleSummaries;
use crate::decoder::options::DecoderOptions;
use crate::{DecoderConfig, KvPool, ModelError};

/// State of pages whose blocks are on disk.
#[derive(Debug)]
pub(super) struct FromDisk {
    pub(super) fetcher: Fetcher,
    pub(super) summaries: StaleSummaries,
    /// Layer whose prefetch list the host has not read yet.
    pub(super) unread_prefetch: Option<usize>,
    /// Count of prefetches that missed so far, by layer and head: the kernel counts up.
    missed: Vec<Vec<u32>>,
    /// Position in the batch of the sequence that selects, by block.
    positions: FxHashMap<u32, u32>,
}

impl FromDisk {
    /// Creates the state of pages on disk; `None` if there are no blocks on disk.
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        policy: &dyn Policy,
        kv: &KvPool,
    ) -> Result<Option<Self>, ModelError> {
        let Some(spill) = kv.spill() else { return Ok(None) };
        let (shape, layers) = (kv.shape(), config.layers.len());
        Ok(Some(Self {
            fetcher: Fetcher::new(gpu, kv, spill, layers, options.reads_ahead)?,
            summaries: StaleSummaries::new(policy.block_size().get() / shape.block_size, shape.block_size),
            unread_prefetch: None,
            missed: vec![vec![0; shape.num_kv_heads as usize]; layers],
            positions: FxHashMap::default(),
        }))
    }

    /// Starts a step.
    pub(super) fn begin(&mut self, batch: &Batch, attn_group: &GroupRows) {
        self.fetcher.begin();
        self.positions.clear();
        for (position, selecting) in
            (0..).zip(attn_group.selecting.iter().filter(|selecting| selecting.is_decode()))
        {
            for block in &batch.tables[selecting.table.clone()] {
                self.positions.entry(block.0).or_insert(position);
            }
        }
    }

    /// Returns the blocks on disk, whose ids start at `first`, that a layer needs to prefetch, by sequence: blocks that most
    /// heads want come first.
    fn wants(
        &mut self,
        layer: usize,
        fetches: &[u32],
        first: u32,
        offload_plan: &OffloadPlan,
    ) -> Vec<(u32, Vec<u32>)> {
        let words = fetches.len() / self.missed[layer].len();
        let mut votes: BTreeMap<u32, u32> = BTreeMap::new();
        for (of_head, missed) in fetches.chunks_exact(words).zip(&mut self.missed[layer]) {
            let new = of_head[2].wrapping_sub(std::mem::replace(missed, of_head[2])) as usize;
            for pair in of_head[HEADER..].chunks_exact(2).take(new) {
                *votes.entry(pair[0]).or_default() += 1;
            }
        }
        let mut wants: BTreeMap<u32, Vec<(Reverse<u32>, u32)>> = BTreeMap::new();
        for (block, votes) in votes {
            let position = self.positions.get(&block).filter(|_| !offload_plan.dirty.is_written(block));
            // What is needed now has position 0.
            if let Some((position, number)) = position.zip(block.checked_sub(first)) {
                wants.entry(position + 1).or_default().push((Reverse(votes), number));
            }
        }
        let by_votes = |mut blocks: Vec<(Reverse<u32>, u32)>| {
            blocks.sort_unstable();
            blocks.into_iter().map(|(_, block)| block).collect()
        };
        wants.into_iter().map(|(position, blocks)| (position, by_votes(blocks))).collect()
    }
}

/// Returns the pages that the kernel assigned slots to, of blocks on disk that the step does not write. Their ids start at
/// `first`.
fn missing(fetches: &[u32], heads: u32, first: u32, offload_plan: &OffloadPlan) -> Vec<Missing> {
    let mut missing = Vec::new();
    for (head, of_head) in (0..).zip(fetches.chunks_exact(fetches.len() / heads as usize)) {
        let pairs = &of_head[HEADER..].as_chunks().0[..of_head[0] as usize];
        for &[block, slot] in pairs.iter().filter(|[block, _]| !offload_plan.dirty.is_written(*block)) {
            missing.extend(block.checked_sub(first).map(|block| Missing { head, block, slot }));
        }
    }
    missing
}

impl Residency {
    /// Copies to slots the pages that a layer's lists need: from host memory, or from disk once the host has read them. Errors
    /// are reported at the end of the step.
    pub(in crate::decoder) fn fetch_from_disk(
        &mut self,
        context: &mut TransferContext<'_>,
        ring: &mut RingKeys,
        needed: &Needed<'_>,
    ) {
        let done = self.try_fetch(context, ring, needed);
        self.failure = self.failure.take().or(done.err());
    }

    fn try_fetch(
        &mut self,
        context: &mut TransferContext<'_>,
        ring: &mut RingKeys,
        needed: &Needed<'_>,
    ) -> Result<(), ModelError> {
        let (kv, layer) = (context.kv, needed.layer);
        self.assign_slots(&mut page_context(context, ring), needed);
        // Kernels take what lies on the host while the host reads the rest. Its blocks come before those on disk.
        let first = kv.host_blocks();
        for (held, source) in kv.host_layers(layer).filter(|_| kv.is_mapped()) {
            let (touched, count) = (self.touched.on_device(), 0);
            let copied = Copied { reason: FetchReason::Needed, fetch: true, touched, count, source, held };
            self.copy(context.pass, kv, layer, &copied);
        }
        let (Some(disk), Some(resident)) = (&mut self.disk, &self.layers[layer]) else { return Ok(()) };
        let unread_prefetch =
            disk.unread_prefetch.take().and_then(|layer| Some((layer, self.layers[layer].as_ref()?)));
        let mut reads = vec![context.pass.read(&resident.needed, 0..resident.needed.len())];
        reads.extend(
            unread_prefetch.map(|(_, of)| context.pass.read(&of.prefetch_list, 0..of.prefetch_list.len())),
        );
        let read = ring.sync(context, reads)?;
        let missing = missing(&read[0], kv.shape().num_kv_heads, first, context.offload_plan);
        if !missing.is_empty() {
            let mut lost = Vec::new();
            disk.fetcher.bring(context.gpu, kv, layer, &missing, (self.num_slots, &mut lost))?;
            ring.lose(kv, lost);
        }
        if let (Some((layer, _)), Some(fetches)) = (unread_prefetch, read.get(1)) {
            let wants = disk.wants(layer, fetches, first, context.offload_plan);
            disk.fetcher.predict(kv, layer, &wants);
        }
        if !missing.is_empty() {
            self.copy_staged(context, layer);
        }
        let mut context = page_context(context, ring);
        self.copy_step(&mut context, layer, FetchReason::Needed, false, u32_of(self.touched.len()));
        Ok(())
    }

    /// Records the copy of pages from the staging buffers to their slots.
    fn copy_staged(&self, context: &mut TransferContext<'_>, layer: usize) {
        let (Some(disk), Some(resident)) = (&self.disk, &self.layers[layer]) else { return };
        let (staged, (k, v)) = (disk.fetcher.staged(), context.kv.layer(layer));
        let buffers = FetchPagesBuffers {
            fetches: staged.fetches.bind(),
            host_k: staged.k.bind(),
            host_v: staged.v.bind(),
            places: resident.places.bind(),
            touched: self.touched.bind(),
            k: k.bind(),
            v: v.bind(),
        };
        context.pass.dispatch(&self.copy, &self.copied, buffers);
    }
}

/// Returns a context of pages with the staging blocks of a ring.
fn page_context<'a>(context: &'a mut TransferContext<'_>, ring: &'a RingKeys) -> PageContext<'a> {
    PageContext {
        pass: context.pass,
        kv: context.kv,
        tables: context.batch.tables.on_device(),
        written: ring.written(context.kv),
    }
}
