//! Embeddings of prompts, pooled over the steps that compute them.

use kvblock::SeqId;
use models::Pooling;
use models::batch::StepOutput;
use scheduler::{Slice, StepPlan};

use super::Engine;

/// The embedding of a prompt, computed over several steps.
#[derive(Debug)]
pub(super) struct Pool {
    pooling: Pooling,
    /// Sum of the hidden states at positions below `end`, or the last one alone, `[hidden]`.
    sum: Vec<f32>,
    /// Position after the last token that was pooled. After a preemption, tokens before it are computed again.
    end: u32,
}

impl Pool {
    pub(super) fn new(pooling: Pooling, hidden: u32) -> Self {
        Self { pooling, sum: vec![0.0; hidden as usize], end: 0 }
    }

    /// Number of rows to pool, at the end of a slice.
    pub(super) fn rows(&self, slice: &Slice, prompt_tokens: u32) -> usize {
        let end = slice.end().min(prompt_tokens);
        match self.pooling {
            Pooling::Mean => end.saturating_sub(slice.start.max(self.end)) as usize,
            Pooling::Last => usize::from(end == prompt_tokens && self.end < end),
        }
    }

    /// The embedding; `None` before the whole prompt was pooled.
    pub(super) fn embedding(mut self, prompt_tokens: u32) -> Option<Vec<f32>> {
        if self.end < prompt_tokens {
            return None;
        }
        if self.pooling == Pooling::Mean {
            #[expect(clippy::cast_precision_loss, reason = "a context is shorter than 2^24 tokens")]
            self.sum.iter_mut().for_each(|sum| *sum /= prompt_tokens as f32);
        }
        Some(self.sum)
    }
}

impl Engine {
    /// The pooled sums of a step, each with its slice.
    fn pooled<'o>(
        &self,
        plan: &StepPlan,
        output: &'o StepOutput,
    ) -> impl Iterator<Item = (Slice, &'o [f32])> + use<'o> {
        let has_sum = |slice: &&Slice| self.live[&slice.seq].pooled_rows(slice) > 0;
        let slices: Vec<Slice> = plan.slices.iter().filter(has_sum).copied().collect();
        slices.into_iter().zip(output.pooled.chunks(self.decoder.config().hidden_size as usize))
    }

    /// Adds the pooled rows of a step to the embeddings of their prompts.
    pub(super) fn take_pooled(&mut self, plan: &StepPlan, output: &StepOutput) {
        for (slice, sum) in self.pooled(plan, output) {
            let live = self.live.get_mut(&slice.seq).expect("a sequence in a step is live");
            let Some(pool) = &mut live.pool else { continue };
            pool.sum.iter_mut().zip(sum).for_each(|(all, sum)| *all += sum);
            pool.end = slice.end();
        }
    }

    /// Sequences whose pooled rows are not finite.
    pub(super) fn non_finite_pooled(&self, plan: &StepPlan, output: &StepOutput) -> Vec<SeqId> {
        let bad = |(_, sum): &(Slice, &[f32])| !sum.iter().all(|value| value.is_finite());
        self.pooled(plan, output).filter(bad).map(|(slice, _)| slice.seq).collect()
    }
}
