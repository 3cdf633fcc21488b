//! What happens to sequences once a step has run.

use kvblock::{BlockId, SeqId, TokenId};

use crate::plan::{BlockOp, StepPlan};
use crate::request::{FinishReason, Finished};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Reports the tokens that a step sampled, one for each of [`StepPlan::sample_rows`]. Returns the
    /// sequences that ended with them. Rows of sequences that were aborted meanwhile are ignored.
    ///
    /// # Panics
    /// When `plan` is not the step in flight, or the number of tokens is wrong.
    pub fn complete(&mut self, plan: &StepPlan, sampled: &[TokenId]) -> Vec<Finished> {
        let verified: Vec<&[TokenId]> = sampled.chunks(1).collect();
        self.complete_drafts(plan, &verified)
    }

    /// Like [`complete`](Self::complete) after a step with draft tokens: for each row, the drafts that the
    /// model agreed with, in order, then the token it sampled after them. So a row has between one token and
    /// one more than its slice has drafts; the KV of rejected drafts is forgotten.
    ///
    /// # Panics
    /// Also when a row has no token, or more than the drafts allow.
    pub fn complete_drafts(&mut self, plan: &StepPlan, verified: &[&[TokenId]]) -> Vec<Finished> {
        if plan.slices.is_empty() && verified.is_empty() {
            return Vec::new();
        }
        assert_eq!(self.in_flight, Some(plan.step), "steps complete in order");
        let (rows, reported) = (plan.sample_rows.len(), verified.len());
        assert_eq!(rows, reported, "step {} samples {rows} rows, {reported} reported", plan.step);
        self.in_flight = None;

        // Before any sequence ends: a parent that ends with its first token still has the blocks its samples
        // share.
        for slice in plan.slices.iter().filter(|slice| slice.samples) {
            self.start_samples(slice.seq);
        }
        let rows = plan.sample_rows.iter().zip(verified);
        rows.filter_map(|(row, tokens)| self.accept(row.seq, tokens)).collect()
    }

    /// Reports that a step did not run, or not to its end. Its sequences end as [`FinishReason::Failed`],
    /// those of its loads too: they may have hit blocks that the step should have written. Nothing of these
    /// stays findable, and what should have been saved to host blocks is recomputed.
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
        failed.flat_map(|seq| self.finish(seq, FinishReason::Failed)).collect()
    }

    /// Confirms `tokens` and forgets the other drafts.
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
        let Some(parent) = self.seqs.get_mut(&seq).filter(|parent| !parent.pending_samples.is_empty()) else {
            return;
        };
        let samples = core::mem::take(&mut parent.pending_samples);
        let computed = parent.computed;
        let place =
            self.running.iter().position(|&id| id == seq).expect("a sequence that sampled is running");
        for (offset, child) in samples.into_iter().enumerate() {
            let fork = self.sequence(seq).fork(child);
            self.seqs.insert(child, fork);
            self.cache.fork(seq, child, computed).expect("the parent has blocks, the child is new");
            self.running.insert(place + 1 + offset, child);
        }
    }
}
