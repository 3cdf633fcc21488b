//! One prompt whose synthetic heads attend to a sink, a band and lines: dense attention, and selection with attention
//! to the selected blocks, chunk by chunk.

use std::ops::Range;

use anyhow::Result;
use attn_kernels::gpu::{Buf, Gpu};

use super::attention::{Cache, Heads, Rows};
use super::lists::Lists;
use super::structured::{self, Structure};
use super::work::{Bench, Timed, Work};

pub(super) const BLOCK: u32 = structured::TOKENS;

/// Number of rows of a prompt that are attended at a time: queries and output of a long one do not fit one binding.
const CHUNK: u32 = 16_384;

/// Thresholds below which attention leaves keys out. Each is multiplied by the number of a row's keys.
const SKIPS: [f32; 2] = [1000.0, 10_000.0];

/// A prompt whose synthetic heads attend to a sink, a band and lines (see `structured`), with its KV cache and the
/// buffers of one chunk of rows.
pub(super) struct Prompt {
    pub(super) heads: Heads,
    pub(super) cache: Cache,
    structure: Structure,
    pub(super) len: u32,
    pub(super) q: Buf<f32>,
    pub(super) out: Buf<f32>,
    /// Log-sum-exp of dense attention, and of the selection.
    pub(super) lse: [Buf<f32>; 2],
}

/// A selection of blocks for a chunk's rows.
pub(super) trait Selects {
    /// Name of the method, as in `prefill, NAME`.
    fn name(&self) -> String;

    /// The kernels that select for rows `rows` of the prompt, into lists of [`list_stride`] u32, one a query block and KV head.
    fn select(&self, gpu: &Gpu, prompt: &Prompt, rows: &Range<u32>, lists: &Buf<u32>) -> Work;
}

impl Prompt {
    pub(super) fn new(gpu: &Gpu, heads: &Heads, len: u32) -> Result<Self> {
        let cache = Cache::new(gpu, &heads.shape, len)?;
        let structure = Structure::new(&heads.shape, heads.num_heads, len);
        gpu.write(&cache.k, 0, &structure.keys(&cache.table));
        let rows = len.min(CHUNK) as usize;
        let q = gpu.buffer("q", rows * heads.width() as usize)?;
        let out = gpu.buffer("out", q.len())?;
        let lse = || gpu.buffer("lse", rows * heads.num_heads as usize);
        Ok(Self { heads: *heads, cache, structure, len, q, out, lse: [lse()?, lse()?] })
    }

    /// The last rows that are attended at a time, which see the most keys.
    pub(super) fn last(&self) -> Range<u32> {
        self.len - self.len.min(CHUNK)..self.len
    }

    /// Writes the queries of some rows.
    pub(super) fn ask(&self, gpu: &Gpu, rows: &Range<u32>) {
        gpu.write(&self.q, 0, &self.structure.queries(rows.start, rows.end - rows.start));
    }

    /// Number of bytes of the queries and keys of a chunk.
    pub(super) fn read(&self, rows: &Range<u32>) -> f64 {
        let keys = f64::from(rows.end) * self.heads.token_bytes() / 2.0;
        keys + f64::from(rows.end - rows.start) * f64::from(self.heads.width()) * 4.0
    }

    /// A buffer for the lists of some rows.
    pub(super) fn lists(&self, gpu: &Gpu, rows: &Range<u32>) -> Result<Buf<u32>> {
        let lists = (rows.end - rows.start).div_ceil(BLOCK) * self.heads.shape.num_kv_heads;
        Ok(gpu.buffer("lists", (lists * list_stride(rows)) as usize)?)
    }

    /// Attention of one chunk, dense or selected.
    fn rows(&self, rows: &Range<u32>, lse: &Buf<f32>, log_skip: Option<f32>) -> Rows<'_> {
        Rows {
            heads: self.heads,
            cache: &self.cache,
            q: (&self.q).into(),
            range: rows.clone(),
            out: (&self.out).into(),
            lse: lse.into(),
            log_skip,
        }
    }

    /// Attention mass that the selection keeps, as a share of the mass of dense attention, summed over rows and heads.
    fn mass(&self, gpu: &Gpu, rows: &Range<u32>) -> Result<f64> {
        let values = 0..((rows.end - rows.start) * self.heads.num_heads) as usize;
        let [all, kept] = [gpu.read(&self.lse[0], values.clone())?, gpu.read(&self.lse[1], values)?];
        Ok(all.iter().zip(kept).map(|(all, kept)| f64::from(kept - all).exp()).sum())
    }
}

/// Number of entries from one list to the next.
pub(super) fn list_stride(rows: &Range<u32>) -> u32 {
    1 + rows.end.div_ceil(BLOCK)
}

/// Number of visible pairs of a query and a key.
pub(super) fn pairs(rows: &Range<u32>) -> f64 {
    let len = f64::from(rows.end - rows.start);
    len * (f64::from(rows.end) - len / 2.0)
}

/// Returns the lists that are selected for a chunk.
fn selected(gpu: &Gpu, rows: &Range<u32>, kv_heads: u32, buffer: Buf<u32>) -> Result<Lists> {
    let stride = list_stride(rows);
    let words = gpu.read(&buffer, 0..buffer.len())?;
    let (mut tokens, mut blocks, mut visible) = (0.0, 0.0, 0.0);
    for (list, words) in (0..).zip(words.chunks_exact(stride as usize)) {
        let own = rows.start / BLOCK + list / kv_heads;
        blocks += f64::from(words[0]);
        visible += f64::from(own + 1);
        tokens += f64::from(words[0] * BLOCK);
    }
    let (tokens, density) = (tokens / f64::from(kv_heads), blocks / visible);
    Ok(Lists { buffer, stride, block: BLOCK, tokens, density })
}

/// Measurements of one method, summed over the chunks of a prompt.
#[derive(Default)]
struct Sums {
    selection: Option<Timed>,
    attention: Option<Timed>,
    blocks: f64,
    visible: f64,
    mass: f64,
}

/// A method of selection, made for a prompt.
type Method = dyn Fn(&Gpu, &Prompt) -> Result<Box<dyn Selects>>;

/// Measures a prompt of `len` tokens: dense attention, attention that leaves out keys of little weight, and for each
/// method its selection alone, and together with attention to the blocks that it keeps.
pub(super) fn prefill(bench: &Bench, heads: &Heads, len: u32, methods: &[&Method]) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let prompt = Prompt::new(gpu, heads, len)?;
    let methods: Vec<_> = methods.iter().map(|method| method(gpu, &prompt)).collect::<Result<_>>()?;
    let mut sums: Vec<Sums> = methods.iter().map(|_| Sums::default()).collect();
    let mut skips = SKIPS.map(|_| Sums::default());
    let mut dense = None;
    for first in (0..len).step_by(CHUNK as usize) {
        let rows = first..len.min(first + CHUNK);
        prompt.ask(gpu, &rows);
        add(bench, &mut dense, prompt.rows(&rows, &prompt.lse[0], None).attend(gpu, None)?)?;
        for (scale, sums) in SKIPS.iter().zip(&mut skips) {
            let attend = prompt.rows(&rows, &prompt.lse[1], Some(scale.ln())).attend(gpu, None)?;
            add(bench, &mut sums.attention, attend)?;
            sums.mass += prompt.mass(gpu, &rows)?;
        }
        for (method, sums) in methods.iter().zip(&mut sums) {
            let lists = prompt.lists(gpu, &rows)?;
            add(bench, &mut sums.selection, method.select(gpu, &prompt, &rows, &lists))?;
            let lists = selected(gpu, &rows, heads.shape.num_kv_heads, lists)?;
            let attend = prompt.rows(&rows, &prompt.lse[1], None).attend(gpu, Some((&lists, BLOCK)))?;
            add(bench, &mut sums.attention, attend)?;
            sums.blocks += lists.density * pairs(&rows);
            sums.visible += pairs(&rows);
            sums.mass += prompt.mass(gpu, &rows)?;
        }
    }
    let shape = format!("{len} in rows of {CHUNK}, {}, structured", heads.name());
    let mut dense: Timed = dense.expect("a prompt has rows");
    dense.cost.shape.clone_from(&shape);
    let seconds = dense.seconds;
    let mut all = vec![dense];
    let recall = |mass: f64| Some(mass / f64::from(len) / f64::from(heads.num_heads));
    for (scale, sums) in SKIPS.iter().zip(skips) {
        let mut whole: Timed = sums.attention.expect("a prompt has rows");
        whole.cost.kernel = format!("prefill, skip-softmax {scale}");
        whole.cost.shape.clone_from(&shape);
        (whole.dense, whole.recall) = (Some(seconds), recall(sums.mass));
        all.push(whole);
    }
    for (method, sums) in methods.iter().zip(sums) {
        let [mut selection, mut whole] =
            [sums.selection, sums.attention].map(|sum| sum.expect("a prompt has rows"));
        whole.cost.kernel = format!("prefill, {}", method.name());
        whole.cost.bytes += selection.cost.bytes;
        whole.cost.operations += selection.cost.operations;
        whole.seconds += selection.seconds;
        whole.density = Some(sums.blocks / sums.visible);
        whole.recall = recall(sums.mass);
        for timed in [&mut selection, &mut whole] {
            timed.dense = Some(seconds);
            timed.cost.shape.clone_from(&shape);
        }
        all.extend([selection, whole]);
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
