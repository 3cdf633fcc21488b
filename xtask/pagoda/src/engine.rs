//! The assembled engine: the scheduler decides, the decoder computes, and nothing lies in between.
//!
//! One step: the scheduler plans slices of sequences within a token budget and assigns blocks to each; the
//! decoder runs them and samples tokens; the scheduler takes the tokens and reports which sequences ended.

mod beams;

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kvblock::{BlockId, ExtraKeys, KvCacheConfig, LengthLimits, SeqId};
use models::batch::{Phase, Sample, Slice, StepOutput};
use models::kernel::sample::Spec;
use models::{Attended, Decoder, FetchCost};
use scheduler::{
    FinishReason, Finished, Preemption, Request, Scheduler, SchedulerConfig, SliceKind, StepPlan,
};

use crate::block_ops::HostBlocks;
use crate::cli::{EngineArgs, Preempt, SamplingArgs};
use crate::kv_used::{KvUsed, group_id};
use crate::model::{self, Model, Wanted};
use crate::report::{self, KvUse};
use crate::tiers::{self, Tiers};

/// Maximum number of sequences that run at a time; others wait.
const MAX_SEQS: u32 = 256;

/// A prompt and how to continue it.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Number of continuations, which share the prompt's blocks.
    pub samples: u32,
    /// How tokens are sampled.
    pub sampling: SamplingArgs,
    /// Separates prefix-cache entries.
    pub salt: Option<String>,
    /// Continue past the end of sequence: measurements need a known number of tokens.
    pub ignore_eos: bool,
}

/// An event of a step.
#[derive(Debug)]
pub enum Event {
    /// A sequence got its next token.
    Token(SeqId, u32),
    /// A sequence ended, with its times.
    Finished(Finished, Clock),
}

/// When a sequence was submitted, first scheduled, and got its first and last tokens.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Submission.
    pub submitted: Instant,
    /// First schedule.
    pub started: Option<Instant>,
    /// First token.
    pub first: Option<Instant>,
    /// Last token so far.
    pub last: Option<Instant>,
}

/// Scheduler and decoder of one model.
#[derive(Debug)]
pub struct Engine {
    scheduler: Scheduler,
    decoder: Decoder,
    host: HostBlocks,
    tiers: Option<Tiers>,
    eos_ids: Vec<u32>,
    live: HashMap<SeqId, Live>,
    kv_used: KvUsed,
    max_batched_tokens: u32,
    kernel_ns: BTreeMap<&'static str, (u64, f64)>,
    /// Time per fetch of selected blocks from the host, once it has been measured.
    fetch_cost: Option<FetchCost>,
    /// What each sequence attended to under a sparse policy.
    attended: HashMap<SeqId, Attended>,
}

/// What the scheduler need not know about a sequence.
#[derive(Debug, Clone)]
struct Live {
    sampling: SamplingArgs,
    seed: u64,
    clock: Clock,
    /// First sample of the prompt, which computes the prompt for all samples.
    leader: SeqId,
}

impl Engine {
    /// Loads `model` with room for `sequences` sequences of the `wanted` numbers of tokens.
    ///
    /// # Errors
    /// If there is no device, not enough memory, or the decoder does not support the model.
    pub fn open(
        args: &EngineArgs,
        model: &Model,
        sequences: u32,
        wanted: Wanted,
        preempt: Preempt,
    ) -> Result<Self> {
        let seqs = sequences.clamp(1, MAX_SEQS);
        // Decode tokens come in addition to a chunk of prompts, so that neither starves the other.
        let budget = args.chunk.saturating_add(seqs);
        let decoder = model.load(args, budget, seqs, wanted)?;
        let config = decoder.config();
        let limits = LengthLimits { max_model_len: config.context_length, max_batched_tokens: budget };
        let groups = decoder.kv().plan().layout.groups.clone();
        let cache = KvCacheConfig::new(decoder.kv().num_blocks(), groups, limits);
        let cache = KvCacheConfig { hash_seed: tiers::hash_seed(args), ..cache };
        // Each sequence takes a part of the ring through which blocks on the host pass.
        let running = decoder.kv().most_sequences().map_or(seqs, |most| most.min(seqs));
        let mut plans = SchedulerConfig::new(budget, running);
        plans.long_prefill_token_threshold = args.chunk;
        if preempt == Preempt::Swap {
            plans.preemption = Preemption::Swap { num_host_blocks: host_blocks(&decoder) };
        }
        let kv_used = KvUsed::new(&cache);
        Ok(Self {
            scheduler: Scheduler::new(plans, cache)?,
            tiers: Tiers::open(args, model, &decoder)?,
            eos_ids: config.eos_ids.clone(),
            decoder,
            host: HostBlocks::default(),
            live: HashMap::new(),
            kv_used,
            max_batched_tokens: budget,
            kernel_ns: BTreeMap::new(),
            fetch_cost: None,
            attended: HashMap::new(),
        })
    }

    /// Queues a prompt. Its samples have consecutive ids from the returned one.
    ///
    /// # Errors
    /// If the prompt can never run, with the sizes.
    pub fn submit(&mut self, prompt: &Prompt) -> Result<SeqId> {
        let vocab = self.decoder.config().vocab_size;
        if let Some((position, id)) = prompt.ids.iter().enumerate().find(|(_, id)| **id >= vocab) {
            bail!("token id {id} at position {position} is outside the vocabulary of {vocab}");
        }
        let mut request = Request::new(prompt.ids.clone(), prompt.max_tokens);
        request.eos_ids.clone_from(&self.eos_ids);
        request.ignore_eos = prompt.ignore_eos;
        request.num_samples = prompt.samples;
        request.extra_keys = ExtraKeys { salt: prompt.salt.clone(), ..ExtraKeys::default() };
        let first = self.scheduler.add(request)?;
        let clock = Clock { submitted: Instant::now(), started: None, first: None, last: None };
        for sample in 0..u64::from(prompt.samples) {
            // Seeds of the samples of a prompt differ only by the sample's index, so a request's tokens do
            // not depend on the others.
            let seed = prompt.sampling.seed.wrapping_add(sample.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let live = Live { sampling: prompt.sampling.clone(), seed, clock, leader: first };
            self.live.insert(SeqId::new(first.get() + sample), live);
        }
        Ok(first)
    }

    /// Whether any sequence is unfinished.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Plans, computes and completes one step.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = self.look_ahead()?;
        let plan = self.plan()?;
        let drawn = self.compute(&plan, false)?.sampled;
        self.save(&plan)?;
        let now = Instant::now();
        for (row, token) in plan.sample_rows.iter().zip(&drawn) {
            let started = self.live.get(&row.seq).and_then(|live| self.live.get(&live.leader)?.clock.started);
            if let Some(live) = self.live.get_mut(&row.seq) {
                // A sample that shares its leader's prompt is not admitted before the leader has sampled.
                live.clock.started = live.clock.started.or(started);
                live.clock.first.get_or_insert(now);
                live.clock.last = Some(now);
            }
            events.push(Event::Token(row.seq, *token));
        }
        let finished = self.scheduler.complete(&plan, &drawn);
        events.extend(finished.into_iter().map(|done| self.retire(done)));
        self.settle()?;
        Ok(events)
    }

    /// Plans a step and starts its loads.
    fn plan(&mut self) -> Result<StepPlan> {
        let plan = self.scheduler.step();
        let now = Instant::now();
        for admitted in &plan.admitted {
            let live = self.live.get_mut(&admitted.seq);
            live.context("an admitted sequence was submitted")?.clock.started.get_or_insert(now);
        }
        self.kv_used.look(self.scheduler.cache());
        if let Some(tiers) = &mut self.tiers {
            tiers.start(&self.scheduler, &plan);
            if plan.slices.is_empty() && tiers.is_loading() {
                tiers.wait();
            }
        }
        Ok(plan)
    }

    /// Lets the tiers finish once all sequences have ended.
    fn settle(&mut self) -> Result<()> {
        match self.tiers.as_mut().filter(|_| !self.scheduler.has_work()) {
            Some(tiers) => tiers.settle(&self.decoder),
            None => Ok(()),
        }
    }

    /// Copies what the tiers have read to the device, and requests what the next steps could use. Returns the
    /// end events of requests whose blocks could not be read.
    fn look_ahead(&mut self) -> Result<Vec<Event>> {
        let Some(tiers) = &mut self.tiers else { return Ok(Vec::new()) };
        let failed = tiers.arrive(&mut self.scheduler, &mut self.decoder)?;
        tiers.look_ahead(&mut self.scheduler);
        Ok(failed.into_iter().flat_map(|seq| self.finish(seq, FinishReason::Failed)).collect())
    }

    /// Saves the blocks that a step filled.
    fn save(&mut self, plan: &StepPlan) -> Result<()> {
        let Some(tiers) = &mut self.tiers else { return Ok(()) };
        let filled = plan.slices.iter().flat_map(|slice| {
            let hashes = self.scheduler.block_hashes(slice.seq);
            let table = self.scheduler.block_table(slice.seq, tiers::GROUP);
            tiers.filled(slice.start..slice.end()).map(|block| (hashes[block], table[block]))
        });
        let filled: Vec<_> = filled.collect();
        tiers.save(&self.decoder, &filled)
    }

    /// Runs a plan on the device. With `logits`, also returns those of every slice that samples.
    fn compute(&mut self, plan: &StepPlan, logits: bool) -> Result<StepOutput> {
        self.host.run(&mut self.decoder, &plan.block_ops)?;
        let of_slice = |slice: &scheduler::Slice| tables(&self.scheduler, slice.seq, self.kv_used.most.len());
        let tables: Vec<Vec<&[BlockId]>> = plan.slices.iter().map(of_slice).collect();
        let slices: Vec<Slice<'_>> = plan
            .slices
            .iter()
            .zip(&tables)
            .map(|(slice, tables)| Slice {
                tokens: self.scheduler.slice_tokens(slice),
                first: slice.start,
                tables,
                phase: match slice.kind {
                    SliceKind::Prefill => Phase::Prefill,
                    SliceKind::Decode => Phase::Decode,
                },
                access: self.scheduler.access_history().counts(slice.seq),
                targets: &[],
                logits: usize::from(logits && slice.samples),
            })
            .collect();
        let samples: Vec<Sample> = plan
            .sample_rows
            .iter()
            .map(|row| {
                let live = &self.live[&row.seq];
                let position = plan.slices[row.slice].end();
                Sample { slice: row.slice, spec: spec(&live.sampling, live.seed, position) }
            })
            .collect();
        if slices.is_empty() {
            return Ok(StepOutput::default());
        }
        let mut output = self.decoder.step(&slices, &samples)?;
        for timing in &output.timings {
            let (count, ns) = self.kernel_ns.entry(timing.kernel).or_default();
            *count += 1;
            *ns += timing.ns;
        }
        for (slice, attended) in plan.slices.iter().zip(std::mem::take(&mut output.attended)) {
            let Some(attended) = attended else { continue };
            self.scheduler.record_access(slice.seq, &attended.accessed);
            self.attended.entry(slice.seq).or_default().add(&attended);
        }
        Ok(output)
    }

    /// What a sequence has attended to under a sparse policy so far; `None` without a policy.
    pub fn take_attended(&mut self, seq: SeqId) -> Option<Attended> {
        self.attended.remove(&seq)
    }

    /// Measures device times from the next step on; false if the adapter has no timestamps.
    pub fn time_kernels(&mut self, on: bool) -> bool {
        self.decoder.gpu().time_dispatches(on)
    }

    /// Dispatches and device time in nanoseconds by kernel, since the last call.
    pub fn take_kernel_times(&mut self) -> BTreeMap<&'static str, (u64, f64)> {
        std::mem::take(&mut self.kernel_ns)
    }

    /// The decoder, read-only.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The scheduler, read-only.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Ends a sequence from outside: a stop text, or Ctrl-C.
    pub fn finish(&mut self, seq: SeqId, reason: FinishReason) -> Vec<Event> {
        if let Some(tiers) = &mut self.tiers {
            tiers.cancel(seq);
        }
        let finished = self.scheduler.finish(seq, reason);
        finished.into_iter().map(|done| self.retire(done)).collect()
    }

    fn retire(&mut self, done: Finished) -> Event {
        let live = self.live.remove(&done.seq).expect("a sequence ends once");
        Event::Finished(done, live.clock)
    }

    /// Traffic of the KV tiers, once they are configured.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tiers(&mut self) -> Result<report::Tiers> {
        let report = self.tiers.as_ref().map(Tiers::report).unwrap_or_default();
        if self.fetch_cost.is_none() {
            self.fetch_cost = self.decoder.fetch_cost()?;
        }
        tiers::with_fetches(report, &self.decoder, self.fetch_cost)
    }

    /// Largest number of KV blocks in use at one time, and their bytes, by cache group.
    #[must_use]
    pub fn kv_use(&self) -> BTreeMap<String, KvUse> {
        report::kv_use(self.decoder.kv().plan(), &self.kv_used.most)
    }
}

/// Block tables of a sequence, `[groups]`.
fn tables(scheduler: &Scheduler, seq: SeqId, num_groups: usize) -> Vec<&[BlockId]> {
    (0..num_groups).map(|group| scheduler.block_table(seq, group_id(group))).collect()
}

/// Blocks that fit in half of the host's free memory, but no more than the sequences of a full queue can
/// lose.
fn host_blocks(decoder: &Decoder) -> u32 {
    let block_bytes = decoder.kv().plan().block_bytes();
    let most = decoder.kv().num_blocks().saturating_mul(MAX_SEQS);
    let free = model::host_available().map_or(u64::MAX, |bytes| bytes / 2);
    u32::try_from(free / block_bytes).unwrap_or(u32::MAX).min(most)
}

/// The flags in the form that the sampling kernel reads.
#[expect(clippy::cast_possible_truncation, reason = "the two halves of a seed")]
fn spec(sampling: &SamplingArgs, seed: u64, position: u32) -> Spec {
    Spec {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        top_k: sampling.top_k,
        seed_low: seed as u32,
        seed_high: (seed >> 32) as u32,
        position,
        pad0: 0,
    }
}
