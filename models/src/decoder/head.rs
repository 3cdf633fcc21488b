//! The end of a step: logits, what is drawn and scored by them, and what comes back to the host.

use attn_kernels::gpu::{Buf, Outcome, Pass, Read};

use super::attention::Attention;
use super::choices::Choices;
use super::draws::{DrawState, TopRead};
use super::indexed::Indexed;
use super::inputs::Plan;
use super::ops::Ctx;
use super::{keys, sparse};
use crate::ModelError;
use crate::batch::StepOutput;
use crate::cast::u32_of;
use crate::kernel::log_prob;
use crate::kernel::log_prob::LogProbBuffers;
use crate::kernel::matmul::Epilogue;
use crate::matrix::{Matrix, Precision, Product};

/// Rows whose logits exist at one time when many are scored.
pub(super) const HEAD_ROWS: usize = 64;

/// Readbacks of a step.
#[derive(Debug)]
pub(super) struct Reads {
    /// Output of its earlier submissions.
    early: StepOutput,
    ids: Option<Read<u32>>,
    log_probs: Option<TopRead>,
    nll: Option<Read<f32>>,
    sparse: Option<sparse::Reads>,
    choices: Option<Read<u32>>,
    indexed: Option<Read<u32>>,
    fresh: Vec<keys::Return>,
}

/// Parts that the end of a step records with, beside the context.
pub(super) struct Head<'a> {
    pub(super) norm: &'a Buf<f32>,
    pub(super) matrix: &'a Matrix,
    pub(super) draws: &'a DrawState,
    pub(super) attention: &'a Attention,
    pub(super) choices: Option<&'a Choices>,
    pub(super) indexed: Option<&'a Indexed>,
}

impl Head<'_> {
    /// Final norm, logits, and what is made of them.
    pub(super) fn record(&self, ctx: &mut Ctx<'_>) -> Result<Reads, ModelError> {
        let (plan, act, vocab) = (ctx.plan, ctx.act, ctx.config.vocab_size as usize);
        let mut early = StepOutput::default();
        // Scored rows come first, in portions whose logits fit in the buffer.
        let scored = plan.scored.len();
        for start in (0..scored).step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(scored - start);
            self.logits(ctx, start, rows)?;
            self.score(ctx, start, rows)?;
            let here = |row: usize| row.clamp(start, start + rows) - start;
            let wanted = plan.wanted.iter().map(|range| here(range.start)..here(range.end));
            let reads: Vec<Read<f32>> = wanted
                .filter(|range| !range.is_empty())
                .map(|range| ctx.pass.read(&act.logits, range.start * vocab..range.end * vocab))
                .collect();
            if !reads.is_empty() {
                let mut done = ctx.gpu.submit(std::mem::replace(ctx.pass, Pass::new("step")))?.wait()?;
                early.timings.append(&mut done.timings);
                early.logits.extend(reads.into_iter().flat_map(|read| done.get(read)));
            }
        }
        let samples = plan.draws.samples();
        let mut ids = None;
        if samples > 0 {
            self.logits(ctx, scored, samples)?;
            ctx.on_pages(|pages, context| pages.fetch_wishes(context, 0));
            ids = Some(self.draws.record(ctx.pass, &plan.draws, &act.logits)?);
        }
        Ok(Reads {
            early,
            ids,
            log_probs: self.draws.read(ctx.pass, &plan.draws),
            nll: (scored > 0).then(|| ctx.pass.read(&act.nll, 0..scored)),
            sparse: self.attention.sparse().map(|sparse| sparse.read(ctx.pass, plan)),
            choices: self.choices.and_then(|choices| choices.read(ctx.pass, plan)),
            indexed: self.indexed.and_then(|indexed| indexed.read(ctx.pass, plan)),
            fresh: ctx.keys.read_fresh(ctx.pass, ctx.kv, plan),
        })
    }

    /// Logits of `rows` rows of the gather list, from `start` on.
    fn logits(&self, ctx: &mut Ctx<'_>, start: usize, rows: usize) -> Result<(), ModelError> {
        let rows = u32_of(rows);
        ctx.norm_gathered(self.norm, u32_of(start), rows);
        let (act, precision) = (ctx.act, ctx.ops.precision);
        let product = Product {
            x: &act.normed,
            rows,
            // Greedy text turns on smaller differences of logits than codes of 8 bits lose.
            precision: Precision { int8: false, ..precision },
            y: &act.logits,
            y_stride: ctx.config.vocab_size,
            y_offset: 0,
            epilogue: Epilogue::Store,
            norm: None,
        };
        ctx.matmul(self.matrix, &product)?;
        ctx.cap_logits(rows);
        Ok(())
    }

    fn score(&self, ctx: &mut Ctx<'_>, start: usize, rows: usize) -> Result<(), ModelError> {
        let (portion, act) = (start..start + rows, ctx.act);
        let rows = u32_of(rows);
        let params = log_prob::LogProbParams { rows, vocab: ctx.config.vocab_size };
        let targets = ctx.inputs.targets.bind_from(start);
        let buffers = LogProbBuffers {
            logits: act.logits.bind(),
            targets: targets.clone(),
            out: act.nll.bind_from(start),
        };
        ctx.pass.dispatch(&ctx.ops.log_prob, &params, buffers, log_prob::grid(rows));
        self.draws.record_scored(ctx.pass, &ctx.plan.draws, portion, &act.logits, targets)
    }
}

impl Reads {
    /// The blocks that go to the host.
    pub(super) fn fresh(&mut self) -> Vec<keys::Return> {
        std::mem::take(&mut self.fresh)
    }

    /// The choices of indexers.
    pub(super) fn indexed(&mut self) -> Option<Read<u32>> {
        self.indexed.take()
    }

    /// Turns the readbacks of a step into its output.
    pub(super) fn take(
        self,
        plan: &Plan,
        mut done: Outcome,
        attention: &mut Attention,
        choices: Option<&Choices>,
    ) -> StepOutput {
        let mut output = self.early;
        output.timings.append(&mut done.timings);
        if let Some((choices, read)) = choices.zip(self.choices) {
            output.choices = choices.take(attention, plan, &done.get(read));
        }
        output.sampled = self.ids.map(|read| done.get(read)).unwrap_or_default();
        if let Some(read) = self.log_probs {
            plan.draws.take(&mut output, &read.get(&done));
        }
        let nll: Vec<f32> = self.nll.map(|read| done.get(read)).unwrap_or_default();
        output.nll = nll.into_iter().zip(&plan.scored).filter(|(_, s)| s.is_some()).map(|(v, _)| v).collect();
        if let Some(sparse) = attention.sparse_mut() {
            sparse.take(plan, self.sparse, &done, &mut output);
        }
        output
    }
}
