//! Selected blocks of contexts on disk: read ahead into host memory, and copied to slots when lists name them.
//!
//! ```text
//! device    │ score, top k, residency of layer l │ ............ │ fetch_pages, attention, MLP of layer l │ layer l+1 ...
//! host                                           │ cache, disk  │
//! threads   │ read pages that later layers may select ...
//! ```
//!
//! Once per layer, the host reads back which pages of the layer's lists are not in slots. It copies those in its cache to the
//! slots at once, and reads the others from disk first. The next step is likely to select the blocks that just missed the
//! lists, so threads read these ahead, the best first, in the order of [`prefetch::plan`]. A newer prediction of a layer
//! replaces the older one. Memory is bounded by the cache and by the pages of one layer that are in transit.

use std::sync::Arc;
use std::time::Duration;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::residency::HEADER;
use attn_kernels::rows::KvWord;
use kvblock::{BlockHash, SeqId};
use prefetch::engine::{Engine, EngineConfig, EngineError, Submission, TaskKey};
use prefetch::plan::{BlockDemand, Budget, Priority, plan};
use prefetch::spill::{Spill, SpillError, SpillRun, SpillTier};
use prefetch::stack::TierStack;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::decoder::buffers::GrowBuf;
use crate::sparse::Predictions;
use crate::{KvPool, ModelError};

/// Maximum wait for reads of other threads. Afterwards the host reads by itself, and waits as long as the disk takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Task of the reads that a layer waits for; predictions have smaller numbers.
const DEMAND: SeqId = SeqId::new(u64::MAX);

/// Number of regions of a layer on disk: K and V.
const REGIONS: u32 = 2;

/// A page that a slot waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Missing {
    pub(super) head: u32,
    /// Number of the block on disk.
    pub(super) block: u32,
    pub(super) slot: u32,
}

/// Reads of blocks on disk, and predictions of what will be read.
pub(super) struct Fetcher {
    tier: Arc<SpillTier>,
    engine: Engine,
    shape: KvShape,
    /// Maximum number of blocks of a layer in the cache.
    max_blocks: usize,
    max_tasks: usize,
    step: u64,
    generation: u64,
    /// Predictions for the next selection of each layer.
    predicted: Vec<Predicted>,
    /// Keys and values on their way to slots.
    staging: [GrowBuf<KvWord>; 2],
    /// Positions of the pages in the staging buffers, and their slots.
    fetches: GrowBuf<u32>,
    counts: Predictions,
}

/// Blocks that a layer may select next, and the tasks that read them.
#[derive(Clone, Debug, Default)]
struct Predicted {
    blocks: FxHashSet<BlockHash>,
    tasks: Vec<SeqId>,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher")
            .field("spill", self.tier.spill())
            .field("max_blocks", &self.max_blocks)
            .finish_non_exhaustive()
    }
}

/// Buffers that [`fetch_pages`](attn_kernels::kernel::fetch_pages) copies from, in the format of
/// [`residency`](attn_kernels::kernel::residency).
pub(super) struct StagedPages<'a> {
    pub(super) k: &'a Buf<KvWord>,
    pub(super) v: &'a Buf<KvWord>,
    pub(super) fetches: &'a Buf<u32>,
}

impl Fetcher {
    /// Creates a fetcher of `spill` within `limits`. Its cache holds `layers` times as many blocks as `limits` states.
    ///
    /// # Errors
    /// Memory of the device, and threads that do not start.
    pub(super) fn new(
        gpu: &Gpu,
        kv: &KvPool,
        spill: &Arc<Spill>,
        layers: usize,
        limits: EngineConfig,
    ) -> Result<Self, ModelError> {
        let refuse =
            ModelError::Offload { lacks: "keys and values of a few MiB a block beside a sparse policy" };
        let tier = Arc::new(SpillTier::new(Arc::clone(spill), REGIONS).ok_or(refuse)?);
        let stack = TierStack::new(vec![tier.clone()]).expect("one tier is a stack");
        let max_blocks = limits.prefetch_cache_size.saturating_mul(layers);
        let started = Engine::new(Arc::new(stack), limits.prefetch_cache_size(max_blocks));
        let engine =
            started.map_err(|error: EngineError| ModelError::Readers { reason: error.to_string() })?;
        Ok(Self {
            tier,
            engine,
            shape: *kv.shape(),
            max_blocks,
            max_tasks: limits.max_pending_prefetch,
            step: 0,
            generation: 0,
            predicted: vec![Predicted::default(); layers],
            staging: [GrowBuf::new(gpu, "staged_k", 1)?, GrowBuf::new(gpu, "staged_v", 1)?],
            fetches: GrowBuf::new(gpu, "staged", 1)?,
            counts: Predictions::default(),
        })
    }

    /// Starts a step: predictions are made for this step or later ones, within the limits.
    pub(super) fn begin(&mut self) {
        self.step += 1;
        self.engine.advance(self.step);
        debug_assert!(self.engine.cached_blocks() <= self.max_blocks, "the cache outgrows its limit");
    }

    /// Returns the counts so far.
    pub(super) fn counts(&self) -> Predictions {
        self.counts
    }

    /// Starts reading blocks that the next selection of a layer may name. `wants` has for each sequence its position in the batch
    /// and its blocks, most important first. Blocks beyond the limits are not read.
    pub(super) fn predict(&mut self, kv: &KvPool, layer: usize, wants: &[(u32, Vec<u32>)]) {
        let first = kv.regions(layer).start;
        let key = |block: &u32| self.tier.key(first, *block);
        let keys: Vec<(u32, Vec<BlockHash>)> =
            wants.iter().map(|(position, blocks)| (*position, blocks.iter().map(key).collect())).collect();
        let demands: Vec<BlockDemand<'_>> = keys
            .iter()
            .map(|(position, selected)| BlockDemand {
                seq: task(layer, *position),
                position: *position,
                selected,
            })
            .collect();
        // Each layer has a share of the cache, so that none evicts what was read for another.
        let blocks_max = self.max_blocks / self.predicted.len().max(1);
        let budget = Budget { fetches_max: self.max_tasks, blocks_max };
        let fetches = plan(&demands, |block| self.engine.get(block).is_some(), budget);
        // A newer task of the same sequence replaces the older one. Tasks of other sequences are cancelled.
        for task in std::mem::take(&mut self.predicted[layer]).tasks {
            if fetches.iter().all(|fetch| fetch.seq != task) {
                self.engine.cancel(task);
            }
        }
        let mut predicted = Predicted::default();
        for fetch in fetches {
            self.generation += 1;
            let key = TaskKey { seq: fetch.seq, generation: self.generation };
            let submission = Submission::new(key, fetch.priority, fetch.blocks.clone()).step(self.step + 1);
            // If the queue is full or the window ends too early, the block is read later.
            if self.engine.submit(submission).is_ok() {
                self.counts.predicted += fetch.blocks.len() as u64;
                predicted.blocks.extend(fetch.blocks);
                predicted.tasks.push(fetch.seq);
            }
        }
        self.predicted[layer] = predicted;
    }

    /// Copies missing pages of a layer to the staging buffers, from the cache or else from disk. Blocks that cannot be read are
    /// zeros, and are added to `lost`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn bring(
        &mut self,
        gpu: &Gpu,
        kv: &KvPool,
        layer: usize,
        missing: &[Missing],
        (num_slots, lost): (u32, &mut Vec<SpillError>),
    ) -> Result<(), ModelError> {
        let first = kv.regions(layer).start;
        let mut blocks: Vec<u32> = missing.iter().map(|page| page.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let Predicted { blocks: predicted, tasks } = std::mem::take(&mut self.predicted[layer]);
        self.count_used(&predicted, first, &blocks);
        let heads = self.shape.num_kv_heads;
        let page_bytes = self.shape.block_bytes() / heads as usize;
        let places = StagingLayout::of(missing, heads, num_slots);
        let mut staged = [(); 2].map(|()| vec![0; places.rows * heads as usize * page_bytes]);
        let mut pages: FxHashMap<u32, Vec<(usize, u32)>> = FxHashMap::default();
        for (page, row) in missing.iter().zip(&places.of_pages) {
            pages.entry(page.block).or_default().push((*row, page.head));
        }
        for portion in blocks.chunks(self.max_blocks.max(1)) {
            self.await_blocks(first, portion);
            for block in portion {
                let bytes = self.block(first, *block, lost);
                for (part, staged) in bytes.chunks_exact(self.shape.block_bytes()).zip(&mut staged) {
                    for (row, head) in &pages[block] {
                        let (from, to) = (
                            *head as usize * page_bytes,
                            (row * heads as usize + *head as usize) * page_bytes,
                        );
                        staged[to..to + page_bytes].copy_from_slice(&part[from..from + page_bytes]);
                    }
                }
            }
        }
        // Other predictions are not needed any more.
        tasks.into_iter().for_each(|task| {
            self.engine.cancel(task);
        });
        for (buffer, bytes) in self.staging.iter_mut().zip(&staged) {
            buffer.fit(gpu, bytes.len() / size_of::<KvWord>())?;
            gpu.write_bytes(buffer, 0, bytes);
        }
        self.fetches.write(gpu, &places.fetches)
    }

    /// Returns the pages of the last [`bring`](Self::bring).
    pub(super) fn staged(&self) -> StagedPages<'_> {
        let [k, v] = &self.staging;
        StagedPages { k, v, fetches: &self.fetches }
    }

    /// Counts which blocks were predicted, and which of them have not arrived.
    fn count_used(&mut self, predicted: &FxHashSet<BlockHash>, first: u32, blocks: &[u32]) {
        let keys = blocks.iter().map(|block| self.tier.key(first, *block));
        for key in keys.filter(|key| predicted.contains(key)) {
            match self.engine.get(key) {
                Some(_) => self.counts.used += 1,
                None => self.counts.late += 1,
            }
        }
    }

    /// Reads the blocks of a layer that are not in the cache with priority, and waits for them.
    fn await_blocks(&mut self, first: u32, blocks: &[u32]) {
        let keys = blocks.iter().map(|block| self.tier.key(first, *block));
        let absent: Vec<BlockHash> = keys.filter(|key| self.engine.get(*key).is_none()).collect();
        if absent.is_empty() {
            return;
        }
        self.generation += 1;
        let key = TaskKey { seq: DEMAND, generation: self.generation };
        let submission = Submission::new(key, Priority::Urgent, absent).step(self.step);
        if let Ok(handle) = self.engine.submit(submission) {
            // The host itself reads blocks that did not arrive, for whatever reason.
            let _ = handle.wait(PATIENCE);
        }
    }

    /// Returns K and V of a block of a layer, from the cache or from disk.
    fn block(&self, first: u32, block: u32, lost: &mut Vec<SpillError>) -> Arc<[u8]> {
        let key = self.tier.key(first, block);
        if let Some(bytes) = self.engine.get(key) {
            return bytes;
        }
        let part = self.shape.block_bytes();
        let mut bytes: Vec<u8> = vec![0; REGIONS as usize * part];
        for (region, bytes) in (first..first + REGIONS).zip(bytes.chunks_exact_mut(part)) {
            lost.extend(self.tier.spill().read_into(&SpillRun { region, blocks: block..block + 1 }, bytes));
        }
        bytes.into()
    }
}

/// Returns the task number of a layer's predictions for the sequence at a position of the batch.
fn task(layer: usize, position: u32) -> SeqId {
    SeqId::new((layer as u64) << 32 | u64::from(position))
}

/// Layout of pages in the staging buffers: pages of a head are in one column.
struct StagingLayout {
    rows: usize,
    /// Row of each page.
    of_pages: Vec<usize>,
    /// Fetches in the format of [`residency`](attn_kernels::kernel::residency), with rows instead of blocks.
    fetches: Vec<u32>,
}

impl StagingLayout {
    fn of(missing: &[Missing], heads: u32, num_slots: u32) -> Self {
        let words = HEADER + 2 * num_slots as usize;
        let mut fetches = vec![0; heads as usize * words];
        let mut of_pages = Vec::with_capacity(missing.len());
        for page in missing {
            let of_head = &mut fetches[page.head as usize * words..][..words];
            let row = of_head[0];
            of_head[0] += 1;
            of_head[HEADER + 2 * row as usize..][..2].copy_from_slice(&[row, page.slot]);
            of_pages.push(row as usize);
        }
        let rows = of_pages.iter().max().map_or(0, |row| row + 1);
        Self { rows, of_pages, fetches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_head_are_in_one_column() {
        let page = |head, block, slot| Missing { head, block, slot };
        let places = StagingLayout::of(&[page(1, 9, 0), page(0, 4, 2), page(1, 4, 1)], 2, 3);
        assert_eq!((places.rows, &places.of_pages[..]), (2, &[0, 0, 1][..]));
        assert_eq!(places.fetches, [[1, 0, 0, 0, 0, 2, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 1, 1, 0, 0]].concat());
    }

    #[test]
    fn tasks_of_layers_and_sequences_are_apart() {
        assert_ne!(task(1, 0), task(0, 1));
        assert_ne!(task(u32::MAX as usize, u32::MAX), task(0, u32::MAX));
    }
}
