//! The assembled engine: the scheduler decides, the decoder computes, and nothing lies in between.
//!
//! One step: the scheduler plans slices of sequences within a token budget and assigns blocks to each; the
//! decoder runs them and samples tokens; the scheduler takes the tokens and reports which sequences ended.

mod beams;
mod compute;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use kvblock::{KvCacheConfig, LengthLimits, SeqId};
use models::{Attended, Decoder, FetchCost, Tokenizer};
use scheduler::{Scheduler, SchedulerConfig, StepPlan};

use crate::block_ops::HostBlocks;
use crate::error::Error;
use crate::event::{Clock, Event, FinishReason, Finished, Token, Usage};
use crate::kv_used::KvUsed;
use crate::model::Model;
use crate::options::{EngineOptions, Preemption};
use crate::request::Request;
use crate::sampling::Sampling;
use crate::text::Text;
use crate::tiers::{self, Tiers};
use crate::usage::SparseUse;
use crate::{Note, Notes, memory};

pub use beams::Beams;

/// Scheduler and decoder of one model.
#[derive(Debug)]
pub struct Engine {
    scheduler: Scheduler,
    decoder: Decoder,
    host: HostBlocks,
    tiers: Option<Tiers>,
    tokenizer: Option<Arc<Tokenizer>>,
    sparse: Option<sparse_select::Spec>,
    notes: Notes,
    live: HashMap<SeqId, Live>,
    kv_used: KvUsed,
    max_batched_tokens: u32,
    kernel_ns: BTreeMap<&'static str, (u64, f64)>,
    /// Time per fetch of selected blocks from the host, once it has been measured.
    fetch_cost: Option<FetchCost>,
}

/// What the scheduler need not know about an unfinished sequence.
#[derive(Debug)]
struct Live {
    sampling: Sampling,
    stop: Vec<String>,
    /// Tokens that end the sequence.
    ends: Vec<u32>,
    seed: u64,
    deadline: Option<Instant>,
    clock: Clock,
    text: Option<Text>,
    /// Set once the engine, rather than the scheduler, has a reason to end the sequence.
    reason: Option<FinishReason>,
    /// What it attended to under a sparse policy.
    attended: Option<Attended>,
    /// First sample of the prompt, which computes the prompt for all samples.
    leader: SeqId,
}

impl Engine {
    /// Loads `model` onto the device that `options` select.
    ///
    /// # Errors
    /// If there is no device, not enough memory, or the decoder does not support the model.
    pub fn open(model: &Model, options: &EngineOptions) -> Result<Self, Error> {
        let seqs = options.demand_within(model.config.context_length).sequences;
        // Decode tokens come in addition to a chunk of prompts, so that neither starves the other.
        let budget = options.chunk.saturating_add(seqs);
        let decoder = model.load(options, budget)?;
        let limits = LengthLimits { max_model_len: model.config.context_length, max_batched_tokens: budget };
        let groups = decoder.kv().plan().layout.groups.clone();
        let cache = KvCacheConfig::new(decoder.kv().num_blocks(), groups, limits);
        let cache = KvCacheConfig { hash_seed: tiers::hash_seed(options), ..cache };
        // Each sequence takes a part of the ring through which blocks on the host pass.
        let running = decoder.kv().most_sequences().map_or(seqs, |most| most.min(seqs));
        let mut plans = SchedulerConfig::new(budget, running);
        plans.long_prefill_token_threshold = options.chunk;
        plans.policy = options.order;
        if options.preemption == Preemption::Swap {
            let num_host_blocks = memory::swap_blocks(&decoder);
            plans.preemption = scheduler::Preemption::Swap { num_host_blocks };
        }
        Ok(Self {
            kv_used: KvUsed::new(&cache),
            scheduler: Scheduler::new(plans, cache)?,
            tiers: Tiers::open(options, model, &decoder)?,
            tokenizer: model.tokenizer.clone(),
            sparse: options.sparse.as_ref().map(|sparse| sparse.spec.clone()),
            notes: options.notes.clone(),
            decoder,
            host: HostBlocks::default(),
            live: HashMap::new(),
            max_batched_tokens: budget,
            kernel_ns: BTreeMap::new(),
            fetch_cost: None,
        })
    }

    /// Queues a request. Its samples have consecutive ids from the returned one.
    ///
    /// # Errors
    /// If the request can never run, with the sizes.
    pub fn submit(&mut self, request: &Request) -> Result<SeqId, Error> {
        let config = self.decoder.config();
        let vocab = config.vocab_size;
        if let Some((position, id)) = request.prompt.iter().enumerate().find(|(_, id)| **id >= vocab) {
            return Err(Error::Token { id: *id, position, vocab });
        }
        if !request.stop.is_empty() && (self.tokenizer.is_none() || !request.text) {
            return Err(Error::StopText);
        }
        let first = self.scheduler.add(request.to_scheduler(&config.eos_ids))?;
        for sample in 0..u64::from(request.samples) {
            self.live.insert(SeqId::new(first.get() + sample), self.live(request, first, sample));
        }
        Ok(first)
    }

    fn live(&self, request: &Request, leader: SeqId, sample: u64) -> Live {
        let tokenizer = self.tokenizer.as_ref().filter(|_| request.text);
        let eos_ids = if request.ignore_eos { &[][..] } else { &self.decoder.config().eos_ids };
        let text = |t: &Arc<Tokenizer>| Text::new(t.clone(), request.stop.clone(), request.skip_special);
        Live {
            sampling: request.sampling.clone(),
            stop: request.stop.clone(),
            ends: request.stop_ids.iter().chain(eos_ids).copied().collect(),
            // Seeds of the samples of a prompt differ only by the sample's index, so a request's tokens do not
            // depend on the others.
            seed: request.sampling.seed.wrapping_add(sample.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            deadline: request.deadline,
            clock: Clock::start(),
            text: tokenizer.map(text),
            reason: None,
            attended: None,
            leader,
        }
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
    pub fn step(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = self.expire();
        events.extend(self.look_ahead()?);
        let plan = self.plan();
        let drawn = self.compute(&plan, false)?.sampled;
        self.save(&plan)?;
        let now = Instant::now();
        let mut stopped = Vec::new();
        for (row, id) in plan.sample_rows.iter().zip(&drawn) {
            let (token, stops) = self.take(row.seq, *id, now);
            stopped.extend(stops.then_some(row.seq));
            events.push(Event::Token(token));
        }
        let finished = self.scheduler.complete(&plan, &drawn);
        events.extend(finished.into_iter().map(|done| self.retire(done)));
        for seq in stopped {
            events.extend(self.end(seq, scheduler::FinishReason::Stopped));
        }
        self.settle()?;
        Ok(events)
    }

    /// Ends a sequence that the caller no longer wants; empty if it has ended already.
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
    fn plan(&mut self) -> StepPlan {
        let plan = self.scheduler.step();
        let now = Instant::now();
        for admitted in &plan.admitted {
            let live = self.live.get_mut(&admitted.seq).expect("an admitted sequence was submitted");
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

    /// Takes a sampled token; also returns whether it completes a stop text.
    fn take(&mut self, seq: SeqId, id: u32, now: Instant) -> (Token, bool) {
        let started = self.live.get(&seq).and_then(|live| self.live.get(&live.leader)?.clock.started);
        let live = self.live.get_mut(&seq).expect("a sequence that samples is live");
        // A sample that shares its leader's prompt is not admitted before the leader has sampled.
        live.clock.started = live.clock.started.or(started);
        live.clock.first.get_or_insert(now);
        live.clock.last = Some(now);
        let mut token = Token { seq, id, text: String::new() };
        let (Some(text), false) = (&mut live.text, live.ends.contains(&id)) else {
            return (token, false);
        };
        match text.push(id) {
            Ok(piece) => {
                token.text = piece.text;
                live.reason = piece.stop.map(|stop| FinishReason::StopText(live.stop[stop].clone()));
            }
            Err(error) => {
                live.reason = Some(FinishReason::Failed);
                self.notes.tell(&Note::Undecodable { seq, reason: error.to_string() });
            }
        }
        (token, live.reason.is_some())
    }

    /// Ends a sequence for a reason of the engine's.
    fn end_for(&mut self, seq: SeqId, reason: FinishReason) -> Vec<Event> {
        if let Some(live) = self.live.get_mut(&seq) {
            live.reason = Some(reason);
        }
        self.end(seq, scheduler::FinishReason::Aborted)
    }

    fn end(&mut self, seq: SeqId, reason: scheduler::FinishReason) -> Vec<Event> {
        if let Some(tiers) = &mut self.tiers {
            tiers.cancel(seq);
        }
        self.scheduler.finish(seq, reason).into_iter().map(|done| self.retire(done)).collect()
    }

    /// The end event of a sequence.
    fn retire(&mut self, done: scheduler::Finished) -> Event {
        let live = self.live.remove(&done.seq).expect("a sequence ends once");
        let output = done.output().to_vec();
        let reason = live.reason.unwrap_or_else(|| match done.reason {
            scheduler::FinishReason::Stopped => match output.last() {
                Some(id) if !self.decoder.config().eos_ids.contains(id) => FinishReason::StopToken(*id),
                _ => FinishReason::EndOfSequence,
            },
            scheduler::FinishReason::LengthCapped => FinishReason::Length,
            scheduler::FinishReason::Aborted => FinishReason::Cancelled,
            scheduler::FinishReason::Failed => FinishReason::Failed,
        });
        let text = live.text.map_or_else(String::new, |text| text.finish().unwrap_or_default());
        let usage = Usage {
            prompt_tokens: done.prompt_len,
            cached_tokens: done.cached_tokens,
            generated_tokens: u32::try_from(output.len()).expect("a sequence has fewer than 2^32 tokens"),
            preemptions: done.preemptions,
            clock: live.clock,
            sparse: SparseUse::of(self.sparse.as_ref(), live.attended.as_ref()),
        };
        Event::Finished(Box::new(Finished { seq: done.seq, reason, text, output, usage }))
    }
}
