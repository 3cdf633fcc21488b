//! The end of a step: logits, sampling, scores, and readbacks.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Gpu, Pass, PassResults, Read};

use super::attention::Attention;
use super::batch::Batch;
use super::buffers::{GrowBuf, StepList};
use super::choices::Choices;
use super::draws::{DrawState, TopRead};
use super::indexed::Indexed;
use super::limits::HEAD_ROWS;
use super::ops::Ctx;
use super::options::DecoderOptions;
use super::{keys, sparse};
use crate::ModelError;
use crate::batch::{Sample, Slice, StepOutput};
use crate::cast::u32_of;
use crate::kernel::log_prob;
use crate::kernel::log_prob::LogProbBuffers;
use crate::kernel::matmul::Epilogue;
use crate::kernel::segment_sum::{self, SegmentSumBuffers, SegmentSumParams};
use crate::matrix::{Matrix, Precision, Product};

/// Weights after the last layer.
#[derive(Clone, Debug)]
pub(super) struct LogitWeights {
    pub(super) norm: Buf<f32>,
    /// Matrix of the output head: the embedding, if it is tied.
    pub(super) matrix: Matrix,
}

/// Rows of a step whose logits are needed: scored rows, then sampled rows.
#[derive(Debug)]
pub(super) struct LogitRows {
    gather: StepList<u32>,
    /// Targets of the scored rows; 0 if only logits are requested.
    targets: StepList<u32>,
    /// Whether each scored row has a target.
    scored: Vec<bool>,
    /// Scored rows whose logits are returned, ascending.
    wanted: Vec<Range<usize>>,
    /// First row and number of rows of each sum of hidden states.
    segments: StepList<[u32; 2]>,
    /// Sums of hidden states, `[segments, hidden]`.
    sums: GrowBuf<f32>,
}

impl LogitRows {
    pub(super) fn new(gpu: &Gpu, options: &DecoderOptions) -> Result<Self, ModelError> {
        // Portions of the lists are bound at aligned offsets: one more portion never overruns.
        let len = (options.max_rows + options.max_seqs) as usize + HEAD_ROWS;
        Ok(Self {
            gather: StepList::new(gpu, "gather", len)?,
            targets: StepList::new(gpu, "targets", len)?,
            scored: Vec::new(),
            wanted: Vec::new(),
            segments: StepList::new(gpu, "segments", 0)?,
            sums: GrowBuf::new(gpu, "pooled", 0)?,
        })
    }

    /// Plans the rows that `slices` score and that `samples` sample from.
    pub(super) fn plan(&mut self, options: &DecoderOptions, slices: &[Slice<'_>], samples: &[Sample<'_>]) {
        self.gather.clear();
        self.targets.clear();
        self.scored.clear();
        self.wanted.clear();
        self.segments.clear();
        let mut row = 0;
        let mut last_rows = Vec::with_capacity(slices.len());
        for slice in slices {
            for i in 0..slice.scored_rows() {
                self.gather.push(row + u32_of(i));
                let target = slice.targets.get(i).copied();
                self.targets.push(target.unwrap_or(0));
                self.scored.push(target.is_some());
            }
            if slice.logits > 0 {
                let end = self.scored.len();
                self.wanted.push(end - slice.logits.min(slice.tokens.len())..end);
            }
            row += u32_of(slice.tokens.len());
            let pooled = u32_of(slice.pooled.min(slice.tokens.len()));
            if pooled > 0 {
                self.segments.push([row - pooled, pooled]);
            }
            last_rows.push(row - 1);
        }
        self.gather.extend(samples.iter().map(|s| last_rows[s.slice]));
        let max = options.max_seqs as usize;
        assert!(samples.len() <= max, "{} samples in a step of at most {max}", samples.len());
    }

    /// Uploads the lists, and grows the buffer of sums of `hidden` f32.
    pub(super) fn upload(&mut self, gpu: &Gpu, hidden: u32) -> Result<(), ModelError> {
        self.gather.upload(gpu)?;
        self.segments.upload(gpu)?;
        self.sums.fit(gpu, self.segments.len() * hidden as usize)?;
        self.targets.upload(gpu)
    }

    /// Returns the number of scored rows.
    pub(super) fn scored(&self) -> usize {
        self.scored.len()
    }

    /// Whether the step samples one token after each of its `rows` rows, in order, and scores none.
    pub(super) fn are_all_sampled(&self, rows: u32) -> bool {
        self.scored.is_empty() && self.gather.iter().copied().eq(0..rows)
    }

    /// Whether logits or hidden states are returned to the caller.
    pub(super) fn hands_back(&self) -> bool {
        !self.wanted.is_empty() || !self.segments.is_empty()
    }
}

/// Readbacks of a step.
#[derive(Debug, Default)]
pub(super) struct StepReads {
    /// Output of the step's earlier submissions.
    early: StepOutput,
    /// Residual of all rows, for layers on another device.
    residual: Option<Read<f32>>,
    ids: Option<Read<u32>>,
    log_probs: Option<TopRead>,
    nll: Option<Read<f32>>,
    pooled: Option<Read<f32>>,
    sparse: Option<sparse::SelectionReads>,
    choices: Option<Read<u32>>,
    indexed: Option<Read<u32>>,
    dirty: Vec<keys::Return>,
}

/// Parts of the decoder that the end of a step uses, apart from the context.
pub(super) struct StepEnd<'a> {
    /// Weights of the output head; `None` if other layers follow on another device.
    pub(super) head: Option<&'a LogitWeights>,
    pub(super) rows: &'a LogitRows,
    pub(super) draws: &'a DrawState,
    pub(super) attention: &'a Attention,
    pub(super) choices: Option<&'a Choices>,
    pub(super) indexed: Option<&'a Indexed>,
}

impl StepEnd<'_> {
    /// Records the final norm, sums of hidden states, the logits, sampling and scores, or the readback of the residual.
    pub(super) fn record(&self, ctx: &mut Ctx<'_>) -> Result<StepReads, ModelError> {
        let batch = ctx.batch;
        let mut reads = StepReads::default();
        match self.head {
            Some(head) => self.head(ctx, head, &mut reads)?,
            None => {
                let elements = (batch.rows * ctx.config.hidden_size) as usize;
                reads.residual = Some(ctx.pass.read(&ctx.act.residual, 0..elements));
            }
        }
        reads.sparse = self.attention.sparse().map(|sparse| sparse.read(ctx.pass, batch));
        reads.choices = self.choices.and_then(|choices| choices.read(ctx.pass, batch.rows));
        reads.indexed = self.indexed.and_then(|indexed| indexed.read(ctx.pass, batch));
        reads.dirty = ctx.keys.read_dirty(ctx.pass, ctx.kv, ctx.offload_plan);
        Ok(reads)
    }

    fn head(&self, ctx: &mut Ctx<'_>, head: &LogitWeights, reads: &mut StepReads) -> Result<(), ModelError> {
        let (act, vocab) = (ctx.act, ctx.config.vocab_size as usize);
        reads.pooled = self.pool(ctx, head)?;
        // Scored rows come first, in portions whose logits fit in the buffer.
        let scored = self.rows.scored();
        for start in (0..scored).step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(scored - start);
            self.logits(ctx, head, start, rows)?;
            self.score(ctx, start, rows)?;
            let here = |row: usize| row.clamp(start, start + rows) - start;
            let wanted = self.rows.wanted.iter().map(|range| here(range.start)..here(range.end));
            let logits: Vec<Read<f32>> = wanted
                .filter(|range| !range.is_empty())
                .map(|range| ctx.pass.read(&act.logits, range.start * vocab..range.end * vocab))
                .collect();
            if !logits.is_empty() {
                let mut done = ctx.gpu.submit(std::mem::replace(ctx.pass, Pass::new("step")))?.wait()?;
                reads.early.timings.append(&mut done.timings);
                reads.early.logits.extend(logits.into_iter().flat_map(|read| done.get(read)));
            }
        }
        let samples = self.draws.samples();
        if samples > 0 {
            self.logits(ctx, head, scored, samples)?;
            ctx.on_pages(|pages, context| pages.fetch_ahead(context, 0));
            reads.ids = Some(self.draws.record(ctx.pass, &act.logits)?);
        }
        reads.log_probs = self.draws.read(ctx.pass);
        reads.nll = (scored > 0).then(|| ctx.pass.read(&act.nll, 0..scored));
        Ok(())
    }

    /// Records the sums of hidden states that slices request.
    fn pool(&self, ctx: &mut Ctx<'_>, head: &LogitWeights) -> Result<Option<Read<f32>>, ModelError> {
        let LogitRows { segments, sums, .. } = self.rows;
        if segments.is_empty() {
            return Ok(None);
        }
        let pipeline = ctx.gpu.pipeline(&segment_sum::variant())?;
        ctx.norm_residual(&head.norm);
        let params = SegmentSumParams { quads: ctx.config.hidden_size / 4, segments: u32_of(segments.len()) };
        let buffers =
            SegmentSumBuffers { x: ctx.act.normed.bind(), segments: segments.bind(), out: sums.bind() };
        ctx.pass.dispatch(&pipeline, &params, buffers);
        Ok(Some(ctx.pass.read(sums, 0..segments.len() * ctx.config.hidden_size as usize)))
    }

    /// Records the logits of `rows` rows of the gather list, from `start` on.
    fn logits(
        &self,
        ctx: &mut Ctx<'_>,
        head: &LogitWeights,
        start: usize,
        rows: usize,
    ) -> Result<(), ModelError> {
        let (start, rows) = (u32_of(start), u32_of(rows));
        ctx.norm_gathered(&head.norm, self.rows.gather.bind(), start..start + rows);
        let (act, precision) = (ctx.act, ctx.ops.precision);
        let product = Product {
            x: &act.normed,
            rows,
            // 8-bit codes lose more than the differences of logits that greedy sampling depends on.
            precision: Precision { int8: false, ..precision },
            y: &act.logits,
            y_stride: ctx.config.vocab_size,
            y_offset: 0,
            epilogue: Epilogue::Store,
            norm: None,
        };
        ctx.matmul(&head.matrix, &product)?;
        ctx.cap_logits(rows);
        Ok(())
    }

    fn score(&self, ctx: &mut Ctx<'_>, start: usize, rows: usize) -> Result<(), ModelError> {
        let (portion, act) = (start..start + rows, ctx.act);
        let rows = u32_of(rows);
        let params = log_prob::LogProbParams { rows, vocab: ctx.config.vocab_size };
        let targets = self.rows.targets.bind_from(start);
        let buffers = LogProbBuffers {
            logits: act.logits.bind(),
            targets: targets.clone(),
            out: act.nll.bind_from(start),
        };
        ctx.pass.dispatch(&ctx.ops.log_prob, &params, buffers);
        self.draws.record_scored(ctx.pass, portion, &act.logits, targets)
    }
}

impl StepReads {
    /// Takes the readbacks of dirty blocks.
    pub(super) fn dirty(&mut self) -> Vec<keys::Return> {
        std::mem::take(&mut self.dirty)
    }

    /// Returns the readback of the residual.
    pub(super) fn into_residual(self) -> Option<Read<f32>> {
        self.residual
    }

    /// Takes the readback of the indexers' choices.
    pub(super) fn indexed(&mut self) -> Option<Read<u32>> {
        self.indexed.take()
    }

    /// Turns the readbacks of a step into its output.
    pub(super) fn take(
        self,
        batch: &Batch,
        rows: &LogitRows,
        draws: &DrawState,
        mut done: PassResults,
        attention: &mut Attention,
        choices: Option<&Choices>,
    ) -> StepOutput {
        let mut output = self.early;
        output.timings.append(&mut done.timings);
        output.residual = self.residual.map(|read| done.get(read)).unwrap_or_default();
        if let Some((choices, read)) = choices.zip(self.choices) {
            let entries_at = |row: usize, slots: &[u32]| attention.entries_at(batch, row, slots);
            output.choices = choices.take(batch.rows, &done.get(read), entries_at);
        }
        output.sampled = self.ids.map(|read| done.get(read)).unwrap_or_default();
        if let Some(read) = self.log_probs {
            draws.take(&mut output, &read.get(&done));
        }
        output.pooled = self.pooled.map(|read| done.get(read)).unwrap_or_default();
        let nll: Vec<f32> = self.nll.map(|read| done.get(read)).unwrap_or_default();
        output.nll =
            nll.into_iter().zip(&rows.scored).filter(|(_, scored)| **scored).map(|(v, _)| v).collect();
        if let Some(sparse) = attention.sparse_mut() {
            sparse.take(batch, self.sparse, &done, &mut output);
        }
        output
    }
}
