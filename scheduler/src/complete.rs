//! The end of a step: accepting sampled tokens, forking samples, and failure.

use kvblock::{BlockId, SeqId, TokenId};

use crate::Ending;
use crate::plan::{BlockOp, StepPlan};
use crate::request::Finished;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

impl Scheduler {
    /// Reports the tokens that a step sampled, one for each of [`StepPlan::sample_rows`]. Returns the
    /// sequences that ended with them. Rows of sequences aborted in the meantime are ignored.
    ///
    /// # Panics
    /// When `plan` is not the step in flight, or the number of tokens is wrong.
    pub fn complete(&mut self, plan: &StepPlan, sampled: &[TokenId]) -> Vec<Finished> {
        let verified: Vec<&[TokenId]> = sampled.chunks(1).collect();
        self.complete_drafts(plan, &verified)
    }

    /// Like [`complete`](Self::complete) after a step with draft tokens. Library only, as
    /// [`set_drafts`](Self::set_drafts) is. Each row has the drafts that the
    /// model accepted, in order, and then the token it sampled after them. So a row has at least one token,
    /// and at most one more than its slice has drafts. The KV of rejected drafts is dropped.
    ///
    /// # Panics
    /// As [`complete`](Self::complete); also when a row has no token, or more than its drafts allow.
    pub fn complete_drafts(&mut self, plan: &StepPlan, verified: &[&[TokenId]]) -> Vec<Finished> {
        self.end_step(plan, verified.len());
        let computed = plan.slices.iter().map(|slice| slice.seq);
        let computed = computed.filter(|seq| self.seqs.get(seq).is_some_and(Sequence::ends_computed));
        let computed: Vec<SeqId> = computed.collect();
        let rows = plan.sample_rows.iter().zip(verified);
        let sampled = rows.filter_map(|(row, tokens)| self.accept(row.seq, tokens));
        let mut ended: Vec<Finished> = sampled.collect();
        ended.extend(computed.into_iter().flat_map(|seq| self.finish(seq, Ending::LengthCapped)));
        ended
    }

    /// Ends the step in flight, as every completion does first, and starts the further samples of prompts that the
    /// step computed.
    fn end_step(&mut self, plan: &StepPlan, reported: usize) {
        if plan.slices.is_empty() && reported == 0 {
            return;
        }
        assert_eq!(self.in_flight, Some(plan.step), "steps complete in order");
        let rows = plan.sample_rows.len();
        assert_eq!(rows, reported, "step {} samples {rows} rows, {reported} reported", plan.step);
        self.in_flight = None;
        // Before any sequence ends: a parent that ends with its first token still has the blocks its samples
        // share.
        for slice in plan.slices.iter().filter(|slice| slice.samples) {
            self.start_samples(slice.seq);
        }
    }

    /// Reports that a step did not run, or did not finish. Library only: after such a failure, an engine is opened
    /// anew. The sequences of the step end as [`Ending::Failed`]. Sequences that the step was to load end, too, since
    /// they may have hit blocks that the step should have written. None of these blocks stays in the prefix cache,
    /// and sequences whose blocks the step should have saved to the host are recomputed.
    ///
    /// # Panics
    /// When `plan` is not the step in flight.
    pub fn fail_step(&mut self, plan: &StepPlan) -> Vec<Finished> {
        assert!(plan.slices.is_empty() || self.in_flight == Some(plan.step), "steps fail in order");
        self.in_flight = None;
        for seq in &plan.preempted {
            self.forget_saved(*seq);
        }
        for slice in plan.slices.iter().filter(|slice| self.seqs.contains_key(&slice.seq)) {
            self.cache.uncache_from(slice.seq, slice.start);
        }
        let destination = |op: &BlockOp| match *op {
            BlockOp::Copy(copy) => Some(copy.destination),
            BlockOp::SwapIn { device, .. } => Some(device),
            BlockOp::SwapOut { .. } => None,
        };
        let stale: Vec<BlockId> = plan.block_ops.iter().filter_map(destination).collect();
        self.cache.evict_blocks(&stale).expect("a plan names blocks of the pool");
        let failed = plan.slices.iter().map(|slice| slice.seq).chain(plan.loads.iter().map(|load| load.seq));
        failed.flat_map(|seq| self.finish(seq, Ending::Failed)).collect()
    }

    /// Removes the contents of a sequence from the prefix cache, including its prefix hit, because they are wrong. The
    /// sequence keeps its blocks until it is [finished](Self::finish), which the caller does next.
    ///
    /// # Panics
    /// When the sequence is unknown.
    pub fn uncache(&mut self, seq: SeqId) {
        self.cache.uncache_from(seq, 0);
        let found = self.seqs.get(&seq).unwrap_or_else(|| panic!("{seq:?} is unknown"));
        self.cache.evict_contents(found.chain.hashes());
    }

    /// Confirms `tokens` and drops the other drafts.
    fn accept(&mut self, seq: SeqId, tokens: &[TokenId]) -> Option<Finished> {
        let max_model_len = self.max_model_len;
        let found = self.seqs.get_mut(&seq)?;
        let (accepted, drafts) =
            (u32::try_from(tokens.len()).unwrap_or(u32::MAX), found.computed - found.num_tokens);
        assert!((1..=drafts + 1).contains(&accepted), "{accepted} tokens for {seq:?} with {drafts} drafts");
        found.computed = found.num_tokens + accepted - 1;
        found.drop_drafts();
        let reason = tokens.iter().find_map(|&token| found.push(token, max_model_len))?;
        self.end(seq, reason)
    }

    /// Starts the further samples of a prompt that was just computed: they share all its blocks.
    fn start_samples(&mut self, seq: SeqId) {
        let samples = self.seqs.get_mut(&seq).map(|parent| core::mem::take(&mut parent.pending_samples));
        let children = samples.unwrap_or_default();
        if children.is_empty() {
            return;
        }
        let place =
            self.running.iter().position(|&id| id == seq).expect("a sequence that sampled is running");
        let computed = self.sequence(seq).computed;
        for (offset, &child) in children.iter().enumerate() {
            let fork = self.sequence(seq).fork(child);
            self.seqs.insert(fork);
            self.cache.fork(seq, child, computed).expect("the parent has blocks, the child is new");
            self.running.insert(place + 1 + offset, child);
        }
    }
}
