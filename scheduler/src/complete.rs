//! What happens to sequences once a step has run.

use kvblock::{SeqId, TokenId};

use crate::plan::StepPlan;
use crate::request::Finished;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Reports the tokens that a step sampled, one for each of [`StepPlan::sample_rows`]. Returns the sequences that
    /// ended with them. Rows of sequences that were aborted meanwhile are ignored.
    ///
    /// # Panics
    /// When `plan` is not the step in flight, or the number of tokens is wrong.
    pub fn complete(&mut self, plan: &StepPlan, sampled: &[TokenId]) -> Vec<Finished> {
        if plan.slices.is_empty() && sampled.is_empty() {
            return Vec::new();
        }
        assert_eq!(self.in_flight, Some(plan.step), "steps complete in order");
        let (rows, tokens) = (plan.sample_rows.len(), sampled.len());
        assert_eq!(rows, tokens, "step {} samples {rows} tokens, {tokens} reported", plan.step);
        self.in_flight = None;

        // Before any sequence ends: a parent that ends with its first token still has the blocks its samples share.
        for slice in plan.slices.iter().filter(|slice| slice.samples) {
            self.start_samples(slice.seq);
        }
        plan.sample_rows.iter().zip(sampled).filter_map(|(row, &token)| self.push(row.seq, token)).collect()
    }

    fn push(&mut self, seq: SeqId, token: TokenId) -> Option<Finished> {
        let max_model_len = self.max_model_len;
        let reason = self.seqs.get_mut(&seq)?.push(token, max_model_len)?;
        self.remove(seq).map(|seq| seq.finish(reason))
    }

    /// Starts the further samples of a prompt that was just computed: they share all its blocks.
    fn start_samples(&mut self, seq: SeqId) {
        let Some(parent) = self.seqs.get_mut(&seq) else { return };
        let samples = core::mem::take(&mut parent.pending_samples);
        let computed = parent.computed;
        let place =
            self.running.iter().position(|&id| id == seq).expect("a sequence that sampled is running");
        for (offset, child) in samples.into_iter().enumerate() {
            let fork = self.sequence(seq).fork(child);
            self.seqs.insert(child, fork);
            self.cache.fork(seq, child, computed);
            self.running.insert(place + 1 + offset, child);
        }
    }
}
