//! The end of a step: logits, what is drawn and scored by them, and what comes back to the host.

use attn_kernels::gpu::{Bind, Outcome, Pass, Read};

use super::draws::TopRead;
use super::inputs::Plan;
use super::{Decoder, sparse, staged};
use crate::ModelError;
use crate::batch::StepOutput;
use crate::kernel::{log_prob, matmul::Epilogue, rms_norm};
use crate::matrix::{Precision, Product};

/// Rows whose logits exist at one time when many are scored.
pub(super) const HEAD_ROWS: usize = 64;

/// What a step reads back.
#[derive(Debug)]
pub(super) struct Reads {
    /// What its earlier submissions brought.
    early: StepOutput,
    ids: Option<Read<u32>>,
    log_probs: Option<TopRead>,
    nll: Option<Read<f32>>,
    sparse: Option<sparse::Reads>,
    choices: Option<Read<u32>>,
    fresh: Vec<staged::Return>,
}

impl Decoder {
    /// Final norm, logits, and what is made of them.
    pub(super) fn record_head(&mut self, pass: &mut Pass, plan: &Plan) -> Result<Reads, ModelError> {
        let vocab = self.config.vocab_size as usize;
        let mut early = StepOutput::default();
        // Scored rows come first, in portions whose logits fit in the buffer.
        let scored = plan.scored.len();
        for start in (0..scored).step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(scored - start);
            self.logits(pass, start, rows)?;
            self.score(pass, plan, start, rows)?;
            let here = |row: usize| row.clamp(start, start + rows) - start;
            let wanted = plan.wanted.iter().map(|range| here(range.start)..here(range.end));
            let reads: Vec<Read<f32>> = wanted
                .filter(|range| !range.is_empty())
                .map(|range| pass.read(&self.activations.logits, range.start * vocab..range.end * vocab))
                .collect();
            if !reads.is_empty() {
                let mut done = self.gpu.submit(std::mem::replace(pass, Pass::new("step")))?.wait()?;
                early.timings.append(&mut done.timings);
                early.logits.extend(reads.into_iter().flat_map(|read| done.get(read)));
            }
        }
        let samples = plan.draws.samples();
        let mut ids = None;
        if samples > 0 {
            self.logits(pass, scored, samples)?;
            self.fetch_wishes(pass, 0);
            ids = Some(self.draws.record(pass, &plan.draws, &self.activations.logits)?);
        }
        Ok(Reads {
            early,
            ids,
            log_probs: self.draws.read(pass, &plan.draws),
            nll: (scored > 0).then(|| pass.read(&self.activations.nll, 0..scored)),
            sparse: self.sparse.as_ref().map(|sparse| sparse.read(pass, plan)),
            choices: self.choices.as_ref().and_then(|choices| choices.read(pass, plan)),
            fresh: self.read_fresh(pass, plan),
        })
    }

    /// What a step's readbacks say; the blocks among them go to the host.
    pub(super) fn take(
        &mut self,
        plan: &Plan,
        reads: Reads,
        mut done: Outcome,
    ) -> Result<StepOutput, ModelError> {
        self.keep_fresh(plan, reads.fresh, &done)?;
        let mut output = reads.early;
        output.timings.append(&mut done.timings);
        output.choices =
            reads.choices.map(|read| self.take_choices(plan, &done.get(read))).unwrap_or_default();
        output.sampled = reads.ids.map(|read| done.get(read)).unwrap_or_default();
        if let Some(read) = reads.log_probs {
            plan.draws.take(&mut output, &read.get(&done));
        }
        let nll: Vec<f32> = reads.nll.map(|read| done.get(read)).unwrap_or_default();
        output.nll = nll.into_iter().zip(&plan.scored).filter(|(_, s)| s.is_some()).map(|(v, _)| v).collect();
        if let Some(sparse) = &mut self.sparse {
            if let Some(reads) = reads.sparse {
                sparse.take(plan, reads, &done);
            }
            sparse.finish(&mut output);
        }
        Ok(output)
    }

    /// Logits of `rows` rows of the gather list, from `start` on.
    fn logits(&self, pass: &mut Pass, start: usize, rows: usize) -> Result<(), ModelError> {
        let rows = u32::try_from(rows).expect("at most max_rows");
        let width = self.config.hidden_size;
        let first = u32::try_from(start).expect("at most max_rows");
        let params = rms_norm::RmsNormParams { rows, width, eps: self.config.rms_norm_eps, first };
        let bindings = [
            (&self.activations.hidden).into(),
            (&self.inputs.gather).into(),
            (&self.final_norm).into(),
            (&self.activations.normed).into(),
        ];
        pass.dispatch(&self.pipelines.norm_gather, &params, &bindings, rms_norm::grid(rows));
        let product = Product {
            x: &self.activations.normed,
            rows,
            // Greedy text turns on smaller differences of logits than codes of 8 bits lose.
            precision: Precision { int8: false, ..self.precision },
            y: &self.activations.logits,
            y_stride: self.config.vocab_size,
            y_offset: 0,
            epilogue: Epilogue::Store,
            norm: None,
        };
        self.head.as_ref().unwrap_or(&self.embedding).multiply(&self.kernels, pass, &product)
    }

    fn score(&self, pass: &mut Pass, plan: &Plan, start: usize, rows: usize) -> Result<(), ModelError> {
        let portion = start..start + rows;
        let rows = u32::try_from(rows).expect("at most HEAD_ROWS");
        let params = log_prob::LogProbParams { rows, vocab: self.config.vocab_size, pad0: 0, pad1: 0 };
        let logits = &self.activations.logits;
        let targets = Bind::at(self.inputs.targets.raw(), start as u64 * 4);
        let bindings =
            [logits.into(), targets.clone(), Bind::at(self.activations.nll.raw(), start as u64 * 4)];
        pass.dispatch(&self.pipelines.log_prob, &params, &bindings, log_prob::grid(rows));
        self.draws.record_scored(pass, &plan.draws, portion, logits, targets)
    }
}
