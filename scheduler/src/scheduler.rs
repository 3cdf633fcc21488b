//! The scheduler: queues, admission, and queries about sequences.

use kvblock::{
    BlockHash, BlockHasher, BlockIdx, CacheEvent, GroupId, HashChain, KvCache, KvCacheConfig, KvCacheSpec,
    LengthLimits, PrefixStats, SeqContent, SeqId, TokenId,
};

use crate::Ending;
use crate::access::AccessHistory;
use crate::config::{Policy, Preemption, SchedulerConfig};
use crate::error::{AdmitError, ConfigError};
use crate::host::HostPool;
use crate::pace::Concurrency;
use crate::plan::Slice;
use crate::request::{Finished, Request};
use crate::sequence::{Sequence, Status};
use crate::sequences::Sequences;
use crate::waiting::{QueuePlace, WaitingQueue};

/// Number of requests in the window of [`PrefixStats::recent`].
const STATS_WINDOW: usize = 1000;

/// Continuous batching over one KV cache. Deterministic: the same calls give the same plans.
///
/// Call [`step`](Self::step) for a plan, run it, and report the sampled tokens to
/// [`complete`](Self::complete); requests may be added and aborted at any time.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) cache: KvCache,
    pub(crate) specs: Vec<KvCacheSpec>,
    pub(crate) max_model_len: u32,
    pub(crate) seqs: Sequences,
    pub(crate) running: Vec<SeqId>,
    /// Waiting sequences in the order of service. Under FCFS, preempted sequences come before those that never ran;
    /// under the priority policy, only the rank counts.
    pub(crate) waiting: WaitingQueue,
    pub(crate) host: HostPool,
    pub(crate) stats: PrefixStats,
    pub(crate) history: AccessHistory,
    pub(crate) num_preemptions: u64,
    /// Maximum number of prompt tokens of the next steps.
    pub(crate) prefill_limit: u32,
    pub(crate) num_steps: u64,
    /// Number of the step that is planned and not completed; `None` if there is no such step.
    pub(crate) in_flight: Option<u64>,
    pub(crate) next_seq: u64,
    next_arrival: u64,
}

impl Scheduler {
    /// An idle scheduler. `cache.limits.max_batched_tokens` is replaced by the budget of `config`.
    ///
    /// # Errors
    /// [`ConfigError`] for limits under which some request could never run.
    pub fn new(config: SchedulerConfig, mut cache: KvCacheConfig) -> Result<Self, ConfigError> {
        config.validate(cache.limits.max_model_len)?;
        cache.limits.max_batched_tokens = config.max_num_batched_tokens;
        let num_host_blocks = match config.preemption {
            Preemption::Recompute => 0,
            Preemption::Swap { num_host_blocks } => num_host_blocks,
        };
        Ok(Self {
            config,
            host: HostPool::new(num_host_blocks),
            specs: cache.groups.iter().map(|group| group.spec).collect(),
            max_model_len: cache.limits.max_model_len,
            cache: KvCache::new(&cache)?,
            seqs: Sequences::default(),
            running: Vec::new(),
            waiting: WaitingQueue::default(),
            stats: PrefixStats::new(STATS_WINDOW),
            history: AccessHistory::default(),
            num_preemptions: 0,
            prefill_limit: u32::MAX,
            num_steps: 0,
            in_flight: None,
            next_seq: 0,
            next_arrival: 0,
        })
    }

    /// Queues a request. Returns the id of its first sample; the others follow it without gaps.
    ///
    /// ```
    /// use scheduler::kvblock::{AttentionKind, BlockSize, KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits};
    /// use scheduler::{Request, Scheduler, SchedulerConfig};
    ///
    /// // A pool of 9 blocks of 16 tokens, and the null block.
    /// let spec = KvCacheSpec::new(AttentionKind::FULL, BlockSize::new(16).unwrap(), 8, 128, KvDtype::F16);
    /// let cache = KvCacheConfig::uniform(10, spec, 1, LengthLimits::new(4096));
    /// let mut scheduler = Scheduler::new(SchedulerConfig::new(512, 4), cache)?;
    /// let error = scheduler.add(Request::new(vec![1; 200], 10)).unwrap_err();
    /// assert_eq!(error.to_string(), "14 blocks needed for 209 tokens, the pool has 9; context length 4096");
    /// # Ok::<(), scheduler::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`AdmitError`] for a request that could never finish, with the numbers. Every admitted request can
    /// finish.
    pub fn add(&mut self, request: Request) -> Result<SeqId, AdmitError> {
        self.check(&request)?;
        let id = SeqId::new(self.next_seq);
        self.next_seq += u64::from(request.num_samples);
        let chain = HashChain::new(self.cache.hasher(), request.extra_keys.clone());
        let level = self.level(request.priority);
        let seq = Sequence::new(id, request, (level, self.next_arrival), chain);
        self.next_arrival += 1;
        self.enqueue(seq, Enqueue::Back);
        Ok(id)
    }

    /// The priority of a request that arrives now, with ageing. All requests age at the same rate, so an arrival
    /// `ageing_steps` steps earlier counts as one level, and no queue ever has to be re-sorted.
    fn level(&self, priority: i32) -> i64 {
        match self.config.policy {
            Policy::Priority { ageing_steps } if ageing_steps > 0 => {
                let arrival = i64::try_from(self.num_steps).unwrap_or(i64::MAX);
                arrival.saturating_add(i64::from(priority) * i64::from(ageing_steps))
            }
            _ => i64::from(priority),
        }
    }

    fn check(&self, request: &Request) -> Result<(), AdmitError> {
        let &Request { max_tokens, min_tokens, num_samples, .. } = request;
        let (context_len, max_num_seqs) = (self.max_model_len, self.config.max_num_seqs);
        if request.prompt.is_empty() {
            return Err(AdmitError::EmptyPrompt);
        }
        if num_samples == 0 {
            return Err(AdmitError::NoSamples);
        }
        if min_tokens > max_tokens {
            return Err(AdmitError::MinAboveMax { min_tokens, max_tokens });
        }
        let prompt_len = u32::try_from(request.prompt.len()).ok().filter(|&len| len < context_len);
        let Some(prompt_len) = prompt_len else {
            return Err(AdmitError::ContextLength { prompt_tokens: request.prompt.len(), context_len });
        };
        if num_samples > max_num_seqs {
            return Err(AdmitError::TooManySamples { num_samples, max_num_seqs });
        }
        // The last sampled token is never computed, the last one of a prompt always; draft tokens may lie beyond it.
        let longest = prompt_len.saturating_add(max_tokens.max(1)).min(context_len) - 1;
        let num_tokens = longest.saturating_add(self.config.num_lookahead_tokens).min(context_len);
        let needed_blocks = self.peak_blocks(num_tokens);
        let pool_blocks = self.cache.pool().num_usable();
        if needed_blocks > pool_blocks {
            return Err(AdmitError::NeverFits { needed_blocks, pool_blocks, num_tokens, context_len });
        }
        Ok(())
    }

    /// Maximum number of blocks that one sequence of `num_tokens` tokens holds at a time, over all groups.
    fn peak_blocks(&self, num_tokens: u32) -> u32 {
        let max_batched_tokens =
            self.config.max_num_batched_tokens.saturating_add(self.config.num_lookahead_tokens);
        let limits = LengthLimits::new(num_tokens).max_batched_tokens(max_batched_tokens);
        let whole = |spec: &KvCacheSpec| spec.block_size.blocks_for(num_tokens);
        self.specs.iter().map(|spec| spec.max_blocks_per_seq(limits).min(whole(spec))).sum()
    }

    /// Ends a sequence for a reason that only the caller knows; its blocks are free for the next step. Ending the
    /// first sample of a request before its prompt is computed ends all its samples. Returns the ended sequences;
    /// none if the sequence is unknown.
    pub fn finish(&mut self, seq: SeqId, reason: Ending) -> Vec<Finished> {
        if let Some(found) = self.seqs.get(&seq) {
            let pending: Vec<Sequence> =
                found.pending_samples.iter().map(|&child| found.fork(child)).collect();
            let first = self.end(seq, reason);
            return first.into_iter().chain(pending.into_iter().map(|child| child.finish(reason))).collect();
        }
        let Some(parent) = self.parent_of_pending(seq) else { return Vec::new() };
        parent.pending_samples.retain(|&child| child != seq);
        vec![parent.fork(seq).finish(reason)]
    }

    /// The sequence whose prompt a further sample waits for. Samples have consecutive ids from the first sample on, so it is
    /// the nearest lower known id.
    fn parent_of_pending(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        let lower = (1..u64::from(self.config.max_num_seqs)).map_while(|back| seq.get().checked_sub(back));
        let parent = lower.map(SeqId::new).find(|id| self.seqs.contains_key(id))?;
        self.seqs.get_mut(&parent).filter(|parent| parent.pending_samples.contains(&seq))
    }

    /// [Finishes](Self::finish) a sequence as [`Ending::Aborted`].
    pub fn abort(&mut self, seq: SeqId) -> Vec<Finished> {
        self.finish(seq, Ending::Aborted)
    }

    /// Ends one sequence.
    pub(crate) fn end(&mut self, seq: SeqId, reason: Ending) -> Option<Finished> {
        self.history.remove(seq);
        self.remove(seq).map(|found| found.finish(reason))
    }

    /// Removes a sequence from every queue and frees its blocks.
    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        let removed = self.seqs.remove(&seq)?;
        self.cache.free(seq);
        if let Some(saved) = &removed.saved {
            self.host.release(saved);
        }
        match removed.place {
            Some(place) => self.waiting.remove(place),
            None => self.running.retain(|&other| other != seq),
        }
        Some(removed)
    }

    /// Inserts a sequence into the waiting queue at the position that the policy determines.
    pub(crate) fn enqueue(&mut self, mut seq: Sequence, end: Enqueue) {
        let place = match (self.config.policy, end) {
            (Policy::Fcfs, Enqueue::Back) => self.waiting.back(seq.id),
            (Policy::Fcfs, Enqueue::Front) => self.waiting.front(seq.id),
            (Policy::Priority { .. }, _) => QueuePlace::of_rank(seq.rank()),
        };
        self.waiting.insert(place);
        seq.place = Some(place);
        self.seqs.insert(seq);
    }

    /// Sets the draft tokens that the next step verifies for a decoding sequence, replacing earlier ones.
    /// Returns how many of them the step will verify: at most
    /// [`num_lookahead_tokens`](SchedulerConfig::num_lookahead_tokens) and what the output limit leaves; none
    /// for a sequence that is not decoding or has ended.
    ///
    /// Library only: the engine has no model that drafts.
    ///
    /// # Panics
    /// When a step is in flight.
    pub fn set_drafts(&mut self, seq: SeqId, drafts: &[TokenId]) -> u32 {
        assert!(self.in_flight.is_none(), "drafts for {seq:?} while step {:?} is in flight", self.in_flight);
        let max_drafts = self.config.num_lookahead_tokens;
        self.seqs.get_mut(&seq).map_or(0, |seq| seq.set_drafts(drafts, max_drafts))
    }

    /// Number of tokens that a sequence may still sample, the one of the step in flight included; 0 once it has ended.
    #[must_use]
    pub fn output_left(&self, seq: SeqId) -> u32 {
        self.seqs.get(&seq).map_or(0, |seq| seq.output_left(self.max_model_len))
    }

    /// Reserves a slot for the token after those of the step in flight, if a block is free for it. An engine calls
    /// this to send the next decode step before it has completed this one. Returns false if no block is free or the
    /// sequence has no blocks; nothing is preempted. The slot stays with the sequence. O(groups).
    pub fn reserve_next(&mut self, seq: SeqId) -> bool {
        let next = self.seqs.get(&seq).map_or(0, |found| found.computed + 1);
        self.cache.extend(seq, next).is_ok()
    }

    /// Limits the prompt tokens that the next steps compute; decodes are not limited. See [`Pace`](crate::Pace). With
    /// 0, no sequence is admitted, and a step without decodes is empty.
    pub const fn limit_prefill(&mut self, tokens: u32) {
        self.prefill_limit = tokens;
    }

    /// Sequences that share the time of the next step, for [`Pace`](crate::Pace). Waiting sequences count if they may start
    /// in addition to the running ones.
    #[must_use]
    pub fn concurrency(&self) -> Concurrency {
        let decoding = self.running.iter().filter(|seq| self.is_prefill(**seq) == Some(false)).count();
        let seats = (self.config.max_num_seqs as usize).saturating_sub(self.running.len());
        let prefilling = self.running.len() - decoding + seats.min(self.waiting.len());
        Concurrency { decoding, prefilling }
    }

    /// The hasher of the prefix cache: requests with equal hashes share blocks.
    #[must_use]
    pub const fn hasher(&self) -> BlockHasher {
        self.cache.hasher()
    }

    /// The changes of the prefix cache since the last call, oldest first; none unless [its configuration](KvCacheConfig::events)
    /// records them.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.cache.take_events()
    }

    /// Number of free host blocks, for preemption by swapping.
    #[must_use]
    pub fn num_free_host_blocks(&self) -> usize {
        self.host.num_free()
    }

    /// Whether any sequence is left.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.seqs.is_empty()
    }

    /// The running sequences, in the order of service.
    #[must_use]
    pub fn running(&self) -> &[SeqId] {
        &self.running
    }

    /// The waiting sequences, in the order of service.
    pub fn waiting(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.waiting.iter()
    }

    /// Tokens of a slice, for the embedding layer. `None` once its sequence has ended.
    #[must_use]
    pub fn slice_tokens(&self, slice: &Slice) -> Option<&[TokenId]> {
        self.seqs.get(&slice.seq)?.tokens.get(slice.start as usize..slice.end() as usize)
    }

    /// Prompt and output of a sequence so far; `None` once it has ended.
    #[must_use]
    pub fn tokens(&self, seq: SeqId) -> Option<&[TokenId]> {
        self.seqs.get(&seq).map(|seq| &seq.tokens[..seq.num_tokens as usize])
    }

    /// Tokens and hashes of a sequence, as the prefix cache sees them. `None` once it has ended.
    #[must_use]
    pub fn content(&self, seq: SeqId) -> Option<SeqContent<'_>> {
        self.seqs.get(&seq).map(Sequence::content)
    }

    /// Chained hashes of the full blocks of a sequence, at hash-block granularity: the keys of its blocks in
    /// lower tiers. `None` once it has ended.
    #[must_use]
    pub fn block_hashes(&self, seq: SeqId) -> Option<&[BlockHash]> {
        self.seqs.get(&seq).map(|seq| seq.chain.hashes())
    }

    /// The block table of a sequence in a group; empty while it holds no blocks.
    #[must_use]
    pub fn block_table(&self, seq: SeqId, group: GroupId) -> &[kvblock::BlockId] {
        self.cache.table(seq, group).map_or(&[], |table| table.blocks())
    }

    /// Number of prompt tokens of a sequence that were found in the prefix cache when it was first scheduled, or
    /// loaded; 0 before that. `None` once it has ended.
    #[must_use]
    pub fn cached_tokens(&self, seq: SeqId) -> Option<u32> {
        self.seqs.get(&seq).map(|seq| seq.cached_tokens.unwrap_or(0))
    }

    /// Number of times a sequence was preempted; `None` once it has ended.
    #[must_use]
    pub fn preemptions(&self, seq: SeqId) -> Option<u32> {
        self.seqs.get(&seq).map(|seq| seq.preemptions)
    }

    /// Status of a sequence; `None` once it has ended, and for a further sample before its prompt is computed.
    #[must_use]
    pub fn status(&self, seq: SeqId) -> Option<Status> {
        self.seqs.get(&seq).map(|seq| seq.status)
    }

    /// Number of tokens of a sequence whose KV is in its blocks, or will be once the step in flight completes. `None`
    /// once it has ended.
    #[must_use]
    pub fn num_computed(&self, seq: SeqId) -> Option<u32> {
        self.seqs.get(&seq).map(|seq| seq.computed)
    }

    /// Whether the next tokens of a sequence are of its prompt, or recomputed after a preemption; `None` once it
    /// has ended.
    #[must_use]
    pub fn is_prefill(&self, seq: SeqId) -> Option<bool> {
        self.seqs.get(&seq).map(|seq| seq.computed < seq.prefill_until)
    }

    /// Number of preemptions so far, over all sequences.
    #[must_use]
    pub const fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }

    /// Statistics of prefix hits.
    #[must_use]
    pub const fn prefix_stats(&self) -> &PrefixStats {
        &self.stats
    }

    /// Read access to the cache: tables, pool usage.
    #[must_use]
    pub const fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Write access to the cache, for events, resets and evictions after failed loads.
    pub const fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    pub(crate) fn sequence(&self, seq: SeqId) -> &Sequence {
        self.seqs.get(&seq).unwrap_or_else(|| panic!("{seq:?} is not among {} sequences", self.seqs.len()))
    }

    pub(crate) fn sequence_mut(&mut self, seq: SeqId) -> &mut Sequence {
        let known = self.seqs.len();
        self.seqs.get_mut(&seq).unwrap_or_else(|| panic!("{seq:?} is not among {known} sequences"))
    }

    /// Counts one access to each of `blocks`, which a step has read. Sequences that ended are ignored.
    pub fn record_access(&mut self, seq: SeqId, blocks: &[BlockIdx]) {
        if self.seqs.contains_key(&seq) && !blocks.is_empty() {
            self.history.record(seq, blocks);
        }
    }

    /// Returns the number of reads of each block by each sequence.
    #[must_use]
    pub const fn access_history(&self) -> &AccessHistory {
        &self.history
    }
}

/// End of the waiting queue at which a sequence is inserted. The priority policy ignores it.
#[derive(Clone, Copy)]
pub(crate) enum Enqueue {
    /// Preempted sequences are served before new ones.
    Front,
    /// New ones.
    Back,
}
