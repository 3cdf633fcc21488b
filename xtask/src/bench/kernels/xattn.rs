//! XAttention of a prompt: the estimate of its blocks, kernel by kernel. Built here and not by cases of self-tests, because the
//! kernels read what the ones before have written of one structured prompt, chunk by chunk.

use std::ops::Range;

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::find_blocks::{self, Vote};
use attn_kernels::kernel::softmax_block_sum;
use attn_kernels::kernel::strided_qk::Scorer;
use attn_kernels::kernel::xattn::Estimate;

use super::attention::Heads;
use super::prompt::{BLOCK, Prompt, Selects, list_stride, pairs};
use super::work::{Bench, Timed, Work};

/// Number of tokens between antidiagonals.
const STRIDE: u32 = 8;

/// Share of the estimated mass that is kept. Strided scores do not find lines, which are too thin. They find the
/// blocks of the sink and the band, with a mass of 0.956; the whole structure has a mass of 0.97.
const THRESHOLD: f32 = 0.965;

/// Buffers of the estimate of a prompt's chunks.
struct XAttention {
    scorer: Scorer,
    thresholds: Buf<f32>,
    strides: Buf<u32>,
    parts: Buf<f32>,
    sums: Buf<f32>,
}

/// Allocates the buffers for estimating a prompt's chunks.
pub(super) fn method(gpu: &Gpu, prompt: &Prompt) -> Result<Box<dyn Selects>> {
    Ok(Box::new(XAttention::new(gpu, prompt)?))
}

impl XAttention {
    fn new(gpu: &Gpu, prompt: &Prompt) -> Result<Self> {
        // The last chunk sees all keys.
        let chunk = estimate(&prompt.heads, &prompt.last());
        let [parts, sums] = chunk.scratch_lens(chunk.query_blocks());
        let scorer = Scorer::best(gpu.profile(), &prompt.heads.shape, STRIDE, BLOCK);
        let strides = chunk.stride_rows(chunk.query_blocks()) * scorer.row_words as usize;
        Ok(Self {
            scorer,
            strides: gpu.buffer("strides", strides)?,
            thresholds: gpu.upload("thresholds", &vec![THRESHOLD; prompt.heads.num_heads as usize])?,
            parts: gpu.buffer("parts", parts)?,
            sums: gpu.buffer("sums", sums)?,
        })
    }

    /// The four kernels over one chunk, each with its reads and writes.
    fn kernels(&self, gpu: &Gpu, prompt: &Prompt, rows: &Range<u32>, lists: &Buf<u32>) -> [Work; 4] {
        let (heads, e) = (&prompt.heads, estimate(&prompt.heads, rows));
        let shape = &heads.shape;
        let blocks = 0..e.query_blocks();
        let (of_queries, strided) = (e.stride_queries(&blocks), e.strided_qk(shape, &blocks));
        let Scorer { queries, scores, row_words, .. } = self.scorer.clone();
        let level = scores.level;
        // A score of strides is a product of whole vectors of them, for every stride of queries and of keys.
        let operations = pairs(rows) * heads.pair_operations() / 2.0 / f64::from(STRIDE);
        let cache = &prompt.cache;
        let scored: [Bound; 4] =
            [(&self.strides).into(), (&cache.k).into(), (&cache.tables).into(), (&self.parts).into()];
        let params = e.softmax_block_sum(&blocks);
        let found = e.find_blocks(shape, &blocks, list_stride(rows), 0);
        let [parts, sums] = e.scratch_lens(blocks.end).map(|len| 4.0 * len as f64);
        let work = |kernel, level: Level| Work::new(kernel, level.name(), heads.name());
        let strides = 4.0 * (e.stride_rows(blocks.end) * row_words as usize) as f64;
        let turned = 4.0 * f64::from(e.q_len * e.q_stride) + strides;
        let turn = work("stride_queries", Level::Baseline).costs(turned, 0.0).dispatch(
            queries,
            &of_queries,
            [(&prompt.q).into(), (&self.strides).into()],
        );
        let score = work("strided_qk", level)
            .costs(prompt.read(rows) + parts, operations)
            .dispatch(scores, &strided, scored);
        let sum = work("softmax_block_sum", Level::Baseline).costs(parts + sums, 0.0).dispatch(
            softmax_block_sum::best(gpu.profile(), STRIDE, BLOCK),
            &params,
            [(&self.parts).into(), (&self.sums).into()],
        );
        let find = work("find_blocks", Level::Baseline).costs(sums + 4.0 * lists.len() as f64, 0.0).dispatch(
            find_blocks::best(gpu.profile(), e.num_heads / shape.num_kv_heads),
            &found,
            [(&self.sums).into(), (&self.thresholds).into(), lists.into()],
        );
        [turn, score, sum, find]
    }
}

impl Selects for XAttention {
    fn name(&self) -> String {
        "xattn".into()
    }

    /// Records the selection. Its cost is the reads and products of the scores.
    fn select(&self, gpu: &Gpu, prompt: &Prompt, rows: &Range<u32>, lists: &Buf<u32>) -> Work {
        let [turn, score, sum, find] = self.kernels(gpu, prompt, rows, lists);
        let operations = score.cost.operations;
        turn.then("strides", score)
            .then("scores", sum)
            .then("xattn estimate", find)
            .costs(prompt.read(rows), operations)
    }
}

/// Parameters of the estimate for rows `rows` of a prompt.
fn estimate(heads: &Heads, rows: &Range<u32>) -> Estimate {
    Estimate {
        num_heads: heads.num_heads,
        q_stride: heads.width(),
        q_first: 0,
        q_len: rows.end - rows.start,
        kv_len: rows.end,
        table: 0,
        causal: true,
        stride: STRIDE,
        block: BLOCK,
        norm: 1.0,
        vote: Vote::Any,
    }
}

/// The kernels of the estimate one by one, over the last rows of a prompt of `len` tokens, which see the most keys.
pub(super) fn kernels(bench: &Bench, heads: &Heads, len: u32) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let prompt = Prompt::new(gpu, heads, len)?;
    let rows = prompt.last();
    prompt.ask(gpu, &rows);
    let lists = prompt.lists(gpu, &rows)?;
    let mut all = bench.each(XAttention::new(gpu, &prompt)?.kernels(gpu, &prompt, &rows, &lists))?;
    for timed in &mut all {
        timed.cost.shape =
            format!("last {} rows of {len}, {}, structured", rows.end - rows.start, heads.name());
    }
    Ok(all)
}
