//! Several residual streams in place of one: every block reads a mix of them, and leaves its output to all of them
//! (manifold-constrained hyper-connections).

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};

use super::inputs::Plan;
use super::{Decoder, DecoderOptions};
use crate::kernel::hyper_collapse::{self, HyperCollapseParams};
use crate::kernel::hyper_expand::{self, HyperExpandParams};
use crate::kernel::matmul::Epilogue;
use crate::matrix::{Matrix, Precision, Product, SLACK};
use crate::{DecoderConfig, HyperConfig, ModelError};

/// Weights around one block, or of the end of the streams.
#[derive(Clone, Debug)]
pub(super) struct Hyper {
    /// `[mixes, streams * hidden]`
    pub(super) mix: Matrix,
    /// Base of each mix, then a factor for each kind.
    pub(super) affine: Buf<f32>,
}

/// Kernels and buffers.
#[derive(Debug)]
pub(super) struct HyperState {
    config: HyperConfig,
    /// Weights of the end of the streams.
    end: Hyper,
    first: Arc<Pipeline>,
    collapse: Arc<Pipeline>,
    expand: Arc<Pipeline>,
    last: Arc<Pipeline>,
    /// `[max_rows, streams, hidden]`
    streams: Buf<f32>,
    /// `[max_rows, mixes]`
    mixes: Buf<f32>,
    /// `[max_rows, streams * (1 + streams)]`
    gates: Buf<f32>,
    /// What a block reads, `[max_rows, hidden]`.
    pub(super) collapsed: Buf<f32>,
}

impl HyperState {
    /// What of it comes from a checkpoint.
    pub(super) fn end(&self) -> Hyper {
        self.end.clone()
    }

    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        end: Option<Hyper>,
    ) -> Result<Option<Self>, ModelError> {
        let Some((hyper, end)) = config.hyper.zip(end) else { return Ok(None) };
        let HyperConfig { streams, .. } = hyper;
        let buffer = |name, width: u32| gpu.buffer(name, options.max_rows as usize * width as usize + SLACK);
        Ok(Some(Self {
            end,
            first: gpu.pipeline(&hyper_expand::variant(streams, true))?,
            collapse: gpu.pipeline(&hyper_collapse::variant(streams, false, gpu.level()))?,
            expand: gpu.pipeline(&hyper_expand::variant(streams, false))?,
            last: gpu.pipeline(&hyper_collapse::variant(streams, true, gpu.level()))?,
            streams: buffer("streams", streams * config.hidden_size)?,
            mixes: buffer("mixes", hyper_collapse::mixes(streams, false))?,
            gates: buffer("gates", streams * (1 + streams))?,
            collapsed: buffer("collapsed", config.hidden_size)?,
            config: hyper,
        }))
    }
}

impl Decoder {
    /// Makes every stream the embedding.
    pub(super) fn begin_streams(&self, pass: &mut Pass, rows: u32) {
        if let Some(state) = &self.hyper {
            self.expand(pass, state, &state.first, rows);
        }
    }

    /// Leaves what the next block reads, and zeros for it to add to; without streams it reads and adds to the residual.
    pub(super) fn enter(
        &self,
        pass: &mut Pass,
        hyper: Option<&Hyper>,
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let Some((state, hyper)) = self.hyper.as_ref().zip(hyper) else { return Ok(()) };
        let to = [&state.collapsed, &self.activations.hidden];
        self.collapse(pass, (state, hyper, &state.collapse), false, to, plan)
    }

    /// Adds what the block made to the streams.
    pub(super) fn leave(&self, pass: &mut Pass, rows: u32) {
        if let Some(state) = &self.hyper {
            self.expand(pass, state, &state.expand, rows);
        }
    }

    /// Collapses the streams for the last time, into the residual that the output head reads.
    pub(super) fn end_streams(&self, pass: &mut Pass, plan: &Plan) -> Result<(), ModelError> {
        let Some(state) = &self.hyper else { return Ok(()) };
        let to = [&self.activations.hidden, &state.collapsed];
        self.collapse(pass, (state, &state.end, &state.last), true, to, plan)
    }

    fn expand(&self, pass: &mut Pass, state: &HyperState, pipeline: &Arc<Pipeline>, rows: u32) {
        let width = self.config.hidden_size;
        let params = HyperExpandParams { rows, width, pad0: 0, pad1: 0 };
        let bindings: [Bind; 3] =
            [(&self.activations.hidden).into(), (&state.gates).into(), (&state.streams).into()];
        pass.dispatch(pipeline, &params, &bindings, hyper_expand::grid(rows, width));
    }

    fn collapse(
        &self,
        pass: &mut Pass,
        (state, hyper, pipeline): (&HyperState, &Hyper, &Arc<Pipeline>),
        head: bool,
        [to, block]: [&Buf<f32>; 2],
        plan: &Plan,
    ) -> Result<(), ModelError> {
        let rows = plan.rows;
        let mixes = hyper_collapse::mixes(state.config.streams, head);
        let product = self.product(plan, &state.streams, &state.mixes, mixes);
        // A few numbers decide over whole rows: they are exact.
        let product = Product { precision: Precision::EXACT, epilogue: Epilogue::Store, ..product };
        hyper.mix.multiply(&self.kernels, pass, &product)?;
        let params = HyperCollapseParams {
            rows,
            width: self.config.hidden_size,
            rounds: state.config.rounds,
            norm_eps: self.config.rms_norm_eps,
            eps: state.config.eps,
            pad0: 0,
            pad1: 0,
            pad2: 0,
        };
        let bindings: [Bind; 6] = [
            (&state.mixes).into(),
            (&state.streams).into(),
            (&hyper.affine).into(),
            to.into(),
            (&state.gates).into(),
            block.into(),
        ];
        pass.dispatch(pipeline, &params, &bindings, hyper_collapse::grid(rows));
        Ok(())
    }
}
