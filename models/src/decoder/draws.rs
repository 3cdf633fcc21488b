//! The samples of a step and the log-probabilities that it returns: lists, buffers and dispatches.

mod lists;
mod scan;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, PassResults, Pipeline, Read};

use lists::Draws;
use scan::Scan;

use super::buffers::GrowBuf;
use super::limits::HEAD_ROWS;
use super::options::DecoderOptions;
use crate::batch::{Sample, Slice, StepOutput};
use crate::cast::u32_of;
use crate::kernel::adjust_logits::{self, AdjustLogitsBuffers, AdjustLogitsParams};
use crate::kernel::sample::{self, SampleBuffers, SampleParams};
use crate::kernel::top_logits::{self, TopLogitsBuffers, TopLogitsParams};
use crate::sampling::TokenLogProb;
use crate::{DecoderConfig, ModelError};

/// Kernels and buffers that sample the tokens of a decoder. Buffers that only some samples need grow with the steps.
#[derive(Debug)]
pub(super) struct DrawState {
    gpu: Arc<Gpu>,
    vocab: u32,
    draws: Draws,
    scan: Scan,
    sample: Arc<Pipeline>,
    /// Sampled tokens.
    sampled: Buf<u32>,
    /// Logits before edits, if a step edits some and returns log-probabilities.
    raw: GrowBuf<f32>,
    /// Tokens and their log-probabilities, `[top_requests, stride]`.
    top_ids: GrowBuf<u32>,
    top_log_probs: GrowBuf<f32>,
}

/// Readbacks of log-probabilities.
#[derive(Debug)]
pub(super) struct TopRead {
    ids: Read<u32>,
    log_probs: Read<f32>,
}

impl TopRead {
    /// Returns the entries, `[top_requests, stride]`.
    pub(super) fn get(self, done: &PassResults) -> Vec<TokenLogProb> {
        let (ids, log_probs) = (done.get(self.ids), done.get(self.log_probs));
        ids.into_iter().zip(log_probs).map(|(token, log_prob)| TokenLogProb { token, log_prob }).collect()
    }
}

/// Values that the commands of a step's sampling depend on.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct DrawShape {
    samples: usize,
    adjusted: usize,
    fills_late: bool,
    top_requests: usize,
    stride: u32,
    buffers: [usize; 6],
}

impl DrawState {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &DecoderConfig,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let samples = options.max_seqs as usize;
        let scan = Scan::new(gpu, config.vocab_size, samples.max(HEAD_ROWS))?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            vocab: config.vocab_size,
            sample: gpu.pipeline(&sample::variant(scan.each))?,
            scan,
            draws: Draws::new(gpu, samples)?,
            sampled: gpu.buffer("sampled", samples)?,
            raw: GrowBuf::new(gpu, "raw_logits", 0)?,
            top_ids: GrowBuf::new(gpu, "top_ids", 0)?,
            top_log_probs: GrowBuf::new(gpu, "top_log_probs", 0)?,
        })
    }

    /// Plans the samples of a step, and the log-probabilities that it returns.
    pub(super) fn plan(&mut self, slices: &[Slice<'_>], samples: &[Sample<'_>]) -> Result<(), ModelError> {
        self.draws.plan(slices, samples, self.vocab)
    }

    /// Uploads the lists of the step, and grows the buffers that depend on them.
    pub(super) fn upload(&mut self) -> Result<(), ModelError> {
        let (gpu, draws) = (&*self.gpu, &mut self.draws);
        draws.upload(gpu)?;
        let raw = if draws.keeps_raw() { draws.samples() * self.vocab as usize } else { 0 };
        let top = draws.top_requests.len() * draws.stride() as usize;
        self.raw.fit(gpu, raw)?;
        self.top_ids.fit(gpu, top)?;
        self.top_log_probs.fit(gpu, top)
    }

    /// Asks the caller to fill the masks that are filled late, and uploads them.
    pub(super) fn fill(
        &mut self,
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<(), ModelError> {
        self.draws.fill(&self.gpu, (samples, self.vocab), fill)
    }

    /// Whether the step has masks that are filled late.
    pub(super) fn fills_late(&self) -> bool {
        self.draws.has_late()
    }

    /// Returns the tokens that the last step sampled, in the order of its samples.
    pub(super) fn sampled(&self) -> &Buf<u32> {
        &self.sampled
    }

    /// Whether the step returns log-probabilities.
    pub(super) fn has_log_probs(&self) -> bool {
        !self.draws.top_requests.is_empty()
    }

    /// Returns the number of tokens that the step samples.
    pub(super) fn samples(&self) -> usize {
        self.draws.samples()
    }

    /// Returns the values that the commands of the step's sampling depend on; `None` if scored rows request log-probabilities,
    /// which is done in portions.
    pub(super) fn shape(&self) -> Option<DrawShape> {
        let draws = &self.draws;
        let plain = draws.scored_requests(0..usize::MAX).is_empty();
        plain.then(|| DrawShape {
            samples: draws.specs.len(),
            adjusted: draws.adjusted.len(),
            fills_late: draws.has_late(),
            top_requests: draws.top_requests.len(),
            stride: draws.stride(),
            buffers: [
                draws.adjusted.on_device().len(),
                draws.masks.on_device().len(),
                draws.edits.on_device().len(),
                self.raw.len(),
                draws.top_requests.on_device().len(),
                self.top_ids.len(),
            ],
        })
    }

    /// Records sampling from `logits` `[samples, vocab]`, and returns the readback of the tokens. Masks, biases and penalties are
    /// applied to `logits` in place. Before masks that are filled late, the pass [holds](Pass::hold).
    pub(super) fn record(&self, pass: &mut Pass, logits: &Buf<f32>) -> Result<Read<u32>, ModelError> {
        let draws = &self.draws;
        let samples = draws.samples();
        if draws.keeps_raw() {
            pass.copy(logits, 0..samples * self.vocab as usize, &self.raw, 0);
        }
        if draws.has_late() {
            pass.hold();
        }
        self.record_adjust(pass, logits)?;
        self.scan.record(pass, logits, draws.specs.on_device(), samples, true);
        let parts = self.scan.parts();
        let params =
            SampleParams { vocab: self.vocab, parts, neg_inf: f32::NEG_INFINITY, rows: u32_of(samples) };
        let buffers = SampleBuffers {
            logits: logits.bind(),
            specs: draws.specs.bind(),
            maxima: self.scan.maxima.bind(),
            values: self.scan.values.bind(),
            ids: self.scan.ids.bind(),
            out: self.sampled.bind(),
        };
        pass.dispatch(&self.sample, &params, buffers);
        let raw = if draws.keeps_raw() { &*self.raw } else { logits };
        if draws.keeps_raw() {
            self.scan.record(pass, raw, draws.specs.on_device(), samples, false);
        }
        self.record_top(pass, draws.sampled_requests(), (raw.bind(), self.sampled.bind()))?;
        Ok(pass.read(&self.sampled, 0..samples))
    }

    /// Records the log-probabilities that scored `rows` request, given their logits and `targets`.
    pub(super) fn record_scored(
        &self,
        pass: &mut Pass,
        rows: Range<usize>,
        logits: &Buf<f32>,
        targets: Bind<u32>,
    ) -> Result<(), ModelError> {
        let top_requests = self.draws.scored_requests(rows.clone());
        if !top_requests.is_empty() {
            self.scan.record(pass, logits, self.draws.specs.on_device(), rows.len(), false);
        }
        self.record_top(pass, top_requests, (logits.bind(), targets))
    }

    /// Writes the log-probabilities `entries`, `[top_requests, stride]`, to the output.
    pub(super) fn take(&self, output: &mut StepOutput, entries: &[TokenLogProb]) {
        self.draws.take(output, entries);
    }

    /// Records the readback of all log-probabilities, if there are any.
    pub(super) fn read(&self, pass: &mut Pass) -> Option<TopRead> {
        let len = self.draws.top_requests.len() * self.draws.stride() as usize;
        (len > 0).then(|| TopRead {
            ids: pass.read(&self.top_ids, 0..len),
            log_probs: pass.read(&self.top_log_probs, 0..len),
        })
    }

    fn record_adjust(&self, pass: &mut Pass, logits: &Buf<f32>) -> Result<(), ModelError> {
        let draws = &self.draws;
        if draws.adjusted.is_empty() {
            return Ok(());
        }
        let pipeline = self.gpu.pipeline(&adjust_logits::variant())?;
        let rows = u32_of(draws.adjusted.len());
        let params = AdjustLogitsParams { vocab: self.vocab, neg_inf: f32::NEG_INFINITY, rows };
        let buffers = AdjustLogitsBuffers {
            rows: draws.adjusted.bind(),
            masks: draws.masks.bind(),
            edits: draws.edits.bind(),
            logits: logits.bind(),
        };
        pass.dispatch(&pipeline, &params, buffers);
        Ok(())
    }

    /// Records the log-probabilities of `top_requests`, from `[logits, targets]`.
    fn record_top(
        &self,
        pass: &mut Pass,
        top_requests: Range<usize>,
        (logits, targets): (Bind<f32>, Bind<u32>),
    ) -> Result<(), ModelError> {
        if top_requests.is_empty() {
            return Ok(());
        }
        let pipeline = self.gpu.pipeline(&top_logits::variant(self.scan.each))?;
        let params = TopLogitsParams {
            vocab: self.vocab,
            parts: self.scan.parts(),
            stride: self.draws.stride(),
            first: u32_of(top_requests.start),
            requests: u32_of(top_requests.len()),
        };
        let buffers = TopLogitsBuffers {
            logits,
            requests: self.draws.top_requests.bind(),
            targets,
            maxima: self.scan.maxima.bind(),
            values: self.scan.values.bind(),
            ids: self.top_ids.bind(),
            log_probs: self.top_log_probs.bind(),
        };
        pass.dispatch(&pipeline, &params, buffers);
        Ok(())
    }
}
