//! Native sparse attention (NSA, arXiv 2502.11089) of models that were trained with it. A query attends the means of whole
//! blocks, the blocks whose means have the largest weights, and a window; gates weight the three outputs, head by head.
//!
//! Means of keys and values lie in caches of their own, one of every block of the KV cache, and are written by the step that
//! fills the block. All rows go one by one, in partitions of one size: neither the batch nor the chunk nor the phase change a
//! row.

mod rows;
mod step;

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::block_digest::{self, BlockDigestBuffers, BlockDigestParams, Digest};
use attn_kernels::kernel::gate_sum::{self, BRANCHES, GateSumBuffers, GateSumParams};
use attn_kernels::kernel::nsa_attend::{self, NsaAttendBuffers, NsaAttendParams};
use attn_kernels::kernel::nsa_block_score::{self, NsaBlockScoreBuffers, NsaBlockScoreParams};
use attn_kernels::kernel::nsa_probs::{self, NsaProbsBuffers, NsaProbsParams};
use attn_kernels::kernel::top_k::{self, Output, TopKBuffers, TopKParams};

use self::rows::{BranchKernels, BranchRows};
use self::step::NsaStep;
use super::head_weights::HeadWeights;
use super::projection::{append, append_kernel, project};
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;
use crate::decoder::keys::Keys;
use crate::decoder::ops::Ctx;
use crate::decoder::portions::{RowTask, attend_rows};
use crate::matrix::Matrix;
use crate::{CachePart, DecoderConfig, ModelError, NsaConfig};

// The shape of the gates in a file is what the kernel takes.
const _: () = assert!(NsaConfig::BRANCHES == BRANCHES);

/// Weights of a layer.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct NsaWeights {
    pub(in crate::decoder) heads: HeadWeights,
    /// Gates of the branches of each head, before the sigmoid, `[num_heads * 3, hidden]`.
    pub(in crate::decoder) gates: Matrix,
}

/// Weights, kernels and buffers.
#[derive(Debug)]
pub(in crate::decoder) struct NsaAttention {
    layers: Arc<[NsaWeights]>,
    config: NsaConfig,
    step: NsaStep,
    rope_append: Arc<Pipeline>,
    /// Kernels for the means of keys and of values.
    means: [Arc<Pipeline>; 2],
    probs: Arc<Pipeline>,
    compress: Arc<Pipeline>,
    score: Arc<Pipeline>,
    top_k: Arc<Pipeline>,
    selected: BranchKernels,
    window: BranchKernels,
    gate_sum: Arc<Pipeline>,
    /// Gates of the branches, `[max_rows, num_heads, 3]`.
    gates: Buf<f32>,
    /// Outputs of the branches, `[max_rows, num_heads * head_dim]`: compressed, selected, window.
    outputs: [Buf<f32>; BRANCHES as usize],
    /// Probabilities of compressed keys for a portion of rows, `[rows, num_heads, prob_stride]`.
    prob: GrowBuf<f32>,
    /// Scores of blocks for a portion of rows, `[rows, num_kv_heads, score_stride]`.
    scores: GrowBuf<f32>,
    /// Selected blocks, `[max_rows, num_kv_heads, list_stride]`: a count, then blocks, ascending.
    lists: Buf<u32>,
    list_stride: u32,
}

impl NsaAttention {
    pub(super) fn new(load: &LoadContext<'_>, layers: &Arc<[NsaWeights]>) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        let nsa = config.nsa.expect("the configuration has NSA");
        let (shape, block, rows) = (kv.shape(), nsa.block_size, options.max_rows as usize);
        // A word for the count; lists are bound at multiples of 256 bytes, of 64 rows each.
        let list_stride = (1 + nsa.block_counts).next_multiple_of(4);
        let width = (config.num_heads * config.head_dim) as usize;
        let output = |name| gpu.buffer(name, rows * width);
        let branch = |attention: &Attention| BranchKernels::new(load, attention);
        Ok(Self {
            layers: Arc::clone(layers),
            config: nsa,
            step: NsaStep::new(load)?,
            rope_append: append_kernel(gpu, config, shape)?,
            means: [
                gpu.pipeline(&block_digest::variant(shape, Digest::Mean))?,
                gpu.pipeline(&block_digest::of_values(shape))?,
            ],
            probs: gpu.pipeline(&nsa_probs::variant(shape, block, block))?,
            compress: gpu.pipeline(&nsa_attend::variant(shape, block))?,
            score: gpu.pipeline(&nsa_block_score::variant(block, block, block))?,
            top_k: gpu.pipeline(&top_k::best(gpu.profile(), Output::List))?,
            selected: branch(&Attention::blocks(block))?,
            window: branch(&Attention::default())?,
            gate_sum: gpu.pipeline(&gate_sum::variant(config.head_dim))?,
            gates: gpu.buffer("branch_gates", rows * (config.num_heads * BRANCHES) as usize)?,
            outputs: [output("compressed")?, output("selected")?, output("window")?],
            prob: GrowBuf::new(gpu, "probs", 1)?,
            scores: GrowBuf::new(gpu, "scores", 1)?,
            lists: gpu.buffer("lists", rows * (config.num_kv_heads * list_stride) as usize)?,
            list_stride,
        })
    }

    /// Plans a step.
    pub(super) fn plan(&mut self, config: &DecoderConfig, slices: &[Slice<'_>], batch: &Batch) {
        self.step.plan(config, &self.config, slices, batch);
    }

    /// Returns the maximum number of partitions of a row.
    pub(super) fn max_partitions(&self) -> u32 {
        self.step.selected_split.max_partitions.max(self.step.window_split.max_partitions)
    }

    /// Uploads the lists of a step, and allocates the buffers for a portion of its rows.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.step.upload(gpu)?;
        let [probs, scores] = self.step.portion_lens();
        self.prob.fit(gpu, probs)?;
        self.scores.fit(gpu, scores)
    }

    /// Records the norm of the layer's input and its attention, and adds the output to the residual.
    pub(super) fn record(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        norm: Option<&Buf<f32>>,
    ) -> Result<(), ModelError> {
        let (weights, act, heads) = (&self.layers[layer], ctx.act, ctx.config.num_heads);
        let (x, _) = ctx.normed(norm, false);
        project(ctx, &weights.heads, x, None)?;
        ctx.exact_product(&weights.gates, x, &self.gates, heads * BRANCHES)?;
        append(ctx, &self.rope_append, &weights.heads, layer, &act.q);
        self.write_means(ctx, layer);
        let rows = &ctx.group_rows(layer).all.decode;
        for start in (0..rows.len()).step_by(self.step.portion) {
            let count = u32_of(self.step.portion.min(rows.len() - start));
            self.compress_and_select(ctx, layer, start, count);
        }
        self.attend(ctx, layer);
        let [compressed, selected, window] = &self.outputs;
        let params = GateSumParams { heads: ctx.rows() * heads };
        let buffers = GateSumBuffers {
            gates: self.gates.bind(),
            compressed: compressed.bind(),
            selected: selected.bind(),
            window: window.bind(),
            out: act.attended.bind(),
        };
        ctx.pass.dispatch(&self.gate_sum, &params, buffers);
        ctx.add_block(&weights.heads.o, &act.attended, weights.heads.post_norm.as_ref())
    }

    /// Records the means of the cache blocks that the step fills.
    fn write_means(&self, ctx: &mut Ctx<'_>, layer: usize) {
        let filled = u32_of(self.step.filled.len());
        if filled == 0 {
            return;
        }
        let (k, v) = ctx.kv.layer(layer);
        let params = BlockDigestParams::new(ctx.config.num_kv_heads, filled);
        let parts = [(k, CachePart::MeanKeys), (v, CachePart::MeanValues)];
        for (pipeline, (cache, means)) in self.means.iter().zip(parts) {
            let buffers = BlockDigestBuffers {
                touched: self.step.filled.bind(),
                k_cache: cache.bind(),
                digests: ctx.kv.buffer(layer, means).bind().cast(),
            };
            ctx.pass.dispatch(pipeline, &params, buffers);
        }
    }

    /// Records the attention of `rows` rows to the means of blocks, and the lists of the blocks with the largest weights.
    fn compress_and_select(&self, ctx: &mut Ctx<'_>, layer: usize, start: usize, rows: u32) {
        let (c, step, act) = (ctx.config, &self.step, ctx.act);
        let (num_heads, num_kv_heads, prob_stride) = (c.num_heads, c.num_kv_heads, step.prob_stride);
        let (list, tables) = (ctx.group_rows(layer).all.decode.bind_from(start), ctx.batch.tables.bind());
        let means = |part| ctx.kv.buffer(layer, part).bind().cast();

        let q_stride = num_heads * c.head_dim;
        let params = NsaProbsParams { num_heads, num_kv_heads, q_stride, prob_stride, scale: c.scale, rows };
        let buffers = NsaProbsBuffers {
            q: act.q.bind(),
            digests: means(CachePart::MeanKeys),
            tables: tables.clone(),
            rows: list.clone(),
            probs: self.prob.bind(),
        };
        ctx.pass.dispatch(&self.probs, &params, buffers);

        let params = NsaAttendParams { num_heads, num_kv_heads, prob_stride, rows };
        let buffers = NsaAttendBuffers {
            probs: self.prob.bind(),
            digests: means(CachePart::MeanValues),
            tables: tables.clone(),
            rows: list.clone(),
            out: self.outputs[0].bind(),
        };
        ctx.pass.dispatch(&self.compress, &params, buffers);

        let params = NsaBlockScoreParams {
            num_heads,
            num_kv_heads,
            prob_stride,
            score_stride: step.score_stride,
            stride: self.config.block_size,
            init_blocks: NsaConfig::INIT_BLOCKS,
            local_blocks: NsaConfig::LOCAL_BLOCKS,
            infinity: f32::INFINITY,
            rows,
        };
        let buffers =
            NsaBlockScoreBuffers { probs: self.prob.bind(), rows: list, scores: self.scores.bind() };
        ctx.pass.dispatch(&self.score, &params, buffers);

        let (sets, first) = (rows * num_kv_heads, start * num_kv_heads as usize);
        let params = TopKParams { rows: sets, out_stride: self.list_stride, copies: 1, page_size: 1 };
        let buffers = TopKBuffers {
            scores: self.scores.bind(),
            rows: step.top_rows.bind_from(first),
            table: tables,
            out: self.lists.bind_from(first * self.list_stride as usize),
        };
        ctx.pass.dispatch(&self.top_k, &params, buffers);
    }

    /// Records the attention of all rows to their selected blocks and to their windows.
    fn attend(&self, ctx: &mut Ctx<'_>, layer: usize) {
        let (step, all) = (&self.step, &ctx.group_rows(layer).all.decode);
        let [_, selected, window] = &self.outputs;
        let branches = [
            BranchRows {
                layer,
                kernels: &self.selected,
                rows: all,
                lists: Some((&self.lists, self.list_stride)),
                split: step.selected_split,
                out: selected,
            },
            BranchRows {
                layer,
                kernels: &self.window,
                rows: &step.window,
                lists: None,
                split: step.window_split,
                out: window,
            },
        ];
        for branch in &branches {
            let max_keys = branch.lists.map_or(u32::MAX, |_| self.config.selected_tokens());
            let max_partitions = branch.split.max_partitions;
            let task = RowTask { rows: branch.rows, max_keys, max_partitions, keys: Keys::Device };
            attend_rows(ctx, &task, branch);
        }
    }
}
