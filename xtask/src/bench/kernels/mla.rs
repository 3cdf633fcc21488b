//! Decode of absorbed multi-head latent attention: dense, and over the tokens that an indexer selects (DSA).

use anyhow::Result;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::index_logits::{IndexKeys, IndexLogitsParams};
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeParams};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::top_k::{Output, TopKParams};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::ceiling::random;
use super::select::top_k;
use super::work::{Bench, Timed, Work};

/// Query heads, and the published latent of 512 with 64 rope elements.
const HEADS: u32 = 128;
pub(super) const SHAPE: LatentShape =
    LatentShape { latent: 512, rope: 64, block_size: 64, dtype: KvDtype::F16, plain: 0 };
/// The published indexer.
const INDEX_HEADS: u32 = 64;
const INDEX_KEYS: IndexKeys = IndexKeys::Fp8 { head_dim: 128, page: 64 };
const TOP_K: u32 = 2048;
/// One over the root of the head size before absorption, 192.
const SCALE: f32 = 0.072_168_78;
/// A window cache and a compressed cache of DeepSeek V4, and the keys that a row attends of each.
pub(super) const SHAPE_OF_TWO: LatentShape =
    LatentShape { latent: 512, rope: 0, block_size: 64, dtype: KvDtype::F16, plain: 0 };
const KEYS_OF_TWO: [u32; 2] = [128, 1024];

/// One step of decode of sequences of one length, in blocks in random order.
struct Step {
    batch: u32,
    context: u32,
    q: Buf<u32>,
    latents: Buf<u32>,
    tables: Buf<u32>,
    rows: Buf<[u32; 4]>,
}

/// Lists of tokens, and the entries from one to the next.
type Tokens<'a> = (&'a Buf<u32>, u32);

impl Step {
    fn new(gpu: &Gpu, [batch, context]: [u32; 2]) -> Result<Self> {
        let blocks = context.div_ceil(SHAPE.block_size);
        let mut tables: Vec<u32> = (0..batch * blocks).collect();
        tables.shuffle(&mut StdRng::seed_from_u64(1));
        let elements = tables.len() * SHAPE.block_bytes() / SHAPE.dtype.bytes() as usize;
        let rows: Vec<[u32; 4]> = (0..batch).map(|row| [row, context, row * blocks, 0]).collect();
        Ok(Self {
            batch,
            context,
            q: random(gpu, KvDtype::F32, (batch * HEADS * SHAPE.width()) as usize, 4)?,
            latents: random(gpu, SHAPE.dtype, elements, 1)?,
            tables: gpu.upload("tables", &tables)?,
            rows: gpu.upload("rows", &rows)?,
        })
    }

    /// Attention, with matrices if `coop` is set and the device has them.
    fn attend(&self, gpu: &Gpu, selected: Option<Tokens<'_>>, coop: bool) -> Result<Work> {
        let context = if selected.is_some() { Context::Tokens } else { Context::Full };
        let attention = Attention { context, ..Attention::default() };
        let (list_stride, keys) =
            selected.map_or((0, self.context), |(_, stride)| (stride, self.context.min(stride - 1)));
        // Lists are reduced always, as the partitions of the longest decide.
        let max_partitions = keys.div_ceil(mla_decode::PARTITION).max(1);
        let scratch = Scratch::new(gpu, &SHAPE, self.batch, max_partitions)?;
        let params = MlaDecodeParams {
            num_heads: HEADS,
            q_stride: HEADS * SHAPE.width(),
            max_partitions,
            reduced: 1,
            scale: SCALE,
            list_stride,
            ..MlaDecodeParams::default()
        };
        let listed = || selected.map(|(lists, _)| Bound::from(lists));
        let binds: Vec<Bound> = vec![
            (&self.q).into(),
            (&self.latents).into(),
            (&self.tables).into(),
            (&self.rows).into(),
            (&scratch.partial).into(),
            (&scratch.stats).into(),
        ];
        let kind = selected.map_or(String::new(), |(_, stride)| format!(", {} tokens each", stride - 1));
        let tokens = f64::from(self.batch) * f64::from(keys);
        let name = format!("{}{kind}", self.name());
        let kernel = MlaKernel::new(&SHAPE, HEADS, &gpu.profile().rounded(coop));
        let (variant, grid) = (kernel.variant(&attention), kernel.grid(&params, self.batch));
        let work = Work::new("mla_decode", kernel.level().name(), name)
            .costs(
                tokens * f64::from(SHAPE.width()) * f64::from(SHAPE.dtype.bytes()),
                tokens * f64::from(HEADS) * 2.0 * f64::from(SHAPE.width() + SHAPE.latent),
            )
            .dispatch(variant, &params, binds.into_iter().chain(listed()), grid);
        Ok(scratch.reduce(work, &attention, &params, &self.rows, listed()))
    }

    fn name(&self) -> String {
        format!("{} x {}, {HEADS} heads, {}/{}, f16", self.batch, self.context, SHAPE.width(), SHAPE.latent)
    }
}

/// Results of partitions, and the merged result.
struct Scratch {
    shape: LatentShape,
    batch: u32,
    max_partitions: u32,
    partial: Buf<f32>,
    stats: Buf<[f32; 2]>,
    out: Buf<f32>,
}

impl Scratch {
    fn new(gpu: &Gpu, shape: &LatentShape, batch: u32, max_partitions: u32) -> Result<Self> {
        let partials = (batch * HEADS * max_partitions) as usize;
        Ok(Self {
            shape: *shape,
            batch,
            max_partitions,
            partial: gpu.buffer("partial", partials * shape.latent as usize)?,
            stats: gpu.buffer("stats", partials)?,
            out: gpu.buffer("out", (batch * HEADS * shape.latent) as usize)?,
        })
    }

    /// Adds the reduce pass.
    fn reduce(
        &self,
        work: Work,
        attention: &Attention,
        params: &MlaDecodeParams,
        rows: &Buf<[u32; 4]>,
        lists: Option<Bound>,
    ) -> Work {
        let params = PagedReduceParams::from(params);
        let mut binds: Vec<Bound> =
            vec![(&self.partial).into(), (&self.stats).into(), rows.into(), (&self.out).into()];
        binds.extend(lists);
        let variant = mla_decode::reduce_variant(&self.shape, attention);
        work.dispatch(variant, &params, binds, paged_reduce::grid(&params, self.batch))
    }
}

/// Decode over two caches by lists of slots; by matrices where `coop` and the device say so.
fn two_caches(gpu: &Gpu, batch: u32, coop: bool) -> Result<Work> {
    let shape = SHAPE_OF_TWO;
    let [window, compressed] = KEYS_OF_TWO;
    let keys = window + compressed;
    let slots = |of: u32, seed| -> Result<_> {
        let mut slots: Vec<u32> = (0..batch * of).collect();
        slots.shuffle(&mut StdRng::seed_from_u64(seed));
        let elements = slots.len() * shape.width() as usize;
        let cache = random(gpu, shape.dtype, elements, u32::try_from(seed)?)?;
        Ok((gpu.upload("slots", &slots)?, cache))
    };
    let ((near_slots, near), (far_slots, far)) = (slots(window, 1)?, slots(compressed, 2)?);
    let q = random(gpu, KvDtype::F32, (batch * HEADS * shape.width()) as usize, 4)?;
    let rows: Vec<[u32; 4]> = (0..batch).map(|row| [row, keys, window, 0]).collect();
    let rows = gpu.upload("rows", &rows)?;
    let scratch = Scratch::new(gpu, &shape, batch, keys.div_ceil(mla_decode::PARTITION))?;
    let params = MlaDecodeParams {
        num_heads: HEADS,
        q_stride: HEADS * shape.width(),
        max_partitions: scratch.max_partitions,
        reduced: 1,
        scale: SCALE,
        list_stride: window,
        compressed_stride: compressed,
        ..MlaDecodeParams::default()
    };
    let binds: [Bound; 8] = [
        (&q).into(),
        (&near).into(),
        (&far).into(),
        (&rows).into(),
        (&scratch.partial).into(),
        (&scratch.stats).into(),
        (&near_slots).into(),
        (&far_slots).into(),
    ];
    let tokens = f64::from(batch) * f64::from(keys);
    let name = format!("{batch} x {window} + {compressed}, {HEADS} heads, {}, f16", shape.width());
    let kernel = MlaKernel::new(&shape, HEADS, &gpu.profile().rounded(coop));
    let work = Work::new("mla_decode, two", kernel.level().name(), name)
        .costs(
            tokens * f64::from(shape.width()) * f64::from(shape.dtype.bytes()),
            tokens * f64::from(HEADS) * 2.0 * f64::from(shape.width() + shape.latent),
        )
        .dispatch(kernel.variant_of_two(), &params, binds, kernel.grid(&params, batch));
    Ok(scratch.reduce(work, &Attention::default(), &params, &rows, None))
}

/// Decode over two caches; see [`kinds`].
pub(super) fn decode_of_two(bench: &Bench, batch: u32) -> Result<Vec<Timed>> {
    let mut all = Vec::new();
    for coop in kinds(bench.gpu) {
        all.extend(bench.alone(two_caches(bench.gpu, batch, *coop)?)?);
    }
    Ok(all)
}

/// Attention with and without matrices: the best form of the device comes last, after the form of other devices and of
/// reproducible runs.
fn kinds(gpu: &Gpu) -> &'static [bool] {
    if gpu.runs_coop() { &[false, true] } else { &[false] }
}

/// Logits of one query of each of `batch` sequences over its fp8 index keys.
fn logits(gpu: &Gpu, [batch, context]: [u32; 2]) -> Result<(Work, Buf<f32>)> {
    let (head_dim, page) = INDEX_KEYS.head_dim_and_page();
    let pages = batch * context.div_ceil(page);
    let cache = random(gpu, KvDtype::Fp8, (pages * page * (head_dim + 4)) as usize, 1)?;
    let mut tables: Vec<u32> = (0..pages).collect();
    tables.shuffle(&mut StdRng::seed_from_u64(2));
    let tables = gpu.upload("tables", &tables)?;
    let q = random(gpu, KvDtype::F32, (batch * INDEX_HEADS * head_dim) as usize, 2)?;
    let gates = random(gpu, KvDtype::F32, (batch * INDEX_HEADS) as usize, 3)?;
    let rows: Vec<[u32; 4]> = (0..batch).map(|row| [row, 0, context, row * (pages / batch)]).collect();
    let rows = gpu.upload("rows", &rows)?;
    let logits = gpu.buffer::<f32>("logits", (batch * context) as usize)?;
    let params =
        IndexLogitsParams { num_heads: INDEX_HEADS, logit_stride: context, neg_inf: f32::NEG_INFINITY };
    let bindings: [Bound; 6] =
        [(&q).into(), (&cache).into(), (&tables).into(), (&rows).into(), (&gates).into(), (&logits).into()];
    let keys = f64::from(batch) * f64::from(context);
    let kernel = IndexKernel::new(INDEX_KEYS, gpu.profile());
    let shape = format!("{batch} x {context}, {INDEX_HEADS} x {head_dim}, fp8");
    let work = Work::new("index_logits", kernel.level().name(), shape)
        .costs(cache.len() as f64 * 4.0, 2.0 * f64::from(INDEX_HEADS * head_dim) * keys)
        .dispatch(kernel.variant(), &params, bindings, kernel.grid(&params, batch));
    Ok((work, logits))
}

/// Logits and the positions of the largest, as lists.
fn index(gpu: &Gpu, at: [u32; 2]) -> Result<(Work, Buf<u32>, u32)> {
    let [batch, context] = at;
    let (work, logits) = logits(gpu, at)?;
    let k = TOP_K.min(context);
    let stride = 1 + k;
    let lists = gpu.buffer::<u32>("lists", (batch * stride) as usize)?;
    let rows: Vec<[u32; 4]> = (0..batch).map(|row| [row * context, context, k, 0]).collect();
    let params = TopKParams { rows: batch, out_stride: stride, copies: 1, page_size: 1 };
    let top = top_k(gpu, &params, Output::List, &rows, (&logits).into(), &lists)?;
    let shape = work.cost.shape.clone();
    let mut both = work.then("indexer", top);
    both.cost.shape = format!("{shape}, top {k}");
    Ok((both, lists, stride))
}

/// The indexer alone: its logits, and its logits with the top-k.
pub(super) fn indexer(bench: &Bench, context: u32) -> Result<Vec<Timed>> {
    let mut all = bench.alone(logits(bench.gpu, [1, context])?.0)?;
    all.extend(bench.alone(index(bench.gpu, [1, context])?.0)?);
    Ok(all)
}

/// Dense decode and, if a sequence is longer than an indexer's selection, decode of the selected tokens including the
/// selection.
pub(super) fn decode(bench: &Bench, at: [u32; 2]) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let step = Step::new(gpu, at)?;
    let mut all = Vec::new();
    for coop in kinds(gpu) {
        let dense = step.attend(gpu, None, *coop)?;
        if step.context <= TOP_K {
            all.extend(bench.alone(dense)?);
            continue;
        }
        let (selection, lists, stride) = index(gpu, at)?;
        let sparse = selection.then("mla_decode, dsa", step.attend(gpu, Some((&lists, stride)), *coop)?);
        all.extend(bench.beside(dense, [sparse])?);
    }
    Ok(all)
}
