//! XAttention of a prompt: estimate, selection and attention of what it selects, beside dense attention of the same rows.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::find_blocks::{self, Vote};
use attn_kernels::kernel::xattn::Estimate;
use attn_kernels::kernel::{softmax_block_sum, strided_qk, strided_qk_coop};

use super::attention::{Cache, Heads, Rows};
use super::lists::Lists;
use super::structured::{self, Structure};
use super::work::{Bench, Timed, Work};

/// Tokens between antidiagonals.
const STRIDE: u32 = 8;
const BLOCK: u32 = structured::TOKENS;

/// Share of the estimated mass that is kept. Lines are too thin for strided scores: what is found is found by sink and band,
/// which have 0.956 of the 0.97 of the mass that the structure has.
const THRESHOLD: f32 = 0.965;

/// Rows of a prompt that are attended at a time: queries and output of a long one do not fit one binding.
const CHUNK: u32 = 16_384;

/// One prompt of structured heads, its cache, and what a chunk of its rows needs.
struct Prompt {
    heads: Heads,
    cache: Cache,
    structure: Structure,
    thresholds: Buf<f32>,
    q: Buf<f32>,
    out: Buf<f32>,
    /// Log-sum-exp of dense attention, and of the selection.
    lse: [Buf<f32>; 2],
    parts: Buf<f32>,
    sums: Buf<f32>,
}

impl Prompt {
    fn new(gpu: &Gpu, heads: &Heads, len: u32) -> Result<Self> {
        let cache = Cache::new(gpu, &heads.shape, &[len])?;
        let structure = Structure::new(&heads.shape, heads.num_heads, len);
        gpu.write(&cache.k, 0, &structure.keys(&cache.table));
        let rows = len.min(CHUNK) as usize;
        let q = gpu.buffer("q", rows * heads.width() as usize)?;
        let out = gpu.buffer("out", q.len())?;
        let lse = || gpu.buffer("lse", rows * heads.num_heads as usize);
        // The last chunk sees all keys.
        let chunk = estimate(heads, len - len.min(CHUNK), len);
        let [parts, sums] = chunk.scratch_lens(chunk.query_blocks());
        Ok(Self {
            heads: *heads,
            cache,
            structure,
            thresholds: gpu.upload("thresholds", &vec![THRESHOLD; heads.num_heads as usize])?,
            q,
            out,
            lse: [lse()?, lse()?],
            parts: gpu.buffer("parts", parts)?,
            sums: gpu.buffer("sums", sums)?,
        })
    }

    /// The three kernels over one chunk, into lists, as one: it costs what the scores must read and compute.
    fn estimate(&self, gpu: &Gpu, e: &Estimate, lists: &Buf<u32>) -> Work {
        let [score, sum, find] = self.kernels(gpu, e, lists);
        let operations = score.cost.operations;
        score.then("scores", sum).then("xattn estimate", find).costs(self.read(e), operations)
    }

    /// Bytes of the queries and keys of a chunk.
    fn read(&self, e: &Estimate) -> f64 {
        let keys = f64::from(e.kv_len) * self.heads.token_bytes() / 2.0;
        keys + f64::from(e.q_len) * f64::from(self.heads.width()) * 4.0
    }

    /// The three kernels over one chunk, each with what it reads and writes.
    fn kernels(&self, gpu: &Gpu, e: &Estimate, lists: &Buf<u32>) -> [Work; 3] {
        let shape = &self.heads.shape;
        let blocks = 0..e.query_blocks();
        let strided = e.strided_qk(shape, &blocks);
        let coop = gpu.runs_coop() && strided_qk_coop::serves(shape, STRIDE, BLOCK, e.q_stride);
        let (variant, grid, level) = if coop {
            let variant = strided_qk_coop::variant(shape, STRIDE, BLOCK);
            (variant, strided_qk_coop::grid(&strided, STRIDE), Level::Coop)
        } else {
            let variant = strided_qk::variant(shape, STRIDE, BLOCK);
            (variant, strided_qk::grid(&strided, STRIDE), Level::Baseline)
        };
        // A score of strides is a product of whole vectors of them, for every stride of queries and of keys.
        let operations = pairs(e) * self.heads.pair_operations() / 2.0 / f64::from(STRIDE);
        let scored: [Bound; 4] =
            [(&self.q).into(), (&self.cache.k).into(), (&self.cache.tables).into(), (&self.parts).into()];
        let params = e.softmax_block_sum(&blocks);
        let found = e.find_blocks(shape, &blocks, list_stride(e), 0);
        let [parts, sums] = e.scratch_lens(blocks.end).map(|len| 4.0 * len as f64);
        let work = |kernel, level: Level| Work::new(kernel, level.name(), self.heads.name());
        let score = work("strided_qk", level)
            .costs(self.read(e) + parts, operations)
            .dispatch(variant, &strided, scored, grid);
        let sum = work("softmax_block_sum", Level::Baseline).costs(parts + sums, 0.0).dispatch(
            softmax_block_sum::variant(STRIDE, BLOCK),
            &params,
            [(&self.parts).into(), (&self.sums).into()],
            softmax_block_sum::grid(e.num_heads, blocks.end),
        );
        let find = work("find_blocks", Level::Baseline).costs(sums + 4.0 * lists.len() as f64, 0.0).dispatch(
            find_blocks::variant(e.num_heads / shape.num_kv_heads),
            &found,
            [(&self.sums).into(), (&self.thresholds).into(), lists.into()],
            find_blocks::grid(&found),
        );
        [score, sum, find]
    }

    /// Attention of one chunk, dense or selected.
    fn rows(&self, e: &Estimate, lse: &Buf<f32>) -> Rows<'_> {
        Rows {
            heads: self.heads,
            cache: &self.cache,
            q: (&self.q).into(),
            range: e.kv_len - e.q_len..e.kv_len,
            out: (&self.out).into(),
            lse: lse.into(),
        }
    }
}

/// Entries from one list to the next.
fn list_stride(e: &Estimate) -> u32 {
    1 + e.key_blocks()
}

/// Returns the lists that are selected for a chunk.
fn selected(gpu: &Gpu, e: &Estimate, kv_heads: u32, buffer: Buf<u32>) -> Result<Lists> {
    let stride = list_stride(e);
    let words = gpu.read(&buffer, 0..buffer.len())?;
    let (mut tokens, mut blocks, mut visible) = (0.0, 0.0, 0.0);
    for (list, words) in (0..).zip(words.chunks_exact(stride as usize)) {
        let own = e.first_block() + list / kv_heads;
        blocks += f64::from(words[0]);
        visible += f64::from(own + 1);
        tokens += f64::from(words[0] * BLOCK);
    }
    let (tokens, density) = (tokens / f64::from(kv_heads), blocks / visible);
    Ok(Lists { buffer, stride, block: BLOCK, tokens, density })
}

/// Rows `first..end` of a prompt.
fn estimate(heads: &Heads, first: u32, end: u32) -> Estimate {
    Estimate {
        num_heads: heads.num_heads,
        q_stride: heads.width(),
        q_first: 0,
        q_len: end - first,
        kv_len: end,
        table: 0,
        causal: true,
        stride: STRIDE,
        block: BLOCK,
        norm: 1.0,
        vote: Vote::Any,
    }
}

/// Visible pairs of a query and a key.
fn pairs(e: &Estimate) -> f64 {
    f64::from(e.q_len) * (f64::from(e.kv_len) - f64::from(e.q_len) / 2.0)
}

/// Dense attention of a prompt of `len` tokens, the estimate of its blocks, and that with attention of the blocks it keeps.
pub(super) fn prefill(bench: &Bench, heads: &Heads, len: u32) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let prompt = Prompt::new(gpu, heads, len)?;
    let kv_heads = heads.shape.num_kv_heads;
    let [mut dense, mut estimated, mut sparse] = [const { None }; 3];
    let (mut blocks, mut visible, mut mass) = (0.0, 0.0, 0.0);
    for first in (0..len).step_by(CHUNK as usize) {
        let end = len.min(first + CHUNK);
        let e = estimate(heads, first, end);
        gpu.write(&prompt.q, 0, &prompt.structure.queries(first, end - first));
        add(bench, &mut dense, prompt.rows(&e, &prompt.lse[0]).attend(gpu, None)?)?;

        let lists = e.query_blocks() * kv_heads;
        let lists = gpu.buffer("lists", (lists * list_stride(&e)) as usize)?;
        add(bench, &mut estimated, prompt.estimate(gpu, &e, &lists))?;
        let lists = selected(gpu, &e, kv_heads, lists)?;
        let attend = prompt.rows(&e, &prompt.lse[1]).attend(gpu, Some((&lists, BLOCK)))?;
        add(bench, &mut sparse, attend)?;

        let chunk = pairs(&e);
        (blocks, visible) = (blocks + lists.density * chunk, visible + chunk);
        let values = 0..((end - first) * heads.num_heads) as usize;
        let [all, kept] = [gpu.read(&prompt.lse[0], values.clone())?, gpu.read(&prompt.lse[1], values)?];
        mass += all.iter().zip(kept).map(|(all, kept)| f64::from(kept - all).exp()).sum::<f64>();
    }
    let shape = format!("{len} in rows of {CHUNK}, {}, structured", heads.name());
    let [mut dense, mut estimated, mut sparse] =
        [dense, estimated, sparse].map(|sum: Option<Timed>| sum.expect("a prompt has rows"));
    sparse.cost.kernel = "prefill, xattn".into();
    sparse.cost.bytes += estimated.cost.bytes;
    sparse.cost.operations += estimated.cost.operations;
    sparse.seconds += estimated.seconds;
    sparse.density = Some(blocks / visible);
    sparse.recall = Some(mass / f64::from(len) / f64::from(heads.num_heads));
    for timed in [&mut estimated, &mut sparse] {
        timed.dense = Some(dense.seconds);
    }
    for timed in [&mut dense, &mut estimated, &mut sparse] {
        timed.cost.shape.clone_from(&shape);
    }
    Ok(vec![dense, estimated, sparse])
}

/// The kernels of the estimate one by one, over the last rows of a prompt of `len` tokens, which see most.
pub(super) fn kernels(bench: &Bench, heads: &Heads, len: u32) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let prompt = Prompt::new(gpu, heads, len)?;
    let rows = len.min(CHUNK);
    let e = estimate(heads, len - rows, len);
    gpu.write(&prompt.q, 0, &prompt.structure.queries(len - rows, rows));
    let lists =
        gpu.buffer("lists", (e.query_blocks() * heads.shape.num_kv_heads * list_stride(&e)) as usize)?;
    let mut all = bench.each(prompt.kernels(gpu, &e, &lists))?;
    for timed in &mut all {
        timed.cost.shape = format!("last {rows} rows of {len}, {}, structured", heads.name());
    }
    Ok(all)
}

/// Times one chunk's work and adds it to those before.
fn add(bench: &Bench, sum: &mut Option<Timed>, work: Work) -> Result<()> {
    let next = bench.time(work)?;
    match sum {
        None => *sum = Some(next),
        Some(sum) => {
            sum.cost.bytes += next.cost.bytes;
            sum.cost.operations += next.cost.operations;
            sum.seconds += next.seconds;
        }
    }
    Ok(())
}
