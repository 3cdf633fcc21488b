//! The engine: the scheduler decides, the decoder computes, and nothing else is between them.
//!
//! One step: the scheduler plans slices of sequences within a token budget and assigns blocks to each; the
//! decoder runs them and samples tokens; the scheduler takes the tokens and reports which sequences ended.

mod compute;
mod early;
mod live;
mod non_finite;
mod pacing;
mod pool;
mod report;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use kvblock::{BlockHasher, BlockSize, CacheEvent, KvCacheConfig, LengthLimits, SeqId};
use models::{FetchCost, Pipeline};
use scheduler::{Admitted, Scheduler, SchedulerConfig, StepPlan};

use crate::Note;
use crate::block_ops::HostBlocks;
use crate::error::Error;
use crate::event::{CachedTokens, Event, FinishReason, Started};
use crate::kv_events::Followers;
use crate::kv_used::KvUsed;
use crate::model::{Model, rows_of_a_step};
use crate::options::{EngineOptions, Preemption};
use crate::request::Request;
use crate::snapshot::{Rate, Totals};
use crate::tiers::{self, Tiers};
use crate::{crossing, memory};

use early::Early;
use live::Live;
use pacing::Pacing;
use watch::Watch;

/// Scheduler and decoder of one model.
#[derive(Debug)]
pub struct Engine {
    model: Arc<Model>,
    /// The options that the engine was opened with, except that the chunk is reduced to what the device has room for.
    options: EngineOptions,
    scheduler: Scheduler,
    decoder: Pipeline,
    host: HostBlocks,
    tiers: Option<Tiers>,
    live: HashMap<SeqId, Live>,
    kv_used: KvUsed,
    totals: Totals,
    prefill_rate: Rate,
    decode_rate: Rate,
    pacing: Pacing,
    /// Events of a failed step that were not returned yet.
    unsent: Vec<Event>,
    kernel_ns: BTreeMap<&'static str, (u64, f64)>,
    /// Time per fetch of selected blocks from the host, once it has been measured.
    fetch_cost: Option<FetchCost>,
    watch: Watch,
    followers: Followers,
    early: Early,
}

impl Engine {
    /// Loads `model` onto the device that `options` select.
    ///
    /// # Errors
    /// If there is no device, not enough memory, or the decoder does not support the model.
    pub fn open(model: impl Into<Arc<Model>>, options: EngineOptions) -> Result<Self, Error> {
        Self::open_shared(model.into(), options)
    }

    fn open_shared(model: Arc<Model>, mut options: EngineOptions) -> Result<Self, Error> {
        crossing::check(&options)?;
        let seqs = options.demand_within(model.config.context_length).sequences;
        options.chunk = model.fitting_chunk(&options, seqs)?;
        let (rows, stages) = (rows_of_a_step(options.chunk, seqs), options.stages());
        let mut decoder = model.load(&options, rows)?;
        let [budget, chunk] = [rows, options.chunk].map(|rows| Pipeline::step_rows(rows, stages));
        crossing::cross(&mut decoder, &options)?;
        let limits = LengthLimits::new(decoder.config().context_length).max_batched_tokens(budget);
        let groups = decoder.plan().layout.groups.clone();
        let cache = KvCacheConfig::new(decoder.num_blocks(), groups, limits);
        let cache = cache.hash_seed(tiers::hash_seed(&options)).events(options.cache_events.any());
        // Each sequence takes a part of the ring through which blocks on the host pass.
        let running = decoder.first().kv().max_sequences().map_or(seqs, |most| most.min(seqs));
        let mut plans = SchedulerConfig::new(budget, running);
        plans.long_prefill_token_threshold = chunk;
        plans.policy = options.order;
        plans.reserve_full_input = options.reserve_full_input;
        if options.preemption == Preemption::Swap {
            let num_host_blocks = memory::swap_blocks(&decoder);
            plans.preemption = scheduler::Preemption::Swap { num_host_blocks };
        }
        Ok(Self {
            watch: Watch::new(options.sparse.as_ref().filter(|sparse| sparse.selects()), decoder.config()),
            early: Early::new(&options, decoder.gpu()),
            kv_used: KvUsed::new(&cache),
            scheduler: Scheduler::new(plans, cache)?,
            tiers: Tiers::open(&options, &model, &decoder)?,
            pacing: Pacing::new(&options, &decoder.weight_sizes()),
            model,
            options,
            decoder,
            host: HostBlocks::default(),
            live: HashMap::new(),
            totals: Totals::default(),
            prefill_rate: Rate::default(),
            decode_rate: Rate::default(),
            unsent: Vec::new(),
            kernel_ns: BTreeMap::new(),
            fetch_cost: None,
            followers: Followers::default(),
        })
    }

    /// Whether a device was lost, so that every step fails.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.decoder.is_lost()
    }

    /// Opens a new device after the old one was lost, and loads the model again. All sequences go on: the KV of their tokens
    /// is computed again, requests that had not started may load theirs from the tiers, and the next tokens are the same as
    /// without the loss.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), also if there is room for another number of KV blocks than before. The
    /// sequences are lost then.
    pub fn reopen(self) -> Result<Self, Error> {
        let Self {
            model,
            mut options,
            decoder,
            tiers,
            mut scheduler,
            live,
            totals,
            unsent,
            kv_used,
            followers,
            ..
        } = self;
        for lost in decoder.stages().iter().filter(|stage| stage.gpu().is_lost()) {
            options.notes.tell(&Note::DeviceLost { adapter: lost.gpu().info().name.clone() });
        }
        let wanted = decoder.num_blocks();
        options.kv_blocks = Some(decoder.device_blocks());
        // The host tier stays; the others finish their writes and free their folders. The decoder frees what is left of the
        // device.
        let host = tiers.as_ref().and_then(Tiers::host);
        drop((tiers, decoder));
        scheduler.restart_all();
        let mut new = Self::open_shared(model, options)?;
        drop(host);
        let blocks = new.decoder.num_blocks();
        if blocks != wanted {
            return Err(Error::KvBlocks { wanted, blocks, limit: blocks });
        }
        new.scheduler = scheduler;
        new.totals = Totals { recoveries: totals.recoveries + 1, ..totals };
        (new.live, new.unsent, new.kv_used, new.followers) = (live, unsent, kv_used, followers);
        new.tell_followers();
        Ok(new)
    }

    /// Queues a request. Its samples have consecutive ids from the returned one.
    ///
    /// # Errors
    /// If the request can never run, with the sizes.
    pub fn submit(&mut self, mut request: Request) -> Result<SeqId, Error> {
        self.check(&request)?;
        let first = self.scheduler.add(request.take_for_scheduler(&self.decoder.config().eos_ids))?;
        for sample in 0..request.samples {
            let live = self.live(&request, first, sample);
            self.live.insert(SeqId::new(first.get() + u64::from(sample)), live);
        }
        Ok(first)
    }

    /// The hasher of the prefix cache, and the tokens of a block of its first group, by which cache events name blocks.
    pub(crate) fn hashing(&self) -> (BlockHasher, BlockSize) {
        (self.scheduler.hasher(), self.decoder.plan().layout.groups[0].spec.block_size)
    }

    /// Whether any sequence is unfinished.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Plans, computes and completes one step.
    ///
    /// # Errors
    /// Errors of the device, after which there is no further step but that of an engine that was
    /// [reopened](Self::reopen): it returns what had happened before.
    pub fn step(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = std::mem::take(&mut self.unsent);
        let advanced = self.advance(&mut events);
        self.tell_followers();
        match advanced {
            Ok(()) => Ok(events),
            Err(error) => {
                self.unsent = events;
                Err(error)
            }
        }
    }

    fn advance(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        events.extend(self.expire());
        events.extend(self.look_ahead()?);
        self.limit_prefill();
        let plan = self.plan(events);
        let kernels = self.decoder.compilations();
        let begun = self.early.begun();
        let mut output = self.compute(&plan)?;
        // A step that waited for its kernels says nothing of those that follow.
        if self.decoder.compilations() == kernels && !kernels.iter().any(|kernels| kernels.is_running()) {
            self.pacing.observe(&plan, begun.elapsed());
        }
        let bad = self.discard_bad(&plan, &mut output)?;
        self.save(&plan, &bad)?;
        self.take_prompts(&plan, &mut output, events);
        self.take_pooled(&plan, &output);
        let mut ended = self.take_tokens(&plan, &mut output, events);
        ended.extend(bad);
        let finished = self.scheduler.complete(&plan, &output.sampled);
        events.extend(finished.into_iter().map(|done| self.retire(done)));
        for seq in ended {
            events.extend(self.end(seq, scheduler::Ending::Stopped));
        }
        self.settle()?;
        if !self.has_work() {
            // What others need not compile again; a folder that cannot be written costs time alone.
            self.decoder.gpus().for_each(|gpu| drop(gpu.keep_kernels()));
        }
        Ok(())
    }

    /// Ends a sequence that the caller no longer needs, and returns the events of its end; none if it has already ended.
    pub fn cancel(&mut self, seq: SeqId) -> Vec<Event> {
        self.end_for(seq, FinishReason::Cancelled)
    }

    /// Ends the sequences whose deadline has passed.
    fn expire(&mut self) -> Vec<Event> {
        let now = Instant::now();
        let late = |(seq, live): (&SeqId, &Live)| (live.deadline? <= now).then_some(*seq);
        let mut late: Vec<SeqId> = self.live.iter().filter_map(late).collect();
        late.sort_unstable();
        late.into_iter().flat_map(|seq| self.end_for(seq, FinishReason::Deadline)).collect()
    }

    /// Plans a step and starts its loads.
    fn plan(&mut self, events: &mut Vec<Event>) -> StepPlan {
        let plan = self.scheduler.step();
        let now = Instant::now();
        for &Admitted { seq, cached_tokens, resumed } in &plan.admitted {
            let live = self.live.get_mut(&seq).expect("an admitted sequence was submitted");
            if live.clock.started.is_none() && live.leader == seq && !resumed {
                let loaded = self.tiers.as_mut().map(|tiers| tiers.take_loaded(seq)).unwrap_or_default();
                // A load that was given back before the start counts for nothing.
                live.cached = match cached_tokens.checked_sub(loaded.total()) {
                    Some(device) => CachedTokens { device, ..loaded },
                    None => CachedTokens { device: cached_tokens, ..CachedTokens::default() },
                };
                let (id, prompt_tokens, cached) = (live.id.clone(), live.prompt_tokens, live.cached);
                self.totals.cached.add(cached);
                events.push(Event::Started(Started { id, seq, at: now, prompt_tokens, cached }));
            }
            live.clock.started.get_or_insert(now);
        }
        self.kv_used.look(self.scheduler.cache());
        if let Some(tiers) = &mut self.tiers {
            tiers.start(&self.scheduler, &plan);
            if plan.slices.is_empty() && tiers.is_loading() {
                tiers.wait();
            }
        }
        plan
    }

    /// Ends a sequence for a reason of the engine's.
    fn end_for(&mut self, seq: SeqId, reason: FinishReason) -> Vec<Event> {
        if let Some(live) = self.live.get_mut(&seq) {
            live.reason = Some(reason);
        }
        self.end(seq, scheduler::Ending::Aborted)
    }

    fn end(&mut self, seq: SeqId, reason: scheduler::Ending) -> Vec<Event> {
        self.scheduler.finish(seq, reason).into_iter().map(|done| self.retire(done)).collect()
    }

    /// Tells `follower` from now on what the KV cache holds, as [`kv_events`](crate::kv_events) says: the engine calls it at the
    /// end of each step that changed something, with the events oldest first, and waits for it. An engine that is
    /// [reopened](Self::reopen) keeps its followers.
    ///
    /// # Panics
    /// If [the options](crate::EngineOptions::cache_events) record no events.
    pub fn follow(&mut self, follower: impl FnMut(&[CacheEvent]) + Send + 'static) {
        assert!(self.options.cache_events.any(), "nobody can follow an engine without events");
        self.followers.add(follower);
    }

    /// Whether cache events can come while the engine has no work, because other engines change the host tier that
    /// they share.
    pub(crate) fn hears_of_others(&self) -> bool {
        self.tiers.as_ref().is_some_and(Tiers::tell_events)
    }

    /// Tells the followers what has changed in the KV cache since the last call.
    pub(crate) fn tell_followers(&mut self) {
        if self.options.cache_events.any() {
            let mut events = self.scheduler.take_cache_events();
            events.extend(self.tiers.as_mut().map(Tiers::take_events).unwrap_or_default());
            self.followers.tell(&events);
        }
    }

    /// Finishes the saves in progress and reports them, before the engine waits for requests or ends. No step does
    /// this after the last request was cancelled.
    pub(crate) fn rest(&mut self) {
        if self.options.cache_events.any() {
            // A device that was lost is found so by the next step.
            let _ = self.settle();
            self.tell_followers();
        }
    }
}
