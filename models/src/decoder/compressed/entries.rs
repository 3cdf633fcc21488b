//! Compressors: what tokens keep for entries, and the entries that a step completes.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::v4_compress::{self, V4CompressParams};

use super::places::Places;
use crate::decoder::Decoder;
use crate::decoder::inputs::{Plan, u32_of};
use crate::kernel::state_write::{self, StateWriteParams};
use crate::matrix::Matrix;
use crate::{CachePart, Compressor, DecoderConfig, DecoderOptions, ModelError};

/// Weights of a compressor.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct CompressorWeights {
    /// To a token's state, `[2 * windows * dim, hidden]`: values, then scores.
    pub(in crate::decoder) states: Matrix,
    /// Added to scores by the place in a window, `[ratio, windows * dim]`.
    pub(in crate::decoder) bias: Buf<f32>,
    /// Norm of entries, `[dim]`.
    pub(in crate::decoder) norm: Buf<f32>,
}

/// Kernels and buffers.
#[derive(Debug)]
pub(super) struct EntryState {
    write: Arc<Pipeline>,
    /// By kind, for entries and, where there is an indexer, for its keys.
    compress: Vec<[Arc<Pipeline>; 2]>,
    /// `[max_rows, 2 * windows * dim]`
    states: Buf<f32>,
    /// `[entries, dim]`
    pub(super) entries: Buf<f32>,
}

/// The cache that a compressor's states go to, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateCache {
    pub(super) part: CachePart,
    pub(super) kind: usize,
    /// Group of states.
    pub(super) group: usize,
    pub(super) dim: u32,
}

impl EntryState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        places: &Places,
        rope_dim: u32,
    ) -> Result<Self, ModelError> {
        let index_dim = config.indexer.map_or(config.head_dim, |indexer| indexer.head_dim);
        let dims = [config.head_dim, index_dim];
        let compress = |compressor: &Compressor| {
            let of = |dim| gpu.pipeline(&v4_compress::variant(dim, rope_dim, compressor.indexed));
            Ok([of(dims[0])?, of(if compressor.indexed { dims[1] } else { dims[0] })?])
        };
        let widest = config.head_dim.max(index_dim) as usize;
        let windows = places.kinds.iter().map(|kind| kind.compressor.windows()).max().unwrap_or(1) as usize;
        let rows = options.max_rows as usize;
        Ok(Self {
            write: gpu.pipeline(&state_write::variant())?,
            compress: places
                .kinds
                .iter()
                .map(|kind| compress(&kind.compressor))
                .collect::<Result<_, ModelError>>()?,
            states: gpu.buffer("states", rows * 2 * windows * widest)?,
            entries: gpu.buffer("entries", rows * widest)?,
        })
    }
}

impl Decoder {
    /// Keeps the states of the step's tokens, and leaves the entries that they complete in a buffer; how many there are.
    pub(super) fn compress(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &CompressorWeights,
        cache: StateCache,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<u32, ModelError> {
        let state = self.compressed();
        let StateCache { part, kind, group, dim } = cache;
        let compressor = state.places.kinds[kind].compressor;
        let width = 2 * compressor.windows() * dim;
        let (buffers, lists) = (&state.entries, &state.lists.states[group]);
        // States are kept as they are, and indexers choose by small differences: no product goes through matrices of f16.
        weights.states.multiply(&self.kernels, pass, &self.exactly(plan, x, &buffers.states, width))?;
        let (page, block_size) = self.kv.page(index, part);
        let params = StateWriteParams { rows: plan.rows, quads: width / 4, block_size, page: page / 4 };
        let states = self.kv.buffer(index, part);
        let bindings: [Bind; 3] = [(&buffers.states).into(), (&lists.slots).into(), states.into()];
        pass.dispatch(&buffers.write, &params, &bindings, state_write::grid(plan.rows, width / 4));
        let step = plan.compressed.as_ref().expect("a step of compressed attention");
        let entries = u32_of(step.states[group].entries.len());
        if entries > 0 {
            let eps = self.config.rms_norm_eps;
            let params = V4CompressParams { ratio: compressor.ratio, state_block: block_size, page, eps };
            let bindings: [Bind; 7] = [
                states.into(),
                (&weights.bias).into(),
                (&weights.norm).into(),
                (&lists.entries).into(),
                (&self.inputs.tables).into(),
                (&state.lists.kinds[kind].turns).into(),
                (&buffers.entries).into(),
            ];
            let pipeline = &buffers.compress[kind][usize::from(part == CachePart::IndexStates)];
            pass.dispatch(pipeline, &params, &bindings, v4_compress::grid(entries));
        }
        Ok(entries)
    }
}
