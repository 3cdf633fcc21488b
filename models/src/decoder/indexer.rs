//! The indexer of DeepSeek Sparse Attention: scores every token for every query with a few small heads, and keeps the best.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Most, Pass, Pipeline, TopK};
use attn_kernels::kernel::index_logits::{IndexKeys, IndexLogitsParams};
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::top_k::{Output, TopKParams};
use attn_kernels::kernel::{KvDtype, KvShape};

use super::inputs::{Plan, u32_of};
use super::{Decoder, DecoderOptions};
use crate::kernel::index_write::{self, IndexWriteParams};
use crate::kernel::matmul::Epilogue;
use crate::kernel::norm_heads::{self, NormHeadsParams};
use crate::kernel::rope;
use crate::matrix::{Matrix, Precision, Product, SLACK};
use crate::{CachePart, DecoderConfig, IndexerConfig, ModelError};

/// Weights of a layer's indexer.
#[derive(Clone, Debug)]
pub(super) struct Indexer {
    /// From the latent of queries.
    pub(super) q: Matrix,
    pub(super) k: Matrix,
    /// Layer norm of keys: factors, then what is added.
    pub(super) k_norm: Buf<f32>,
    /// Weight of each head, with all constant factors on scores.
    pub(super) gates: Matrix,
}

/// Kernels and buffers.
#[derive(Debug)]
pub(super) struct IndexerState {
    config: IndexerConfig,
    keys: KvShape,
    rope: Arc<Pipeline>,
    norm: Arc<Pipeline>,
    write: Arc<Pipeline>,
    kernel: IndexKernel,
    logits: Arc<Pipeline>,
    top_k: TopK,
    q: Buf<f32>,
    k: Buf<f32>,
    gates: Buf<f32>,
    /// Scores of a portion of rows.
    scores: Buf<f32>,
    /// `[max_rows, 1 + top_k]`: a count, then tokens, ascending.
    lists: Buf<u32>,
    /// Row, first key, keys, first entry of its block table.
    key_rows: Buf<[u32; 4]>,
    /// First score, scores, tokens to choose, 0.
    top_rows: Buf<[u32; 4]>,
}

/// Of the layer norm of keys; no configuration sets it.
const EPS: f32 = 1e-6;

/// Bytes of scores, and of what chooses among them, that exist at one time, unless fewer than [`PORTION`] rows make more.
const SCORE_BYTES: usize = 64 << 20;

/// Portions are multiples of this many rows, for the alignment of bindings.
const PORTION: usize = 64;

impl IndexerState {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
    ) -> Result<Option<Self>, ModelError> {
        let Some(indexer) = config.indexer else { return Ok(None) };
        let IndexerConfig { num_heads, head_dim, top_k } = indexer;
        let dtype = if options.kv_dtype == KvDtype::F32 { KvDtype::F32 } else { KvDtype::F16 };
        let block_size = options.block_size;
        let keys = KvShape { num_kv_heads: 1, head_dim, block_size, dtype };
        let kernel = IndexKernel::new(IndexKeys::Cached(keys), options.coop(gpu));
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        // No list is longer than a sequence.
        let longest = top_k.min(config.context_length) as usize;
        Ok(Some(Self {
            rope: gpu.pipeline(&rope::variant(head_dim, false))?,
            norm: gpu.pipeline(&norm_heads::variant(true, gpu.level()))?,
            write: gpu.pipeline(&index_write::variant(&keys))?,
            kernel,
            logits: gpu.pipeline(&kernel.variant())?,
            top_k: TopK::new(gpu, Output::List)?,
            q: buffer("index_q", num_heads * head_dim)?,
            k: buffer("index_k", head_dim)?,
            gates: buffer("index_gates", num_heads)?,
            scores: gpu.buffer("index_scores", PORTION)?,
            lists: gpu.buffer("index_lists", rows * (1 + longest))?,
            key_rows: gpu.buffer("index_rows", rows)?,
            top_rows: gpu.buffer("index_top_rows", rows)?,
            keys,
            config: indexer,
        }))
    }

    /// Tokens of the longest list of a step.
    fn longest_list(&self, plan: &Plan) -> u32 {
        self.config.top_k.min(plan.longest)
    }

    /// Whether some row of a step has more tokens than it may attend to.
    fn chooses(&self, plan: &Plan) -> bool {
        plan.longest > self.config.top_k
    }

    /// The lists of a step, and the entries from one to the next.
    pub(super) fn lists(&self, plan: &Plan) -> (Bind, u32) {
        ((&self.lists).into(), 1 + self.longest_list(plan))
    }

    /// What was chosen in the layer at hand, as [`lists`](Self::lists).
    pub(super) fn chosen(&self) -> &Buf<u32> {
        &self.lists
    }

    /// Entries of one row of it; `None` where a step chooses nothing.
    pub(super) fn chosen_stride(&self, plan: &Plan) -> Option<usize> {
        self.chooses(plan).then(|| 1 + self.longest_list(plan) as usize)
    }

    /// Scores from row to row.
    fn stride(plan: &Plan) -> u32 {
        plan.longest.next_multiple_of(64)
    }

    /// What bounds the rows of a step.
    fn most(&self, plan: &Plan) -> Most {
        Most { scores: plan.longest, k: self.config.top_k }
    }

    /// Rows whose scores exist at one time.
    fn portion(&self, plan: &Plan) -> usize {
        let row = Self::stride(plan) as usize + self.most(plan).scratch();
        (SCORE_BYTES / (row * 4) / PORTION * PORTION).max(PORTION)
    }

    /// Writes the rows of a step, which all layers share.
    pub(super) fn write(&mut self, gpu: &Gpu, plan: &Plan) -> Result<(), ModelError> {
        if !self.chooses(plan) {
            return Ok(());
        }
        let (portion, stride) = (self.portion(plan), Self::stride(plan));
        let rows = &plan.views[0].all.decode;
        let key_rows: Vec<[u32; 4]> =
            rows.iter().map(|[row, len, table, first]| [*row, *first, *len, *table]).collect();
        let in_portion = |i: usize| u32::try_from(i % portion).expect("at most max_rows");
        let top_row = |(i, row): (usize, &[u32; 4])| [in_portion(i) * stride, row[1], self.config.top_k, 0];
        let top_rows: Vec<[u32; 4]> = rows.iter().enumerate().map(top_row).collect();
        gpu.write(&self.key_rows, 0, &key_rows);
        gpu.write(&self.top_rows, 0, &top_rows);
        let together = portion.min(rows.len());
        let scores = together * stride as usize;
        if self.scores.len() < scores {
            self.scores = gpu.buffer("index_scores", scores.next_power_of_two())?;
            gpu.forget_bind_groups();
        }
        self.top_k.reserve(gpu, u32_of(together), self.most(plan))?;
        Ok(())
    }
}

impl Decoder {
    /// Keeps the keys of new tokens, and leaves the tokens of each row; false where every row may attend to all.
    pub(super) fn choose_tokens(
        &self,
        pass: &mut Pass,
        index: usize,
        weights: &Indexer,
        x: &Buf<f32>,
        plan: &Plan,
    ) -> Result<bool, ModelError> {
        let state = self.latent().indexer.as_ref().expect("a decoder with an indexer has buffers for it");
        let IndexerConfig { num_heads, head_dim, .. } = state.config;
        let rows = plan.rows;
        // What is chosen turns on small differences: queries, keys and gates do not go through cooperative matrices, as rows of
        // prefill would and those of decode would not. All rows are scored alike.
        let exact = |to| Product { precision: Precision::EXACT, epilogue: Epilogue::Store, ..to };
        weights.k.multiply(&self.kernels, pass, &exact(self.product(plan, x, &state.k, head_dim)))?;
        let (heads, width, stride) = (1, head_dim, head_dim);
        let params = NormHeadsParams { rows, heads, width, stride, first: 0, eps: EPS, pad0: 0, pad1: 0 };
        let bindings = [(&weights.k_norm).into(), (&state.k).into()];
        pass.dispatch(&state.norm, &params, &bindings, norm_heads::grid(rows, 1));
        self.turn(pass, &state.rope, [1, head_dim, 0], rows, &state.k);
        let params = IndexWriteParams { rows, row_stride: head_dim, first: 0, pad0: 0 };
        let cache = self.kv.buffer(index, CachePart::IndexKeys);
        let bindings = [(&state.k).into(), (&self.view(index).slots).into(), cache.into()];
        pass.dispatch(&state.write, &params, &bindings, index_write::grid(&state.keys, rows));
        if !state.chooses(plan) {
            return Ok(false);
        }
        let width = num_heads * head_dim;
        let latent = &self.latent().q_latent;
        weights.q.multiply(&self.kernels, pass, &exact(self.product(plan, latent, &state.q, width)))?;
        self.turn(pass, &state.rope, [num_heads, width, 0], rows, &state.q);
        weights.gates.multiply(
            &self.kernels,
            pass,
            &exact(self.product(plan, x, &state.gates, num_heads)),
        )?;
        self.top_tokens(pass, index, state, plan);
        Ok(true)
    }

    /// Scores tokens and keeps the best of each row, portion by portion.
    fn top_tokens(&self, pass: &mut Pass, index: usize, state: &IndexerState, plan: &Plan) {
        let (portion, logit_stride) = (state.portion(plan), IndexerState::stride(plan));
        let total = plan.views[self.layers[index].view].all.decode.len();
        let out_stride = 1 + state.longest_list(plan);
        for start in (0..total).step_by(portion) {
            let rows = u32::try_from(portion.min(total - start)).expect("at most max_rows");
            let from = |buffer: &Buf<[u32; 4]>| Bind::at(buffer.raw(), start as u64 * 16);
            let neg_inf = f32::NEG_INFINITY;
            let params =
                IndexLogitsParams { num_heads: state.config.num_heads, logit_stride, neg_inf, pad0: 0 };
            let bindings = [
                (&state.q).into(),
                self.kv.buffer(index, CachePart::IndexKeys).into(),
                (&self.inputs.tables).into(),
                from(&state.key_rows),
                (&state.gates).into(),
                (&state.scores).into(),
            ];
            pass.dispatch(&state.logits, &params, &bindings, state.kernel.grid(&params, rows));
            let params = TopKParams { rows, out_stride, copies: 1, page_size: 1 };
            let bindings = [
                (&state.scores).into(),
                from(&state.top_rows),
                (&self.inputs.tables).into(),
                Bind::at(state.lists.raw(), start as u64 * u64::from(out_stride) * 4),
            ];
            state.top_k.record(pass, &params, state.most(plan), bindings);
        }
    }
}
