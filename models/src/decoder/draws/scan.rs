//! A scan of logits by many workgroups, whose results the kernels with one workgroup per row start from.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};

use crate::ModelError;
use crate::cast::u32_of;
use crate::kernel::sample::Spec;
use crate::kernel::scan_logits::{
    self, LANES, ScanLogitsBuffers, ScanLogitsParams, TOKENS_PER_LANE, TOKENS_PER_LANE_ON_CPU,
};

/// Results of the last scan of logits.
#[derive(Debug)]
pub(super) struct Scan {
    pipeline: Arc<Pipeline>,
    vocab: u32,
    /// Number of tokens per part of a row.
    pub(super) each: u32,
    pub(super) maxima: Buf<f32>,
    pub(super) values: Buf<[f32; 4]>,
    pub(super) ids: Buf<[u32; 2]>,
}

impl Scan {
    /// Buffers for up to `rows` rows.
    pub(super) fn new(gpu: &Gpu, vocab: u32, rows: usize) -> Result<Self, ModelError> {
        let each = if gpu.profile().software { TOKENS_PER_LANE_ON_CPU } else { TOKENS_PER_LANE };
        let parts = rows * scan_logits::parts(vocab, each) as usize;
        Ok(Self {
            pipeline: gpu.pipeline(&scan_logits::variant(each))?,
            vocab,
            each,
            maxima: gpu.buffer("logit_maxima", parts * LANES as usize)?,
            values: gpu.buffer("logit_values", parts)?,
            ids: gpu.buffer("logit_ids", parts)?,
        })
    }

    /// Number of parts of a row.
    pub(super) fn parts(&self) -> u32 {
        scan_logits::parts(self.vocab, self.each)
    }

    /// Records a scan of `rows` rows; if `draws` is set, tokens are sampled from them by `specs`.
    pub(super) fn record(
        &self,
        pass: &mut Pass,
        logits: &Buf<f32>,
        specs: &Buf<Spec>,
        rows: usize,
        draws: bool,
    ) {
        let params = ScanLogitsParams {
            vocab: self.vocab,
            parts: self.parts(),
            draws: u32::from(draws),
            rows: u32_of(rows),
            neg_inf: f32::NEG_INFINITY,
        };
        let buffers = ScanLogitsBuffers {
            logits: logits.bind(),
            specs: specs.bind(),
            maxima: self.maxima.bind(),
            values: self.values.bind(),
            ids: self.ids.bind(),
        };
        pass.dispatch(&self.pipeline, &params, buffers);
    }
}
