//! Compressors: states that tokens leave, and entries that a step completes.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::v4_compress::{self, EntryShape, V4CompressBuffers, V4CompressParams};

use super::CompressedAttention;
use super::caches::CompressedCaches;
use crate::cast::u32_of;
use crate::decoder::ops::Ctx;
use crate::kernel::state_write::{self, StateWriteBuffers, StateWriteParams};
use crate::matrix::Matrix;
use crate::{CachePart, Compressor, DecoderConfig, DecoderOptions, ModelError};

/// Weights of a compressor.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct CompressorWeights {
    /// Matrix from hidden states to compressor states, `[2 * windows * dim, hidden]`: values, then scores.
    pub(in crate::decoder) states: Matrix,
    /// Bias that is added to scores, by position within a window, `[ratio, windows * dim]`.
    pub(in crate::decoder) bias: Buf<f32>,
    /// Norm of entries, `[dim]`.
    pub(in crate::decoder) norm: Buf<f32>,
}

/// Kernels and buffers of the compressors.
#[derive(Debug)]
pub(super) struct EntryState {
    write: Arc<Pipeline>,
    /// Kernels of each kind: for entries, and for the keys of the indexer if there is one.
    compress: Vec<[Arc<Pipeline>; 2]>,
    /// States of the step's tokens, `[max_rows, 2 * windows * dim]`.
    states: Buf<f32>,
    /// Entries that the step completes, `[entries, dim]`.
    pub(super) entries: Buf<f32>,
}

/// A cache of compressor states.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateCache {
    pub(super) layer: usize,
    pub(super) part: CachePart,
    pub(super) kind: usize,
    /// Index of the cache's kind of states.
    pub(super) group: usize,
    pub(super) dim: u32,
}

impl EntryState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        caches: &CompressedCaches,
    ) -> Result<Self, ModelError> {
        let rope_dim = config.compressed.as_ref().map_or(0, |compressed| compressed.rope.rotary_dims);
        let index_dim = config.indexer.map_or(config.head_dim, |indexer| indexer.head_dim);
        let dims = [config.head_dim, index_dim];
        let compress = |compressor: &Compressor| {
            let windows = compressor.windows();
            let of = |dim| gpu.pipeline(&v4_compress::variant(&EntryShape { dim, rope: rope_dim, windows }));
            Ok([of(dims[0])?, of(if compressor.indexed { dims[1] } else { dims[0] })?])
        };
        let widest = config.head_dim.max(index_dim) as usize;
        let windows = caches.kinds.iter().map(|kind| kind.compressor.windows()).max().unwrap_or(1) as usize;
        let rows = options.max_rows as usize;
        Ok(Self {
            write: gpu.pipeline(&state_write::variant())?,
            compress: caches
                .kinds
                .iter()
                .map(|kind| compress(&kind.compressor))
                .collect::<Result<_, ModelError>>()?,
            states: gpu.buffer("states", rows * 2 * windows * widest)?,
            entries: gpu.buffer("entries", rows * widest)?,
        })
    }
}

impl CompressedAttention {
    /// Records the states of the step's tokens, and the entries that they complete, into a buffer. Returns the number of entries.
    pub(super) fn compress(
        &self,
        ctx: &mut Ctx<'_>,
        weights: &CompressorWeights,
        cache: StateCache,
        x: &Buf<f32>,
    ) -> Result<u32, ModelError> {
        let StateCache { layer, part, kind, group, dim } = cache;
        let compressor = self.caches.kinds[kind].compressor;
        let width = 2 * compressor.windows() * dim;
        let (buffers, lists) = (&self.entries, &self.step.states[group]);
        // States are kept as they are, and indexers choose by small differences: no product goes through matrices of f16.
        ctx.exact_product(&weights.states, x, &buffers.states, width)?;
        let (block_words, block_size) = ctx.kv.block_words(layer, part);
        let rows = ctx.rows();
        let params = StateWriteParams { rows, quads: width / 4, block_size, page: block_words / 4 };
        let states = ctx.kv.buffer(layer, part);
        let written =
            StateWriteBuffers { x: buffers.states.bind(), slots: lists.slots.bind(), states: states.bind() };
        ctx.pass.dispatch(&buffers.write, &params, written);
        let entries = u32_of(lists.entries.len());
        if entries > 0 {
            let params = V4CompressParams {
                ratio: compressor.ratio,
                state_block: block_size,
                page: block_words,
                eps: ctx.config.rms_norm_eps,
                entries,
            };
            let compressed = V4CompressBuffers {
                states: states.bind(),
                ape: weights.bias.bind(),
                norm: weights.norm.bind(),
                entries: lists.entries.bind(),
                tables: ctx.batch.tables.bind(),
                angles: self.step.kinds[kind].cos_sin.bind(),
                out: buffers.entries.bind(),
            };
            let pipeline = &buffers.compress[kind][usize::from(part == CachePart::IndexStates)];
            ctx.pass.dispatch(pipeline, &params, compressed);
        }
        Ok(entries)
    }
}
