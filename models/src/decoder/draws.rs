//! The draws of a step and the log-probabilities that it returns: lists, their buffers on the device, dispatches.

mod plan;
mod scan;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Outcome, Pass, Pipeline, Read};

pub(super) use plan::Draws;
use scan::Scan;

use super::buffers::GrowBuf;
use super::head::HEAD_ROWS;
use super::options::DecoderOptions;
use crate::cast::u32_of;
use crate::kernel::adjust_logits::{self, AdjustLogitsBuffers, AdjustLogitsParams, AdjustRow};
use crate::kernel::sample::{self, SampleBuffers, SampleParams, Spec};
use crate::kernel::top_logits::{self, TopLogitsBuffers, TopLogitsParams, TopRequest};
use crate::sampling::TokenLogProb;
use crate::{DecoderConfig, ModelError};

/// Kernels and buffers that draw the tokens of a decoder. Buffers that plain draws do without are as long as the steps so
/// far needed.
#[derive(Debug)]
pub(super) struct DrawState {
    gpu: Arc<Gpu>,
    vocab: u32,
    scan: Scan,
    sample: Arc<Pipeline>,
    specs: Buf<Spec>,
    /// Drawn tokens.
    sampled: Buf<u32>,
    adjusted: GrowBuf<AdjustRow>,
    masks: GrowBuf<u32>,
    edits: GrowBuf<[u32; 2]>,
    /// Logits as the model gave them, where a step edits some and returns log-probabilities.
    raw: GrowBuf<f32>,
    asks: GrowBuf<TopRequest>,
    /// Tokens and their log-probabilities, `[asks, stride]`.
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
    /// The entries, `[asks, stride]`.
    pub(super) fn get(self, done: &Outcome) -> Vec<TokenLogProb> {
        let (ids, log_probs) = (done.get(self.ids), done.get(self.log_probs));
        ids.into_iter().zip(log_probs).map(|(token, log_prob)| TokenLogProb { token, log_prob }).collect()
    }
}

/// Values that the commands of a step's draws follow from.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Shape {
    samples: usize,
    adjusted: usize,
    asks: usize,
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
            specs: gpu.buffer("specs", samples)?,
            sampled: gpu.buffer("sampled", samples)?,
            adjusted: GrowBuf::new(gpu, "adjusted_rows", 0)?,
            masks: GrowBuf::new(gpu, "masks", 0)?,
            edits: GrowBuf::new(gpu, "edits", 0)?,
            raw: GrowBuf::new(gpu, "raw_logits", 0)?,
            asks: GrowBuf::new(gpu, "top_asks", 0)?,
            top_ids: GrowBuf::new(gpu, "top_ids", 0)?,
            top_log_probs: GrowBuf::new(gpu, "top_log_probs", 0)?,
        })
    }

    /// Brings the lists of a step to the device.
    pub(super) fn write(&mut self, draws: &Draws) -> Result<(), ModelError> {
        self.gpu.write(&self.specs, 0, &draws.specs);
        let gpu = &*self.gpu;
        let raw = if draws.keeps_raw() { draws.specs.len() * self.vocab as usize } else { 0 };
        let top = draws.asks.len() * draws.stride() as usize;
        self.adjusted.write(gpu, &draws.adjusted)?;
        self.masks.write(gpu, &draws.masks)?;
        self.edits.write(gpu, &draws.edits)?;
        self.asks.write(gpu, &draws.asks)?;
        self.raw.fit(gpu, raw)?;
        self.top_ids.fit(gpu, top)?;
        self.top_log_probs.fit(gpu, top)
    }

    /// Returns the values that the commands of `draws` follow from; `None` where scored rows ask for log-probabilities,
    /// portion by portion.
    pub(super) fn shape(&self, draws: &Draws) -> Option<Shape> {
        let plain = draws.asks_of_scored(0..usize::MAX).is_empty();
        plain.then(|| Shape {
            samples: draws.specs.len(),
            adjusted: draws.adjusted.len(),
            asks: draws.asks.len(),
            stride: draws.stride(),
            buffers: [
                self.adjusted.len(),
                self.masks.len(),
                self.edits.len(),
                self.raw.len(),
                self.asks.len(),
                self.top_ids.len(),
            ],
        })
    }

    /// Draws from `logits` `[samples, vocab]`, and returns the readback of the tokens. Rows with masks, biases or penalties
    /// are edited there.
    pub(super) fn record(
        &self,
        pass: &mut Pass,
        draws: &Draws,
        logits: &Buf<f32>,
    ) -> Result<Read<u32>, ModelError> {
        let samples = draws.specs.len();
        if draws.keeps_raw() {
            pass.copy(logits, 0..samples * self.vocab as usize, &self.raw, 0);
        }
        self.record_adjust(pass, draws, logits)?;
        self.scan.record(pass, logits, &self.specs, samples, true);
        let parts = self.scan.parts();
        let params = SampleParams { vocab: self.vocab, parts, neg_inf: f32::NEG_INFINITY };
        let buffers = SampleBuffers {
            logits: logits.bind(),
            specs: self.specs.bind(),
            maxima: self.scan.maxima.bind(),
            values: self.scan.values.bind(),
            ids: self.scan.ids.bind(),
            out: self.sampled.bind(),
        };
        pass.dispatch(&self.sample, &params, buffers, sample::grid(u32_of(samples)));
        let raw = if draws.keeps_raw() { &*self.raw } else { logits };
        if draws.keeps_raw() {
            self.scan.record(pass, raw, &self.specs, samples, false);
        }
        self.record_top(pass, draws, draws.asks_of_samples(), (raw.bind(), self.sampled.bind()))?;
        Ok(pass.read(&self.sampled, 0..samples))
    }

    /// Log-probabilities of those of the scored `rows`, whose logits and `targets` are given, that ask for them.
    pub(super) fn record_scored(
        &self,
        pass: &mut Pass,
        draws: &Draws,
        rows: Range<usize>,
        logits: &Buf<f32>,
        targets: Bind<u32>,
    ) -> Result<(), ModelError> {
        let asks = draws.asks_of_scored(rows.clone());
        if !asks.is_empty() {
            self.scan.record(pass, logits, &self.specs, rows.len(), false);
        }
        self.record_top(pass, draws, asks, (logits.bind(), targets))
    }

    /// The readback of all log-probabilities, where there are any.
    pub(super) fn read(&self, pass: &mut Pass, draws: &Draws) -> Option<TopRead> {
        let len = draws.asks.len() * draws.stride() as usize;
        (len > 0).then(|| TopRead {
            ids: pass.read(&self.top_ids, 0..len),
            log_probs: pass.read(&self.top_log_probs, 0..len),
        })
    }

    fn record_adjust(&self, pass: &mut Pass, draws: &Draws, logits: &Buf<f32>) -> Result<(), ModelError> {
        if draws.adjusted.is_empty() {
            return Ok(());
        }
        let pipeline = self.gpu.pipeline(&adjust_logits::variant())?;
        let params = AdjustLogitsParams { vocab: self.vocab, neg_inf: f32::NEG_INFINITY };
        let buffers = AdjustLogitsBuffers {
            rows: self.adjusted.bind(),
            masks: self.masks.bind(),
            edits: self.edits.bind(),
            logits: logits.bind(),
        };
        let grid = adjust_logits::grid(u32_of(draws.adjusted.len()), self.vocab);
        pass.dispatch(&pipeline, &params, buffers, grid);
        Ok(())
    }

    /// The log-probabilities of `asks`, from `[logits, targets]`.
    fn record_top(
        &self,
        pass: &mut Pass,
        draws: &Draws,
        asks: Range<usize>,
        (logits, targets): (Bind<f32>, Bind<u32>),
    ) -> Result<(), ModelError> {
        if asks.is_empty() {
            return Ok(());
        }
        let pipeline = self.gpu.pipeline(&top_logits::variant(self.scan.each))?;
        let params = TopLogitsParams {
            vocab: self.vocab,
            parts: self.scan.parts(),
            stride: draws.stride(),
            first: u32_of(asks.start),
        };
        let buffers = TopLogitsBuffers {
            logits,
            requests: self.asks.bind(),
            targets,
            maxima: self.scan.maxima.bind(),
            values: self.scan.values.bind(),
            ids: self.top_ids.bind(),
            log_probs: self.top_log_probs.bind(),
        };
        pass.dispatch(&pipeline, &params, buffers, top_logits::grid(u32_of(asks.len())));
        Ok(())
    }
}
