//! Planning of one step: running sequences first, then waiting ones (vLLM v1).

use kvblock::{AllocError, Allocation, PrefixHit, SeqId, SlotRequest};

use crate::Phase;
use crate::config::Policy;
use crate::plan::{Admitted, BlockOp, Load, SampleRow, Slice, StepPlan};
use crate::scheduler::{Enqueue, Scheduler};
use crate::sequence::{Sequence, Status};

/// A plan under construction.
#[derive(Default)]
struct Round {
    budget: u32,
    /// Number of tokens left in the budget for prompts.
    prefill: u32,
    /// Number of running sequences, and of the samples that will join them.
    seats: usize,
    /// Slices in the order of scheduling.
    slices: Vec<Slice>,
    block_ops: Vec<BlockOp>,
    loads: Vec<Load>,
    preempted: Vec<SeqId>,
    admitted: Vec<Admitted>,
}

impl Round {
    /// Number of tokens that the step has left for a sequence.
    fn left(&self, seq: &Sequence) -> u32 {
        if seq.computed < seq.prefill_until { self.budget.min(self.prefill) } else { self.budget }
    }
}

/// Result of trying to run a waiting sequence.
enum Admission {
    /// The sequence runs.
    Admitted,
    /// The sequence waits for KV that is being loaded; sequences after it may run.
    SetAside,
    /// The step has no room for another running sequence, or no token budget left; sequences after this one wait.
    NoRoom,
    /// The pool has too few free blocks for the sequence; sequences after it wait.
    NoBlocks,
}

impl Scheduler {
    /// Plans one step. Running sequences get their next tokens while budget and blocks last; if none had to
    /// be preempted, waiting sequences follow. An empty plan needs no [`complete`](Self::complete).
    ///
    /// # Panics
    /// When the step before was not completed.
    ///
    /// # Complexity
    /// O(running sequences + new blocks), and O(prompt blocks) for each sequence admitted; with n sequences
    /// waiting, O(log n) for each one that leaves or enters the queue.
    pub fn step(&mut self) -> StepPlan {
        assert!(self.in_flight.is_none(), "step {:?} is not complete", self.in_flight);
        let mut round = Round {
            budget: self.config.max_num_batched_tokens,
            prefill: self.prefill_limit,
            ..Round::default()
        };
        self.schedule_running(&mut round);
        if round.preempted.is_empty() {
            self.schedule_waiting(&mut round);
        }
        self.finish_plan(round)
    }

    fn schedule_running(&mut self, round: &mut Round) {
        let mut index = 0;
        while round.budget > 0 && index < self.running.len() {
            let seq = self.running[index];
            let len = self.num_new_tokens(seq, 0).min(round.left(self.sequence(seq)));
            if len == 0 {
                index += 1;
                continue;
            }
            let scheduled = loop {
                if let Ok(allocation) = self.allocate(seq, len, None) {
                    break Some(allocation);
                }
                if self.running.len() == 1 && self.reclaim_from_waiting(None) {
                    continue;
                }
                let victim = self.victim();
                if self.running.iter().position(|&id| id == victim) < Some(index) {
                    index -= 1;
                }
                self.preempt(victim, round);
                if victim == seq {
                    break None;
                }
            };
            let Some(allocation) = scheduled else { break };
            self.schedule(seq, len, &allocation, round);
            index += 1;
        }
    }

    fn schedule_waiting(&mut self, round: &mut Round) {
        round.seats = self.running.iter().map(|seq| self.sequence(*seq).num_seats()).sum();
        // Sequences that are being loaded, up to the place of the last one; their seats are kept.
        let (mut num_loading, mut passed) = (0, None);
        while round.budget > 0
            && round.prefill > 0
            && let Some((place, seq)) = self.waiting.next(passed)
        {
            match self.try_admit(seq, num_loading, round) {
                Admission::Admitted => self.waiting.remove(place),
                Admission::SetAside => (num_loading, passed) = (num_loading + 1, Some(place)),
                Admission::NoRoom => break,
                Admission::NoBlocks => {
                    let idle = self.running.is_empty();
                    if !(idle && self.reclaim_from_waiting(Some(place))) {
                        break;
                    }
                }
            }
        }
    }

    fn try_admit(&mut self, seq: SeqId, num_loading: usize, round: &mut Round) -> Admission {
        if self.sequence(seq).status == Status::WaitingForRemoteKv {
            return Admission::SetAside;
        }
        let seats = self.sequence(seq).num_seats();
        if round.seats + num_loading + seats > self.config.max_num_seqs as usize {
            return Admission::NoRoom;
        }
        let hit = self.lookup(seq);
        let num_hit = hit.as_ref().map_or(0, |hit| hit.num_tokens);
        if let Some(load) = self.wanted_load(seq, num_hit) {
            if !self.start_load(load, hit.as_ref()) {
                return Admission::NoBlocks;
            }
            self.record_lookup(seq, hit.as_ref());
            round.loads.push(load);
            return Admission::SetAside;
        }
        let wanted = self.num_new_tokens(seq, num_hit);
        if !self.config.chunked_prefill && wanted > round.budget {
            return Admission::NoRoom;
        }
        let len = wanted.min(round.left(self.sequence(seq)));
        let num_tokens = self.sequence(seq).computed + num_hit + len;
        let Ok(swaps) = self.swap_in(seq, num_tokens) else { return Admission::NoBlocks };
        // The cache is as it was at the lookup. A hit that it refused all the same would be looked up again in a later step.
        let Ok(allocation) = self.allocate(seq, len, hit.as_ref()) else {
            assert!(swaps.is_empty(), "{seq:?} was restored and cannot go on");
            return Admission::NoBlocks;
        };
        round.block_ops.extend(swaps);
        self.record_lookup(seq, hit.as_ref());
        self.admit(seq, num_hit, round);
        self.schedule(seq, len, &allocation, round);
        Admission::Admitted
    }

    /// Number of tokens that a sequence still has to compute after a hit, limited by the threshold for long prefills.
    fn num_new_tokens(&self, seq: SeqId, num_hit: u32) -> u32 {
        let seq = self.sequence(seq);
        let known = u32::try_from(seq.tokens.len()).expect("a sequence is shorter than the context length");
        let last = self.max_model_len - 1;
        let new = known.min(last) - seq.computed - num_hit;
        match self.config.long_prefill_token_threshold {
            0 => new,
            threshold => new.min(threshold),
        }
    }

    pub(crate) fn lookup(&self, seq: SeqId) -> Option<PrefixHit> {
        let seq = self.sequence(seq);
        (seq.computed == 0 && !seq.request.skip_prefix_lookup).then(|| self.cache.lookup(seq.content()))
    }

    fn allocate(&mut self, seq: SeqId, len: u32, hit: Option<&PrefixHit>) -> Result<Allocation, AllocError> {
        let found = &self.seqs[&seq];
        let waits = found.status != Status::Running;
        let has_blocks = found.computed > 0;
        let request = SlotRequest::new(seq, found.content(), found.computed, len)
            .hit(hit)
            .num_lookahead(if waits { 0 } else { self.config.num_lookahead_tokens })
            .full_sequence_must_fit(waits && !has_blocks && self.config.reserve_full_input);
        self.cache.allocate_slots(request)
    }

    fn record_lookup(&mut self, seq: SeqId, hit: Option<&PrefixHit>) {
        if let Some(hit) = hit {
            let found = self.sequence(seq);
            let (queried, resumed) = (found.num_tokens, found.preemptions > 0);
            self.stats.record(queried, hit.num_tokens, resumed);
        }
    }

    fn admit(&mut self, seq: SeqId, num_hit: u32, round: &mut Round) {
        self.running.push(seq);
        let found = self.sequence_mut(seq);
        let resumed = found.status == Status::Preempted;
        round.seats += found.num_seats();
        found.status = Status::Running;
        found.place = None;
        found.computed += num_hit;
        let cached_tokens = found.computed;
        found.cached_tokens.get_or_insert(cached_tokens);
        round.admitted.push(Admitted { seq, cached_tokens, resumed });
    }

    fn schedule(&mut self, seq: SeqId, len: u32, allocation: &Allocation, round: &mut Round) {
        let found = self.sequence_mut(seq);
        let slice = found.next_slice(len);
        found.computed += len;
        round.budget -= len;
        if slice.phase == Phase::Prefill {
            round.prefill = round.prefill.saturating_sub(len);
        }
        round.slices.push(slice);
        round.block_ops.extend(allocation.copies.iter().map(|&copy| BlockOp::Copy(copy)));
    }

    /// The running sequence to preempt first.
    fn victim(&self) -> SeqId {
        let victim = match self.config.policy {
            Policy::Fcfs => self.running.last(),
            Policy::Priority { .. } => self.running.iter().max_by_key(|seq| self.sequence(**seq).rank()),
        };
        *victim.expect("a sequence that cannot allocate is running itself")
    }

    /// Frees a sequence's device blocks. What this step had already scheduled for it is undone.
    fn preempt(&mut self, victim: SeqId, round: &mut Round) {
        let mut computed = self.sequence(victim).computed;
        if let Some(place) = round.slices.iter().position(|slice| slice.seq == victim) {
            let slice = round.slices.remove(place);
            round.budget += slice.len;
            if slice.phase == Phase::Prefill {
                round.prefill = round.prefill.saturating_add(slice.len);
            }
            computed = slice.start;
            // Its blocks are in the prefix cache for a computation that will not happen.
            self.cache.uncache_from(victim, computed);
        }
        let swapped = self.swap_out(victim, computed);
        let mut seq = self.remove(victim).expect("a victim is running");
        seq.status = Status::Preempted;
        seq.preemptions += 1;
        seq.drop_drafts();
        if let Some((saved, ops)) = swapped {
            seq.saved = Some(saved);
            seq.computed = computed;
            round.block_ops.extend(ops);
        } else {
            seq.restart();
        }
        self.num_preemptions += 1;
        round.preempted.push(victim);
        self.enqueue(seq, Enqueue::Front);
    }

    fn finish_plan(&mut self, round: Round) -> StepPlan {
        let mut slices = round.slices;
        slices.sort_by_key(|slice| slice.phase); // Decodes first; stable, so each kind keeps its order.
        let mut sample_rows = Vec::new();
        for (index, slice) in slices.iter().enumerate().filter(|(_, slice)| slice.samples) {
            let pending = &self.sequence(slice.seq).pending_samples;
            let seqs = core::iter::once(&slice.seq).chain(pending);
            sample_rows.extend(seqs.map(|&seq| SampleRow { seq, slice: index }));
        }
        let step = self.num_steps;
        self.num_steps += 1;
        self.in_flight = (!slices.is_empty()).then_some(step);
        let Round { block_ops, loads, preempted, admitted, .. } = round;
        StepPlan { step, slices, sample_rows, block_ops, loads, preempted, admitted }
    }
}
