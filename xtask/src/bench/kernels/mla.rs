//! Decode of absorbed multi-head latent attention: dense, and over the tokens that an indexer selects (DSA).

use std::fmt::Write as _;

use anyhow::Result;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::index_logits::IndexKeys;
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::mla_decode::{self, LatentShape};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::top_k::Output;
use attn_kernels::self_test::Size;

use super::attention::{Heads, merged};
use super::select::top_k;
use super::work::{Bench, Timed, Work};

/// Number of query heads; the next constant is the published latent of 512 with 64 rope elements.
const HEADS: u32 = 128;
pub(super) const SHAPE: LatentShape =
    LatentShape { latent: 512, rope: 64, block_size: 64, dtype: KvDtype::F16, plain: 0 };
/// Number of heads of the published indexer; the next constant is its number of dimensions.
const INDEX_HEADS: u32 = 64;
const INDEX_KEYS: IndexKeys = IndexKeys::Fp8 { head_dim: 128, page: 64 };
const TOP_K: u32 = 2048;
/// Shape of the window cache and the compressed cache of DeepSeek V4; the next constant is the number of keys that a
/// row attends to in each.
pub(super) const SHAPE_OF_TWO: LatentShape =
    LatentShape { latent: 512, rope: 0, block_size: 64, dtype: KvDtype::F16, plain: 0 };
const KEYS_OF_TWO: [u32; 2] = [128, 1024];

/// A size of `SHAPE` or `SHAPE_OF_TWO`.
fn size([batch, context]: [u32; 2]) -> Size {
    let heads = Heads { num_heads: HEADS, shape: SHAPE.values() };
    Size { batch, context, rows: batch, k: TOP_K.min(context), ..heads.size() }
}

/// Attention of a step, with cooperative matrices if `coop` is set and the device has them. `from` holds dense
/// attention, whose data are used again, and the selection of the tokens to attend to.
fn attend(gpu: &Gpu, at: [u32; 2], from: Option<(&Work, &Work)>, coop: bool) -> Result<Work> {
    let ([batch, context], size) = (at, size(at));
    let size = Size { density: f64::from(size.k) / f64::from(context), ..size };
    let mut name = format!("{batch} x {context}, {HEADS} heads, {}/{}, f16", SHAPE.width(), SHAPE.latent);
    let (mut attention, mut shared) = (Attention::default(), Vec::new());
    if let Some((dense, selection)) = from {
        write!(name, ", {} tokens each", size.k)?;
        attention.context = Context::Tokens;
        shared = dense.shared(&["q", "latents", "tables", "rows"]);
        shared.extend(selection.renamed("out", "selected"));
    }
    let kernel = MlaKernel::new(&SHAPE, HEADS, &gpu.profile().rounded(coop));
    let work = Work::sharing(gpu, "mla_decode", &kernel.variant(&attention), size, &name, &shared)?;
    merged(gpu, work, &mla_decode::reduce_variant(gpu.profile(), &SHAPE, &attention), size)
}

/// Decode over two caches by lists of slots; with cooperative matrices if `coop` is set and the device has them.
fn two_caches(gpu: &Gpu, batch: u32, coop: bool) -> Result<Work> {
    let (shape, [window, compressed]) = (SHAPE_OF_TWO, KEYS_OF_TWO);
    let name = format!("{batch} x {window} + {compressed}, {HEADS} heads, {}, f16", shape.width());
    let variant = MlaKernel::new(&shape, HEADS, &gpu.profile().rounded(coop)).variant_of_two();
    let keys = Size { k: window, ..size([batch, compressed]) };
    let work = Work::of(gpu, "mla_decode, two", &variant, keys, &name)?;
    let reduce = mla_decode::reduce_variant(gpu.profile(), &shape, &Attention::default());
    merged(gpu, work, &reduce, size([batch, window + compressed]))
}

/// Decode over two caches; see [`kinds`].
pub(super) fn decode_of_two(bench: &Bench, batch: u32) -> Result<Vec<Timed>> {
    let mut all = Vec::new();
    for coop in kinds(bench.gpu) {
        all.extend(bench.alone(two_caches(bench.gpu, batch, *coop)?)?);
    }
    Ok(all)
}

/// Values of `coop` to measure. The last one is the best for the device; the one before it is for other devices and
/// reproducible runs.
fn kinds(gpu: &Gpu) -> &'static [bool] {
    if gpu.runs_coop() { &[false, true] } else { &[false] }
}

/// Logits of one query of each of `batch` sequences over its fp8 index keys.
fn logits(gpu: &Gpu, [batch, context]: [u32; 2]) -> Result<Work> {
    let (head_dim, _) = INDEX_KEYS.head_dim_and_page();
    let kernel = IndexKernel::new(INDEX_KEYS, gpu.profile());
    let size = Size { num_heads: INDEX_HEADS, ..size([batch, context]) };
    let name = format!("{batch} x {context}, {INDEX_HEADS} x {head_dim}, fp8");
    Work::of(gpu, "index_logits", &kernel.variant(), size, &name)
}

/// Work of computing logits and selecting the positions of the largest, as lists.
fn index(gpu: &Gpu, at: [u32; 2]) -> Result<Work> {
    let (work, size) = (logits(gpu, at)?, size(at));
    let top = top_k(gpu, Output::List, size, &work.renamed("logits", "scores"))?;
    let shape = format!("{}, top {}", work.cost.shape, size.k);
    let mut both = work.then("indexer", top);
    both.cost.shape = shape;
    Ok(both)
}

/// The indexer alone: its logits, and its logits with the top-k.
pub(super) fn indexer(bench: &Bench, context: u32) -> Result<Vec<Timed>> {
    let mut all = bench.alone(logits(bench.gpu, [1, context])?)?;
    all.extend(bench.alone(index(bench.gpu, [1, context])?)?);
    Ok(all)
}

/// Dense decode and, if a sequence is longer than an indexer's selection, decode of the selected tokens including the
/// selection.
pub(super) fn decode(bench: &Bench, at: [u32; 2]) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let mut all = Vec::new();
    for coop in kinds(gpu) {
        let dense = attend(gpu, at, None, *coop)?;
        if at[1] <= TOP_K {
            all.extend(bench.alone(dense)?);
            continue;
        }
        let selection = index(gpu, at)?;
        let sparse = attend(gpu, at, Some((&dense, &selection)), *coop)?;
        all.extend(bench.beside(dense, [selection.then("mla_decode, dsa", sparse)])?);
    }
    Ok(all)
}
