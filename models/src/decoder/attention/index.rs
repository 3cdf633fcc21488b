//! Selection among keys by an indexer: a few small heads score them, and the best are selected. Keys are tokens (DeepSeek Sparse
//! Attention) or compressed entries (DeepSeek V4).

mod format;

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::index_logits::{IndexKeys, IndexLogitsBuffers, IndexLogitsParams};
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::top_k::{Output, TopKBuffers, TopKParams, Transform};
use attn_kernels::launch::{TopK, TopKLimits};
use attn_kernels::rows::{KeyRow, TopRow};
use sparse_select::dsa::chunk::{Memory, rows_at_once};

use self::format::IndexFormat;
use crate::cast::u32_of;
use crate::decoder::buffers::{GrowBuf, StepList};
use crate::decoder::ops::{Ctx, Rotation};
use crate::decoder::options::DecoderOptions;
use crate::kernel::rope;
use crate::matrix::{Matrix, SLACK};
use crate::{CachePart, IndexerConfig, ModelError, Pairing};

/// Kernels and buffers of an indexer.
#[derive(Debug)]
pub(super) struct IndexScorer {
    pub(super) config: IndexerConfig,
    pub(super) rope: Arc<Pipeline>,
    format: IndexFormat,
    logits: Arc<Pipeline>,
    top_k: TopK,
    of: IndexOf,
    q: Buf<f32>,
    gates: Buf<f32>,
    /// Scores of a portion of rows.
    scores: GrowBuf<f32>,
    key_rows: StepList<KeyRow>,
    top_rows: StepList<TopRow>,
    /// Maximum number of keys that a row of the step sees.
    longest: u32,
    /// Number of keys per block of their cache.
    page: u32,
    /// Number of rows whose scores exist at one time.
    portion: usize,
    /// Memory that scores may partly use; `None` if it is unknown.
    memory: Option<Memory>,
    max_bytes: u64,
}

/// Keys that an indexer selects among.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IndexOf {
    /// Tokens: selections are ascending lists after a count.
    Tokens,
    /// Compressed entries: selections are slots.
    Entries,
}

/// Weights of queries and gates.
#[derive(Clone, Debug)]
pub(in crate::decoder) struct IndexQueries {
    /// Projection from the latent of queries to the indexer's queries.
    pub(in crate::decoder) q: Matrix,
    /// Projection to the weight of each head, times all constant factors on scores.
    pub(in crate::decoder) gates: Matrix,
}

/// One selection for all rows of a step.
pub(super) struct IndexSelection<'a> {
    pub(super) layer: usize,
    pub(super) weights: &'a IndexQueries,
    pub(super) q_latent: &'a Buf<f32>,
    /// Input of the gates.
    pub(super) x: &'a Buf<f32>,
    pub(super) rotation: Rotation<'a>,
    /// Buffer for the selected lists, `[rows, stride]`.
    pub(super) to: &'a Buf<u32>,
    pub(super) stride: u32,
}

/// Maximum number of bytes of scores and scratch memory at one time if the free memory is unknown, unless fewer than
/// [`PORTION`] rows need more.
const SCORE_BYTES: usize = 64 << 20;

/// Number that divides the number of rows of every portion, for the alignment of bindings.
pub(super) const PORTION: usize = 64;

/// Returns the number of rows whose scores exist at the same time, out of `rows` rows of `words` words. If the free
/// memory is known, the published rule decides. A binding holds `max_bytes` bytes.
pub(super) fn portion(rows: usize, words: usize, memory: Option<Memory>, max_bytes: u64) -> usize {
    let row_bytes = words.max(1) * size_of::<f32>();
    let together = match memory.map(|memory| rows_at_once(rows, words, memory)) {
        Some(all) if all >= rows => all.next_multiple_of(PORTION),
        Some(some) => some,
        None => SCORE_BYTES / row_bytes,
    };
    let bound = usize::try_from(max_bytes).unwrap_or(usize::MAX) / row_bytes;
    (together.min(bound) / PORTION * PORTION).max(PORTION)
}

/// Returns the distance from one row's scores to the next.
fn score_stride(longest: u32) -> u32 {
    longest.next_multiple_of(64)
}

impl IndexScorer {
    pub(super) fn new(
        gpu: &Gpu,
        options: &DecoderOptions,
        config: IndexerConfig,
        keys: IndexKeys,
        of: IndexOf,
    ) -> Result<Self, ModelError> {
        let IndexerConfig { num_heads, head_dim, .. } = config;
        let kernel = IndexKernel::new(keys, &gpu.profile().rounded(options.uses_coop(gpu)));
        let rows = options.max_rows as usize;
        let buffer = |name, width: u32| gpu.buffer(name, rows * width as usize + SLACK);
        // Heads over entries rotate as the attention to them does.
        let pairing = match of {
            IndexOf::Tokens => Pairing::Halves,
            IndexOf::Entries => Pairing::Interleaved,
        };
        Ok(Self {
            rope: gpu.pipeline(&rope::variant(head_dim, pairing))?,
            format: IndexFormat::new(gpu, keys)?,
            logits: gpu.pipeline(&kernel.variant())?,
            top_k: TopK::new(
                gpu,
                match of {
                    IndexOf::Tokens => Output::List,
                    IndexOf::Entries => Output::Positions(Transform::Paged),
                },
            )?,
            of,
            q: buffer("index_q", num_heads * head_dim)?,
            gates: buffer("index_gates", num_heads)?,
            scores: GrowBuf::new(gpu, "index_scores", PORTION)?,
            key_rows: StepList::new(gpu, "index_rows", rows)?,
            top_rows: StepList::new(gpu, "index_top_rows", rows)?,
            longest: 0,
            page: keys.head_dim_and_page().1,
            portion: PORTION,
            memory: options.score_memory,
            max_bytes: gpu.max_binding_bytes(),
            config,
        })
    }

    /// Length of a row of queries, in f32.
    pub(super) fn width(&self) -> u32 {
        self.config.num_heads * self.config.head_dim
    }

    /// Returns the limits of a selection: how many scores a row has at most, and how many keys it selects.
    fn limits(&self, longest: u32) -> TopKLimits {
        TopKLimits { max_scores: longest, max_k: self.config.top_k }
    }

    /// Plans the rows of a step, which all layers share.
    pub(super) fn plan(&mut self, rows: impl Iterator<Item = KeyRow>, longest: u32) {
        self.key_rows.clear();
        self.key_rows.extend(rows);
        let row = score_stride(longest) as usize + self.limits(longest).scratch();
        self.portion = portion(self.key_rows.len(), row, self.memory, self.max_bytes);
        let (portion, stride) = (self.portion, score_stride(longest));
        let top_row = |(i, row): (usize, &KeyRow)| TopRow {
            first: u32_of(i % portion) * stride,
            scores: row.end,
            k: self.config.top_k,
            table: if self.of == IndexOf::Entries { row.table } else { 0 },
        };
        self.top_rows.clear();
        self.top_rows.extend(self.key_rows.iter().enumerate().map(top_row));
        self.longest = longest;
    }

    /// Uploads the rows, and allocates their scores.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        if self.key_rows.is_empty() {
            return Ok(());
        }
        self.key_rows.upload(gpu)?;
        self.top_rows.upload(gpu)?;
        let together = self.portion.min(self.key_rows.len());
        self.scores.fit(gpu, together * score_stride(self.longest) as usize)?;
        self.top_k.reserve(gpu, u32_of(together), self.limits(self.longest))?;
        Ok(())
    }

    /// Records the write of the keys of `rows` vectors to the cache.
    pub(super) fn append(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        vectors: &Buf<f32>,
        slots: &Buf<i32>,
        rows: u32,
    ) {
        let cache = ctx.kv.buffer(layer, CachePart::IndexKeys);
        self.format.append(ctx, rows, vectors, slots, cache);
    }

    /// Records the selection of a step. The selection depends on small differences of scores, so queries and gates do not
    /// use cooperative matrices, which would treat prefill and decode rows differently.
    pub(super) fn select(&self, ctx: &mut Ctx<'_>, choice: &IndexSelection<'_>) -> Result<(), ModelError> {
        ctx.exact_product(&choice.weights.q, choice.q_latent, &self.q, self.width())?;
        ctx.rotate(&self.rope, choice.rotation, &self.q);
        ctx.exact_product(&choice.weights.gates, choice.x, &self.gates, self.config.num_heads)?;
        self.format.round_queries(ctx, ctx.rows() * self.config.num_heads, &self.q, &self.gates);
        for start in (0..self.key_rows.len()).step_by(self.portion) {
            self.select_portion(ctx, choice, start, u32_of(self.portion.min(self.key_rows.len() - start)));
        }
        Ok(())
    }

    fn select_portion(&self, ctx: &mut Ctx<'_>, choice: &IndexSelection<'_>, start: usize, rows: u32) {
        let (num_heads, neg_inf) = (self.config.num_heads, f32::NEG_INFINITY);
        let logit_stride = score_stride(self.longest);
        let params = IndexLogitsParams { num_heads, logit_stride, neg_inf, rows };
        let buffers = IndexLogitsBuffers {
            q: self.q.bind(),
            k_cache: ctx.kv.buffer(choice.layer, CachePart::IndexKeys).bind(),
            tables: ctx.batch.tables.bind(),
            rows: self.key_rows.bind_from(start),
            gates: self.gates.bind(),
            logits: self.scores.bind(),
        };
        ctx.pass.dispatch(&self.logits, &params, buffers);
        let page_size = if self.of == IndexOf::Entries { self.page } else { 1 };
        let params = TopKParams { rows, out_stride: choice.stride, copies: 1, page_size };
        let buffers = TopKBuffers {
            scores: self.scores.bind(),
            rows: self.top_rows.bind_from(start),
            table: ctx.batch.tables.bind(),
            out: choice.to.bind_from(start * choice.stride as usize),
        };
        self.top_k.record(ctx.pass, &params, self.limits(self.longest), buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_follow_what_memory_is_free() {
        let free = |mib: u64| Some(Memory { free: mib << 20, total: 64 << 30 });
        let rows = |memory| portion(8192, 1 << 17, memory, 2 << 30);
        // A row takes 512 KiB, all of them 4 GiB.
        assert_eq!([free(16 << 10), free(1 << 10), free(100), free(0)].map(rows), [4096, 1024, 64, 64]);
        assert_eq!(rows(None), 128, "64 MiB");
        // Few scores are one portion.
        assert_eq!(portion(100, 1024, free(0), 2 << 30), 128);
        assert_eq!(portion(0, 64, free(0), 2 << 30), PORTION);
    }
}
