//! Logits that are not finite, and KV that was lost: their requests end, and nothing of them is kept.

use std::collections::{BTreeMap, BTreeSet};

use kvblock::{BlockHash, BlockId, SeqId};
use models::batch::StepOutput;
use models::kernel::sample::NOT_FINITE;
use models::sampling::LogProbs;
use prefetch::spill::SpillError;
use scheduler::StepPlan;

use super::Engine;
use crate::Note;
use crate::error::Error;
use crate::event::FinishReason;
use crate::kv_used::group_id;

impl Engine {
    /// Finds the sequences of a step that have non-finite logits or lost blocks, and records the reason of their end.
    /// [`NOT_FINITE`] replaces the token that such a sequence drew. All its blocks leave the prefix cache, including
    /// blocks that it found there, because any of them may be the cause. If its logits are not finite, its blocks
    /// leave the tiers too.
    ///
    /// # Complexity
    /// O(samples + log-probabilities of prompts) where all is well.
    pub(super) fn discard_bad(
        &mut self,
        plan: &StepPlan,
        output: &mut StepOutput,
    ) -> Result<BTreeSet<SeqId>, Error> {
        let lost = self.lost(plan, output);
        for (row, id) in plan.sample_rows.iter().zip(&mut output.sampled) {
            if lost.contains_key(&plan.slices[row.slice].seq) {
                *id = NOT_FINITE;
            }
        }
        let drawn = plan.sample_rows.iter().zip(&output.sampled).filter(|(_, id)| **id == NOT_FINITE);
        let rows: BTreeSet<SeqId> = drawn.clone().map(|(row, _)| row.seq).collect();
        let mut found: BTreeSet<SeqId> = drawn.map(|(row, _)| plan.slices[row.slice].seq).collect();
        found.extend(self.non_finite_prompts(plan, output));
        found.extend(self.non_finite_pooled(plan, output));
        found.extend(lost.keys());
        for seq in &found {
            let request = self.live[seq].id.clone();
            for (id, live) in &mut self.live {
                // Samples that wait for the prompt have no other one.
                if id == seq || rows.contains(id) || live.leader == *seq && live.clock.first.is_none() {
                    live.reason = Some(match lost.get(seq) {
                        Some(_) => FinishReason::Failed,
                        None => FinishReason::NonFinite { step: plan.step },
                    });
                }
            }
            if let Some((from_token, error)) = lost.get(seq) {
                let (from_token, reason) = (*from_token, error.to_string());
                self.options.notes.tell(&Note::KvUnreadable { id: request, from_token, reason, ends: true });
                self.scheduler.uncache(*seq);
                continue;
            }
            self.options.notes.tell(&Note::NonFinite { id: request, step: plan.step });
            let hashes: Vec<BlockHash> = self.scheduler.block_hashes(*seq).unwrap_or_default().to_vec();
            self.scheduler.uncache(*seq);
            if let Some(tiers) = &mut self.tiers {
                tiers.forget(&hashes)?;
            }
        }
        Ok(found)
    }

    /// Sequences of a step with blocks on disk that could not be read, each with the position of its first lost token
    /// and the reason.
    fn lost(&self, plan: &StepPlan, output: &StepOutput) -> BTreeMap<SeqId, (u32, SpillError)> {
        let size = self.decoder.first().kv().shape().block_size;
        let lost: BTreeMap<BlockId, &SpillError> =
            output.lost.iter().map(|(block, error)| (*block, error)).collect();
        let of_slice = |slice: &scheduler::Slice| {
            // Pools with blocks on disk have one group.
            let table = self.scheduler.block_table(slice.seq, group_id(0));
            let found = (0..).zip(table).find_map(|(n, block)| Some((n, *lost.get(block)?)));
            found.map(|(n, error)| (slice.seq, (n * size, error.clone())))
        };
        if lost.is_empty() { BTreeMap::new() } else { plan.slices.iter().filter_map(of_slice).collect() }
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
}
