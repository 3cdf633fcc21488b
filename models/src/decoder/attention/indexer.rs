//! The indexer of DeepSeek Sparse Attention, which selects the tokens of every query.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::rows::{DecodeRow, KeyRow};

use super::index::{IndexOf, IndexQueries, IndexScorer, IndexSelection};
use crate::decoder::batch::Batch;
use crate::decoder::ops::{Ctx, HeadSlices};
use crate::decoder::options::DecoderOptions;
use crate::kernel::norm_heads;
use crate::kernel::norm_heads::NormHeadsBuffers;
use crate::matrix::{Matrix, SLACK};
use crate::{DecoderConfig, IndexerConfig, ModelError};

/// Weights of a layer's indexer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct IndexerWeights {
    pub(in crate::decoder) queries: IndexQueries,
    pub(in crate::decoder) k: Matrix,
    /// Layer norm of keys: factors, then biases.
    pub(in crate::decoder) k_norm: Buf<f32>,
}

/// Kernels and buffers of the indexer.
#[derive(Debug)]
pub(super) struct IndexerState {
    scorer: IndexScorer,
    norm: Arc<Pipeline>,
    k: Buf<f32>,
    /// Selected tokens, `[max_rows, 1 + top_k]`: a count, then tokens, ascending.
    lists: Buf<u32>,
}

/// Epsilon of the layer norm of keys; no configuration sets it.
const EPS: f32 = 1e-6;

impl IndexerState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        indexer: IndexerConfig,
    ) -> Result<Self, ModelError> {
        let IndexerConfig { head_dim, top_k, .. } = indexer;
        let keys = options.kv().of_index().keys(head_dim, options.block_size);
        let rows = options.max_rows as usize;
        // No list is longer than a sequence.
        let longest = top_k.min(config.context_length) as usize;
        let norm = gpu.profile().best(|level| norm_heads::variant(norm_heads::Norm::Layer, level));
        Ok(Self {
            scorer: IndexScorer::new(gpu, options, indexer, keys, IndexOf::Tokens)?,
            norm: gpu.pipeline(&norm)?,
            k: gpu.buffer("index_k", rows * head_dim as usize + SLACK)?,
            lists: gpu.buffer("index_lists", rows * (1 + longest))?,
        })
    }

    /// Returns the number of tokens of the longest list of a step.
    pub(super) fn longest_list(&self, batch: &Batch) -> u32 {
        self.scorer.config.top_k.min(batch.longest)
    }

    /// Whether some row of a step sees more tokens than it may attend.
    pub(super) fn selects(&self, batch: &Batch) -> bool {
        batch.longest > self.scorer.config.top_k
    }

    /// Returns the selection of the current layer: for each row, a count and space for
    /// [`longest_list`](Self::longest_list) tokens.
    pub(super) fn lists(&self) -> &Buf<u32> {
        &self.lists
    }

    /// Plans the rows of a step, which all layers share.
    pub(super) fn plan(&mut self, batch: &Batch) {
        let key_row = |row: &DecodeRow| KeyRow {
            row: row.row,
            first_key: row.first_key,
            end: row.len,
            table: row.table,
        };
        let rows = if self.selects(batch) { &batch.attn_groups[0].all.decode[..] } else { &[] };
        self.scorer.plan(rows.iter().map(key_row), batch.longest);
    }

    /// Uploads the rows.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.scorer.upload(gpu)
    }

    /// Records the write of new keys and the selection of each row's tokens. Returns false if every row may attend all it sees.
    pub(super) fn select(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        weights: &IndexerWeights,
        q_latent: &Buf<f32>,
        x: &Buf<f32>,
    ) -> Result<bool, ModelError> {
        let dim = self.scorer.config.head_dim;
        ctx.exact_product(&weights.k, x, &self.k, dim)?;
        let on = NormHeadsBuffers { weight: weights.k_norm.bind(), x: self.k.bind() };
        ctx.norm_head_slices_by(&self.norm, HeadSlices::of(1, dim), EPS, on);
        ctx.rotate(&self.scorer.rope, ctx.rotation(1, dim, 0), &self.k);
        self.scorer.append(ctx, layer, &self.k, ctx.group_rows(layer).slots.on_device(), ctx.rows());
        if !self.selects(ctx.batch) {
            return Ok(false);
        }
        let choice = IndexSelection {
            layer,
            weights: &weights.queries,
            q_latent,
            x,
            rotation: ctx.rotation(self.scorer.config.num_heads, self.scorer.width(), 0),
            to: &self.lists,
            stride: 1 + self.longest_list(ctx.batch),
        };
        self.scorer.select(ctx, &choice)?;
        Ok(true)
    }
}
