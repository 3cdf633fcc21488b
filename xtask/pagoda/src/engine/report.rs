//! Reports of an engine about itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kvblock::{BlockId, SeqId};
use models::{Attended, Decoder, FetchCost, Pipeline};
use scheduler::{Scheduler, Status};
use sparse_select::Spec;

use super::Engine;
use crate::error::Error;
use crate::kv_used::group_id;
use crate::model::Model;
use crate::options::EngineOptions;
use crate::snapshot::{Activity, BlockView, PrefixView, SequenceView, Snapshot, Totals};
use crate::tiers::{self, Tiers};
use crate::usage::{self, KvUse, ReadAhead, TierUse};

/// Number of blocks in a table without the null blocks, which stand for blocks that no window reaches any more.
fn held(table: &[BlockId]) -> u32 {
    let null = table.partition_point(|block| *block == BlockId::NULL);
    u32::try_from(table.len() - null).expect("a table has fewer than 2^32 blocks")
}

impl Engine {
    /// Largest number of KV blocks in use at one time, and their bytes, by cache group.
    #[must_use]
    pub fn kv_use(&self) -> BTreeMap<String, KvUse> {
        usage::kv_use(self.decoder.plan(), &self.kv_used.most)
    }

    /// Traffic of the KV tiers, once they are configured.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tier_use(&mut self) -> Result<TierUse, Error> {
        let used = self.tiers.as_ref().map(Tiers::traffic).unwrap_or_default();
        let cost = self.fetch_cost()?;
        Ok(tiers::with_fetches(used, self.decoder.first(), cost)?)
    }

    /// Cost of fetching selected pages from the host, which is measured once; `None` if no page was fetched or the adapter
    /// has no timestamps.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch_cost(&mut self) -> Result<Option<FetchCost>, Error> {
        if self.fetch_cost.is_none() {
            self.fetch_cost = self.decoder.first_mut().fetch_cost()?;
        }
        Ok(self.fetch_cost)
    }

    /// The state of the engine now. O(unfinished sequences); does not access the device.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let (scheduler, now) = (&self.scheduler, Instant::now());
        let running: Vec<SequenceView> = scheduler.running().iter().map(|seq| self.view(*seq, now)).collect();
        let waiting: Vec<SequenceView> = scheduler.waiting().map(|seq| self.view(seq, now)).collect();
        let (pool, hits) = (scheduler.cache().pool(), scheduler.prefix_stats().total());
        let held: u32 = running.iter().chain(&waiting).map(|view| view.blocks).sum();
        let plan = self.decoder.plan();
        Snapshot {
            at: now,
            running,
            waiting,
            blocks: BlockView {
                total: pool.num_usable(),
                host: self.decoder.first().kv().host_blocks(),
                used: pool.num_used(),
                shared: held.saturating_sub(pool.num_used()),
                cached: u32::try_from(pool.num_cached()).unwrap_or(u32::MAX),
                block_size: plan.layout.groups[0].spec.block_size.get(),
                block_bytes: plan.block_bytes(),
            },
            prefix: PrefixView { queried_tokens: hits.queried_tokens, hit_tokens: hits.hit_tokens },
            tiers: self.tiers.as_ref().map(Tiers::traffic).unwrap_or_default(),
            selected_ahead: self.decoder.first().predictions().map(ReadAhead::from),
            totals: Totals { preemptions: scheduler.num_preemptions(), ..self.totals },
            prefill_tok_s: self.prefill_rate.per_second(now),
            decode_tok_s: self.decode_rate.per_second(now),
        }
    }

    fn view(&self, seq: SeqId, now: Instant) -> SequenceView {
        let (scheduler, live) = (&self.scheduler, &self.live[&seq]);
        let blocks = |group| held(scheduler.block_table(seq, group_id(group)));
        let since = |time: Instant| time.saturating_duration_since(live.clock.submitted).as_secs_f64();
        SequenceView {
            id: live.id.clone(),
            seq,
            sample: live.sample,
            activity: match scheduler.status(seq) {
                None | Some(Status::Waiting) => Activity::Waiting,
                Some(Status::WaitingForRemoteKv) => Activity::Loading,
                Some(Status::Preempted) => Activity::Preempted,
                Some(Status::Running) if scheduler.is_prefill(seq) == Some(true) => Activity::Prefill,
                Some(Status::Running) => Activity::Decode,
            },
            prompt_tokens: live.prompt_tokens,
            tokens: u32::try_from(scheduler.tokens(seq).unwrap_or_default().len()).unwrap_or(u32::MAX),
            computed: scheduler.num_computed(seq).unwrap_or(0),
            cached: live.cached,
            blocks: (0..self.kv_used.most.len()).map(blocks).sum(),
            preemptions: scheduler.preemptions(seq).unwrap_or(0),
            density: live.attended.as_ref().map_or(1.0, Attended::density),
            bound: live.attended.as_ref().and_then(|attended| attended.mass),
            age_s: since(now),
            started_s: live.clock.started.map(since),
            first_s: live.clock.first.map(since),
        }
    }

    /// Empties the prefix cache on the device. Returns false and changes nothing while a sequence holds blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let cache = self.scheduler.cache_mut();
        let free = cache.pool().num_used() == 0;
        if free && self.tiers.as_ref().is_some_and(Tiers::tell_events) {
            // The tiers keep their blocks: events name those of the device.
            let all: Vec<BlockId> = (1..=cache.pool().num_usable()).map(BlockId::new).collect();
            cache.evict_blocks(&all).expect("the pool has them");
        } else {
            cache.reset_prefix_cache();
        }
        self.tell_followers();
        free
    }

    /// Returns the model that the engine was opened with.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The options that it was opened with, with the chunk that the device has room for.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// SPEC of the sparse-attention policy; `None` for full attention.
    pub(super) fn spec(&self) -> Option<&Spec> {
        self.options.sparse.as_ref().map(|sparse| &sparse.spec)
    }

    /// Measures device times from the next step on; false if the adapter has no timestamps.
    pub fn time_kernels(&mut self, on: bool) -> bool {
        let on_all: Vec<bool> = self.decoder.gpus().map(|gpu| gpu.time_dispatches(on)).collect();
        on_all.into_iter().all(|timed| timed)
    }

    /// Dispatches and device time in nanoseconds by kernel, since the last call.
    pub fn take_kernel_times(&mut self) -> BTreeMap<&'static str, (u64, f64)> {
        std::mem::take(&mut self.kernel_ns)
    }

    /// The decoder, read-only. If the layers are split over devices, the decoder of the first layers.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        self.decoder.first()
    }

    /// The decoders of all layers, read-only.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline {
        &self.decoder
    }

    /// The scheduler, read-only.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}
