//! Several residual streams instead of one: attention and MLP read a weighted sum of the streams, and add their output to all of
//! them (manifold-constrained hyper-connections).

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};

use super::activations::Activations;
use super::ops::Ctx;
use super::options::DecoderOptions;
use crate::kernel::hyper_collapse::{self, HyperCollapseBuffers, HyperCollapseParams, Reader};
use crate::kernel::hyper_expand::{self, HyperExpandBuffers, HyperExpandParams, StreamForm};
use crate::matrix::{Matrix, SLACK};
use crate::{DecoderConfig, HyperConfig, ModelError};

/// Hyper-connection weights of one half of a layer, or of the last sum of the residual streams.
#[derive(Clone, Debug)]
pub(super) struct Hyper {
    /// Projection to the mixing coefficients, `[mixes, streams * hidden]`.
    pub(super) mix: Matrix,
    /// Bias of each mix, then a factor for each kind of mix.
    pub(super) affine: Buf<f32>,
}

/// Weights of the hyper-connections of all layers.
#[derive(Clone, Debug)]
pub(super) struct HyperWeights {
    pub(super) config: HyperConfig,
    /// Weights around attention and around the MLP of each layer.
    pub(super) layers: Arc<[[Hyper; 2]]>,
    /// Weights of the end of the streams.
    pub(super) end: Hyper,
}

/// The residual that halves of layers read and add to.
#[derive(Debug)]
pub(super) enum Residual {
    /// One stream.
    One,
    /// Several streams, mixed for each half of a layer.
    Several(HyperState),
}

/// Half of a layer.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Attention,
    Mlp,
}

/// Kernels and buffers of several residual streams.
#[derive(Debug)]
pub(super) struct HyperState {
    weights: HyperWeights,
    first: Arc<Pipeline>,
    collapse: Arc<Pipeline>,
    expand: Arc<Pipeline>,
    last: Arc<Pipeline>,
    /// Residual streams, `[max_rows, streams, hidden]`.
    streams: Buf<f32>,
    /// Mixing coefficients, `[max_rows, mixes]`.
    mixes: Buf<f32>,
    /// Gates of the output of half a layer, `[max_rows, streams * (1 + streams)]`.
    gates: Buf<f32>,
    /// Input of half a layer, `[max_rows, hidden]`.
    block_in: Buf<f32>,
    /// Sum of the outputs of half a layer, `[max_rows, hidden]`.
    block_out: Buf<f32>,
}

/// A weighted sum of the streams.
struct Collapse<'a> {
    hyper: &'a Hyper,
    reader: Reader,
    to: &'a Buf<f32>,
}

impl Residual {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        weights: Option<&HyperWeights>,
    ) -> Result<Self, ModelError> {
        let Some(weights) = weights else { return Ok(Self::One) };
        let streams = weights.config.streams;
        let buffer = |name, width: u32| gpu.buffer(name, options.max_rows as usize * width as usize + SLACK);
        let collapse = |reader| {
            gpu.pipeline(&gpu.profile().best(|level| hyper_collapse::variant(streams, reader, level)))
        };
        Ok(Self::Several(HyperState {
            weights: weights.clone(),
            first: gpu.pipeline(&hyper_expand::variant(streams, StreamForm::Begin))?,
            collapse: collapse(Reader::Block)?,
            expand: gpu.pipeline(&hyper_expand::variant(streams, StreamForm::Add))?,
            last: collapse(Reader::Head)?,
            streams: buffer("streams", streams * config.hidden_size)?,
            mixes: buffer("mixes", hyper_collapse::mixes(streams, Reader::Block))?,
            gates: buffer("gates", streams * (1 + streams))?,
            block_in: buffer("block_in", config.hidden_size)?,
            block_out: buffer("block_out", config.hidden_size)?,
        }))
    }

    /// Returns the buffer that half a layer reads, and the buffer that it adds to.
    pub(super) fn of_blocks<'a>(&'a self, act: &'a Activations) -> [&'a Buf<f32>; 2] {
        match self {
            Self::One => [&act.residual; 2],
            Self::Several(state) => [&state.block_in, &state.block_out],
        }
    }

    /// Copies the embedding into every stream.
    pub(super) fn begin(&self, ctx: &mut Ctx<'_>) {
        if let Self::Several(state) = self {
            let embedded = &ctx.act.residual;
            state.expand(ctx, &state.first, embedded);
        }
    }

    /// Writes the input of the next half of a layer, and zeros its output. One stream is used as it is.
    pub(super) fn enter(&self, ctx: &mut Ctx<'_>, layer: usize, half: Half) -> Result<(), ModelError> {
        let Self::Several(state) = self else { return Ok(()) };
        let hyper = &state.weights.layers[layer][half as usize];
        state.collapse(ctx, &Collapse { hyper, reader: Reader::Block, to: &state.block_in })
    }

    /// Adds the output of half a layer to the streams.
    pub(super) fn leave(&self, ctx: &mut Ctx<'_>) {
        if let Self::Several(state) = self {
            state.expand(ctx, &state.expand, &state.block_out);
        }
    }

    /// Sums the streams for the last time, into the residual that the output head reads.
    pub(super) fn end(&self, ctx: &mut Ctx<'_>) -> Result<(), ModelError> {
        let Self::Several(state) = self else { return Ok(()) };
        let (to, hyper) = (&ctx.act.residual, &state.weights.end);
        state.collapse(ctx, &Collapse { hyper, reader: Reader::Head, to })
    }
}

impl HyperState {
    fn expand(&self, ctx: &mut Ctx<'_>, pipeline: &Arc<Pipeline>, block: &Buf<f32>) {
        let (rows, width) = (ctx.rows(), ctx.config.hidden_size);
        let params = HyperExpandParams { rows, width };
        let buffers = HyperExpandBuffers {
            block: block.bind(),
            gates: self.gates.bind(),
            streams: self.streams.bind(),
        };
        ctx.pass.dispatch(pipeline, &params, buffers);
    }

    fn collapse(&self, ctx: &mut Ctx<'_>, how: &Collapse<'_>) -> Result<(), ModelError> {
        let HyperConfig { streams, rounds, eps, .. } = self.weights.config;
        // A few numbers decide over whole rows: they are exact.
        let mixes = hyper_collapse::mixes(streams, how.reader);
        ctx.exact_product(&how.hyper.mix, &self.streams, &self.mixes, mixes)?;
        let params = HyperCollapseParams {
            rows: ctx.rows(),
            width: ctx.config.hidden_size,
            rounds,
            norm_eps: ctx.config.rms_norm_eps,
            eps,
        };
        let buffers = HyperCollapseBuffers {
            mixes: self.mixes.bind(),
            streams: self.streams.bind(),
            affine: how.hyper.affine.bind(),
            out: how.to.bind(),
            gates: self.gates.bind(),
            block: self.block_out.bind(),
        };
        let pipeline = match how.reader {
            Reader::Block => &self.collapse,
            Reader::Head => &self.last,
        };
        ctx.pass.dispatch(pipeline, &params, buffers);
        Ok(())
    }
}
