//! The draws of a step and the log-probabilities that it returns: lists, their buffers on the device, dispatches.

mod plan;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Outcome, Pass, Pipeline, Read};
use bytemuck::Pod;

pub(super) use plan::Draws;

use super::DecoderOptions;
use super::inputs::u32_of;
use crate::kernel::adjust_logits::{self, AdjustLogitsParams, AdjustRow};
use crate::kernel::sample::{self, SampleParams, Spec};
use crate::kernel::top_logits::{self, TopAsk, TopLogitsParams};
use crate::sampling::TokenLogProb;
use crate::{DecoderConfig, ModelError};

/// What draws the tokens of a decoder. Buffers that plain draws do without are as long as the steps so far needed.
#[derive(Debug)]
pub(super) struct DrawState {
    gpu: Arc<Gpu>,
    vocab: u32,
    sample: Arc<Pipeline>,
    specs: Buf<Spec>,
    /// Drawn tokens.
    sampled: Buf<u32>,
    adjusted: Buf<AdjustRow>,
    masks: Buf<u32>,
    edits: Buf<[u32; 2]>,
    /// Logits as the model gave them, where a step edits some and returns log-probabilities.
    raw: Buf<f32>,
    asks: Buf<TopAsk>,
    /// Tokens and their log-probabilities, `[asks, stride]`.
    top_ids: Buf<u32>,
    top_log_probs: Buf<f32>,
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

/// What the commands of a step's draws follow from.
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
        Ok(Self {
            gpu: Arc::clone(gpu),
            vocab: config.vocab_size,
            sample: gpu.pipeline(&sample::variant())?,
            specs: gpu.buffer("specs", samples)?,
            sampled: gpu.buffer("sampled", samples)?,
            adjusted: gpu.buffer("adjusted_rows", 0)?,
            masks: gpu.buffer("masks", 0)?,
            edits: gpu.buffer("edits", 0)?,
            raw: gpu.buffer("raw_logits", 0)?,
            asks: gpu.buffer("top_asks", 0)?,
            top_ids: gpu.buffer("top_ids", 0)?,
            top_log_probs: gpu.buffer("top_log_probs", 0)?,
        })
    }

    /// Brings the lists of a step to the device.
    pub(super) fn write(&mut self, draws: &Draws) -> Result<(), ModelError> {
        self.gpu.write(&self.specs, 0, &draws.specs);
        let gpu = &*self.gpu;
        let raw = if draws.keeps_raw() { draws.specs.len() * self.vocab as usize } else { 0 };
        let top = draws.asks.len() * draws.stride() as usize;
        let grown = [
            write(gpu, "adjusted_rows", &mut self.adjusted, &draws.adjusted)?,
            write(gpu, "masks", &mut self.masks, &draws.masks)?,
            write(gpu, "edits", &mut self.edits, &draws.edits)?,
            write(gpu, "top_asks", &mut self.asks, &draws.asks)?,
            fit(gpu, "raw_logits", &mut self.raw, raw)?,
            fit(gpu, "top_ids", &mut self.top_ids, top)?,
            fit(gpu, "top_log_probs", &mut self.top_log_probs, top)?,
        ];
        if grown.contains(&true) {
            gpu.forget_bind_groups();
        }
        Ok(())
    }

    /// What the commands of `draws` follow from; `None` where scored rows ask for log-probabilities, portion by portion.
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
        let rows = u32_of(samples);
        let params = SampleParams { rows, vocab: self.vocab, neg_inf: f32::NEG_INFINITY, pad0: 0 };
        let bindings = [logits.into(), (&self.specs).into(), (&self.sampled).into()];
        pass.dispatch(&self.sample, &params, &bindings, sample::grid(rows));
        let raw = if draws.keeps_raw() { &self.raw } else { logits };
        self.record_top(pass, draws, draws.asks_of_samples(), [raw.into(), (&self.sampled).into()])?;
        Ok(pass.read(&self.sampled, 0..samples))
    }

    /// Log-probabilities of those of the scored `rows`, whose logits and `targets` are given, that ask for them.
    pub(super) fn record_scored(
        &self,
        pass: &mut Pass,
        draws: &Draws,
        rows: Range<usize>,
        logits: &Buf<f32>,
        targets: Bind,
    ) -> Result<(), ModelError> {
        self.record_top(pass, draws, draws.asks_of_scored(rows), [logits.into(), targets])
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
        let params = AdjustLogitsParams { vocab: self.vocab, neg_inf: f32::NEG_INFINITY, pad0: 0, pad1: 0 };
        let bindings = [(&self.adjusted).into(), (&self.masks).into(), (&self.edits).into(), logits.into()];
        let grid = adjust_logits::grid(u32_of(draws.adjusted.len()), self.vocab);
        pass.dispatch(&pipeline, &params, &bindings, grid);
        Ok(())
    }

    /// The log-probabilities of `asks`, from `[logits, targets]`.
    fn record_top(
        &self,
        pass: &mut Pass,
        draws: &Draws,
        asks: Range<usize>,
        [logits, targets]: [Bind; 2],
    ) -> Result<(), ModelError> {
        if asks.is_empty() {
            return Ok(());
        }
        let pipeline = self.gpu.pipeline(&top_logits::variant())?;
        let params = TopLogitsParams {
            vocab: self.vocab,
            stride: draws.stride(),
            first: u32_of(asks.start),
            neg_inf: f32::NEG_INFINITY,
        };
        let bindings =
            [logits, (&self.asks).into(), targets, (&self.top_ids).into(), (&self.top_log_probs).into()];
        pass.dispatch(&pipeline, &params, &bindings, top_logits::grid(u32_of(asks.len())));
        Ok(())
    }
}

/// Writes `data`; true if the buffer had to grow.
fn write<T: Pod>(gpu: &Gpu, label: &'static str, buf: &mut Buf<T>, data: &[T]) -> Result<bool, ModelError> {
    let grown = fit(gpu, label, buf, data.len())?;
    gpu.write(buf, 0, data);
    Ok(grown)
}

/// Makes room for `len` elements; true if the buffer had to grow.
fn fit<T: Pod>(gpu: &Gpu, label: &'static str, buf: &mut Buf<T>, len: usize) -> Result<bool, ModelError> {
    let grows = buf.len() < len;
    if grows {
        *buf = gpu.buffer(label, len.next_power_of_two())?;
    }
    Ok(grows)
}
