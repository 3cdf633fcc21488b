//! Logits that are not finite: their requests end, and nothing of them is kept.

use std::collections::BTreeSet;

use kvblock::{BlockHash, SeqId};
use models::batch::StepOutput;
use models::kernel::sample::NOT_FINITE;
use models::sampling::LogProbs;
use scheduler::{Ending, StepPlan};

use super::Engine;
use crate::Note;
use crate::error::Error;
use crate::event::FinishReason;

impl Engine {
    /// Finds the sequences of a step that have logits which are not finite, and gives them that as the reason of their end.
    /// Their blocks leave the prefix cache and the tiers, those that they found there too: any of them may be the cause.
    ///
    /// # Complexity
    /// O(samples + log-probabilities of prompts) where all is well.
    pub(super) fn discard_non_finite(
        &mut self,
        plan: &StepPlan,
        output: &StepOutput,
    ) -> Result<BTreeSet<SeqId>, Error> {
        let drawn = plan.sample_rows.iter().zip(&output.sampled).filter(|(_, id)| **id == NOT_FINITE);
        let rows: BTreeSet<SeqId> = drawn.clone().map(|(row, _)| row.seq).collect();
        let mut found: BTreeSet<SeqId> = drawn.map(|(row, _)| plan.slices[row.slice].seq).collect();
        found.extend(self.non_finite_prompts(plan, output));
        for seq in &found {
            let leader = self.live[seq].leader;
            for (id, live) in &mut self.live {
                // Samples that wait for the prompt have no other one.
                if id == seq || rows.contains(id) || live.leader == *seq && live.clock.first.is_none() {
                    live.reason = Some(FinishReason::NonFinite { step: plan.step });
                }
            }
            self.notes.tell(&Note::NonFinite { seq: leader, step: plan.step });
            let hashes: Vec<BlockHash> = self.scheduler.block_hashes(*seq).to_vec();
            self.scheduler.uncache(*seq);
            if let Some(tiers) = &mut self.tiers {
                tiers.forget(&hashes)?;
            }
        }
        Ok(found)
    }

    /// Sequences with log-probabilities of prompt tokens that are not finite.
    fn non_finite_prompts(&self, plan: &StepPlan, output: &StepOutput) -> Vec<SeqId> {
        let bad = |scored: &LogProbs| !scored.token.log_prob.is_finite();
        if !output.target_log_probs.iter().any(bad) {
            return Vec::new();
        }
        let mut all = output.target_log_probs.iter();
        let mut of_slice = |slice: &&scheduler::Slice| {
            let targets = self.live[&slice.seq].prompt_targets(slice).len();
            all.by_ref().take(targets).filter(|scored| bad(scored)).count() > 0
        };
        plan.slices.iter().filter(|slice| of_slice(slice)).map(|slice| slice.seq).collect()
    }

    /// Ends everything after a step that was not completed.
    pub(super) fn abandon(&mut self, plan: &StepPlan) {
        let failed = self.scheduler.fail_step(plan);
        failed.into_iter().for_each(|done| drop(self.retire(done)));
        let rest: Vec<SeqId> = self.live.keys().copied().collect();
        rest.into_iter().for_each(|seq| drop(self.end(seq, Ending::Aborted)));
    }
}
