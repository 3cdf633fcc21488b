//! The kernels round attention: cache operations, codes, hashes.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Gpu};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::apply_sinks::{self, ApplySinksParams};
use attn_kernels::kernel::attention::Context;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use attn_kernels::kernel::dequantise::{self, DequantiseParams};
use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};
use attn_kernels::kernel::hamming_score::{self, HammingScoreParams};
use attn_kernels::kernel::hash_codes::{self, HashCodesParams, HashSource};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};
use attn_kernels::kernel::prefix_slots::{self, PrefixSlotsParams};
use attn_kernels::kernel::quantise::{self, Code, QuantiseParams, Scale};
use attn_kernels::kernel::swap_blocks::{self, Link, SwapBlocksParams};

use super::attention::{Cache, Heads};
use super::ceiling::random;
use super::lists::SELECT_BLOCK;
use super::work::Work;

fn binds<const N: usize>(binds: [Bound; N]) -> [Bound; N] {
    binds
}

/// Keys and values of `rows` tokens into the cache.
pub(super) fn cache_write(gpu: &Gpu, heads: &Heads, rows: u32) -> Result<Work> {
    let shape = &heads.shape;
    let width = shape.num_kv_heads * shape.head_dim;
    let cache = Cache::new(gpu, shape, &[rows])?;
    let kv = random(gpu, KvDtype::F32, (rows * 2 * width) as usize, 5)?;
    let slots: Vec<i32> = (0..rows).map(|row| (row * 7919 % rows).cast_signed()).collect();
    let slots = gpu.upload("slots", &slots)?;
    let params = CacheWriteParams {
        rows,
        num_kv_heads: shape.num_kv_heads,
        row_stride: 2 * width,
        k_start: 0,
        v_start: width,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let bytes = f64::from(rows) * 2.0 * f64::from(width) * (4.0 + f64::from(shape.dtype.bytes()));
    let bindings = binds([(&kv).into(), (&slots).into(), (&cache.k).into(), (&cache.v).into()]);
    Ok(Work::new("cache_write", Level::Baseline.name(), format!("{rows} rows, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(cache_write::variant(shape), &params, bindings, cache_write::grid(&params, shape)))
}

/// `copies` blocks to others.
pub(super) fn copy_blocks(gpu: &Gpu, heads: &Heads, copies: u32) -> Result<Work> {
    let shape = &heads.shape;
    let cache = Cache::new(gpu, shape, &[2 * copies * shape.block_size])?;
    let pairs: Vec<[u32; 2]> = (0..copies).map(|i| [i * 7919 % copies, copies + i]).collect();
    let pairs = gpu.upload("pairs", &pairs)?;
    let params = CopyBlocksParams { block_quads: copy_blocks::block_quads(shape) };
    let bytes = 2.0 * f64::from(copies) * shape.block_bytes() as f64;
    let bindings = binds([(&pairs).into(), (&cache.k).into()]);
    Ok(Work::new("copy_blocks", Level::Baseline.name(), format!("{copies} blocks, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(copy_blocks::variant(), &params, bindings, copy_blocks::grid(shape, copies)))
}

/// Two sets of attention over `rows` rows of all heads.
pub(super) fn lse_merge(gpu: &Gpu, heads: &Heads, rows: u32) -> Result<Work> {
    let (dim, rows) = (heads.shape.head_dim, rows * heads.num_heads);
    let part = |seed| random(gpu, KvDtype::F32, rows as usize * dim as usize, seed);
    let sums = |seed| random(gpu, KvDtype::F32, rows as usize, seed);
    let (b, b_lse, a, a_lse) = (part(1)?, sums(2)?, part(3)?, sums(4)?);
    let params = LseMergeParams::new(rows);
    let bindings = binds([(&b).into(), (&b_lse).into(), (&a).into(), (&a_lse).into()]);
    Ok(Work::new("lse_merge", Level::Baseline.name(), format!("{rows} rows of {dim}"))
        .costs(f64::from(rows) * 12.0 * f64::from(dim), 0.0)
        .dispatch(lse_merge::variant(dim), &params, bindings, lse_merge::grid(&params, dim)))
}

/// Sinks into the output of `rows` rows of all heads.
pub(super) fn apply_sinks(gpu: &Gpu, heads: &Heads, rows: u32) -> Result<Work> {
    let (num_heads, dim) = (heads.num_heads, heads.shape.head_dim);
    let lse = random(gpu, KvDtype::F32, (rows * num_heads) as usize, 1)?;
    let sinks = random(gpu, KvDtype::F32, num_heads as usize, 2)?;
    let out = random(gpu, KvDtype::F32, (rows * heads.width()) as usize, 3)?;
    let params = ApplySinksParams { first_row: 0, rows, num_heads };
    let bindings = binds([(&lse).into(), (&sinks).into(), (&out).into()]);
    let name = format!("{rows} rows of {num_heads} x {dim}");
    Ok(Work::new("apply_sinks", Level::Baseline.name(), name)
        .costs(4.0 * (lse.len() + 2 * out.len()) as f64, 0.0)
        .dispatch(apply_sinks::variant(dim), &params, bindings, apply_sinks::grid(&params, dim)))
}

/// Slots of all tokens of `batch` prefixes.
pub(super) fn prefix_slots(gpu: &Gpu, heads: &Heads, [batch, context]: [u32; 2]) -> Result<Work> {
    let block_size = heads.shape.block_size;
    let blocks = context.div_ceil(block_size);
    let tables: Vec<u32> = (0..batch * blocks).map(|block| block * 7919 % (batch * blocks)).collect();
    let spans: Vec<[u32; 4]> = (0..batch).map(|i| [0, context, i * context, i * blocks]).collect();
    let grid = prefix_slots::grid(&spans);
    let (tables, spans) = (gpu.upload("tables", &tables)?, gpu.upload("spans", &spans)?);
    let slots = gpu.buffer::<u32>("slots", (batch * context) as usize)?;
    let params = PrefixSlotsParams { block_size };
    let bindings = binds([(&spans).into(), (&tables).into(), (&slots).into()]);
    let name = format!("{batch} x {context}, block {block_size}");
    Ok(Work::new("prefix_slots", Level::Baseline.name(), name)
        .costs(4.0 * (tables.len() + slots.len()) as f64, 0.0)
        .dispatch(prefix_slots::variant(), &params, bindings, grid))
}

/// Digests of all pages of one sequence.
pub(super) fn block_digest(gpu: &Gpu, heads: &Heads, context: u32) -> Result<Work> {
    let shape = &heads.shape;
    let cache = Cache::new(gpu, shape, &[context])?;
    let blocks = u32::try_from(cache.table.len())?;
    let touched: Vec<[u32; 2]> = (0..blocks).map(|block| [block, shape.block_size]).collect();
    let digests = gpu.buffer::<u32>("digests", Digest::MinMax.pool_len(shape, touched.len()))?;
    let touched = gpu.upload("touched", &touched)?;
    let params = BlockDigestParams::new(shape.num_kv_heads, blocks);
    let bytes = (cache.k.len() + digests.len()) as f64 * 4.0;
    let bindings = binds([(&touched).into(), (&cache.k).into(), (&digests).into()]);
    let variant = block_digest::variant(shape, Digest::MinMax);
    let grid = block_digest::grid(&params, shape);
    Ok(Work::new("block_digest", Level::Baseline.name(), format!("min/max of {context}, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(variant, &params, bindings, grid))
}

/// `blocks` blocks of one pool to another.
pub(super) fn swap_blocks(gpu: &Gpu, heads: &Heads, blocks: u32) -> Result<Work> {
    let shape = &heads.shape;
    let cache = Cache::new(gpu, shape, &[blocks * shape.block_size])?;
    let pairs: Vec<[u32; 2]> = (0..).zip(&cache.table).map(|(i, block)| [*block, i]).collect();
    let pairs = gpu.upload("pairs", &pairs)?;
    let params = SwapBlocksParams::new(copy_blocks::block_quads(shape), blocks, Link::Memory);
    let bindings = binds([(&pairs).into(), (&cache.k).into(), (&cache.v).into()]);
    Ok(Work::new("swap_blocks", Level::Baseline.name(), format!("{blocks} blocks, {}", heads.name()))
        .costs(2.0 * f64::from(blocks) * shape.block_bytes() as f64, 0.0)
        .dispatch(swap_blocks::variant(), &params, bindings, swap_blocks::grid(&params)))
}

/// Keys and values of one sequence as contiguous f32.
pub(super) fn gather_cache(gpu: &Gpu, heads: &Heads, context: u32) -> Result<Work> {
    let shape = &heads.shape;
    let cache = Cache::new(gpu, shape, &[context])?;
    let width = shape.num_kv_heads * shape.head_dim;
    let out = || gpu.buffer::<f32>("out", context as usize * width as usize);
    let (k_out, v_out) = (out()?, out()?);
    let max_keys = context.min(8192);
    let span = |first: u32| [first, context.min(first + max_keys), first, 0];
    let spans: Vec<[u32; 4]> = (0..context).step_by(max_keys as usize).map(span).collect();
    let count = u32::try_from(spans.len())?;
    let spans = gpu.upload("spans", &spans)?;
    let params = GatherCacheParams {
        num_kv_heads: shape.num_kv_heads,
        list_stride: 0,
        k_scale: 1.0,
        v_scale: 1.0,
        max_keys,
    };
    let bindings = binds([
        (&spans).into(),
        (&cache.k).into(),
        (&cache.v).into(),
        (&cache.tables).into(),
        (&k_out).into(),
        (&v_out).into(),
    ]);
    let bytes = f64::from(context) * (heads.token_bytes() + 8.0 * f64::from(width));
    Ok(Work::new("gather_cache", Level::Baseline.name(), format!("{context}, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(
            gather_cache::variant(shape, Context::Full),
            &params,
            bindings,
            gather_cache::grid(shape, &params, count),
        ))
}

/// Rows of `width` f32 to codes with a scale each, and back.
pub(super) fn codes(gpu: &Gpu, rows: u32, width: u32, code: Code) -> Result<[Work; 2]> {
    let x = random(gpu, KvDtype::F32, (rows * width) as usize, 1)?;
    let codes = gpu.buffer::<u32>("codes", (rows * width / 4) as usize)?;
    let scales = gpu.buffer::<f32>("scales", rows as usize)?;
    let (level, shape) = (Level::Baseline.name(), format!("{rows} rows of {width}, {code:?}"));
    let bytes = f64::from(rows) * (5.0 * f64::from(width) + 4.0);
    let params = QuantiseParams { rows, row_stride: width, first: 0, scale: 1.0 };
    let to = Work::new("quantise", level, shape.clone()).costs(bytes, 0.0).dispatch(
        quantise::variant(width, code, Scale::PerRow)?,
        &params,
        binds([(&x).into(), (&codes).into(), (&scales).into()]),
        quantise::grid(&params),
    );
    let params = DequantiseParams { rows, row_stride: width, first: 0 };
    let from = Work::new("dequantise", level, shape).costs(bytes, 0.0).dispatch(
        dequantise::variant(width, code)?,
        &params,
        binds([(&codes).into(), (&scales).into(), (&x).into()]),
        dequantise::grid(&params, width),
    );
    Ok([to, from])
}

/// Codes of all keys of one sequence, and distances of all its blocks from one query's.
pub(super) fn hashes(gpu: &Gpu, heads: &Heads, context: u32) -> Result<[Work; 2]> {
    let (shape, bits) = (&heads.shape, heads.shape.head_dim);
    let cache = Cache::new(gpu, shape, &[context])?;
    let words = bits / 32;
    let vectors = (cache.table.len() * shape.block_elements()) / shape.head_dim as usize;
    let codes = random(gpu, KvDtype::Int8, vectors * words as usize * 4, 1)?;
    let slots: Vec<u32> = (0..context).collect();
    let slots = gpu.upload("slots", &slots)?;
    let weights = random(gpu, KvDtype::F32, (shape.head_dim * bits) as usize, 2)?;
    let params = HashCodesParams {
        num_kv_heads: shape.num_kv_heads,
        entries: context,
        group: heads.num_heads / shape.num_kv_heads,
        q_stride: heads.width(),
        first_channel: 0,
        channels: shape.head_dim,
        bits,
        first_word: 0,
        words,
        first_block: 0,
        num_blocks: u32::MAX,
    };
    let keys = f64::from(context * shape.num_kv_heads);
    let (level, name) = (Level::Baseline.name(), format!("{context}, {bits} bits, {}", heads.name()));
    let hash = Work::new("hash_codes", level, name.clone())
        .costs(
            f64::from(context) * heads.token_bytes() / 2.0 + keys * 4.0 * f64::from(words),
            keys * 2.0 * f64::from(shape.head_dim * bits),
        )
        .dispatch(
            hash_codes::variant(shape, HashSource::Keys),
            &params,
            binds([(&slots).into(), (&cache.k).into(), (&weights).into(), (&codes).into()]),
            hash_codes::grid(&params),
        );
    let params = HammingScoreParams {
        num_kv_heads: shape.num_kv_heads,
        score_stride: context.div_ceil(SELECT_BLOCK),
        sink_tokens: SELECT_BLOCK,
        recent_tokens: SELECT_BLOCK,
        must_select: [0; 4],
        num_must: 0,
        infinity: f32::INFINITY,
    };
    let query = random(gpu, KvDtype::Int8, (shape.num_kv_heads * words * 4) as usize, 3)?;
    let scores = gpu.buffer::<f32>("scores", params.score_stride as usize)?;
    let rows = gpu.upload("rows", &cache.rows)?;
    let score = Work::new("hamming_score", level, name).costs(keys * 4.0 * f64::from(words), 0.0).dispatch(
        hamming_score::variant(shape, SELECT_BLOCK, words),
        &params,
        binds([(&query).into(), (&codes).into(), (&cache.tables).into(), (&rows).into(), (&scores).into()]),
        hamming_score::grid(&params, SELECT_BLOCK, 1),
    );
    Ok([hash, score])
}
