//! The kernels round attention: cache operations, and those that select what is attended.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bind, Gpu};
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use attn_kernels::kernel::index_logits::{self, IndexKeys, IndexLogitsParams};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};
use attn_kernels::kernel::top_k::{self, Output, TopKParams, Transform};
use attn_kernels::kernel::{KvDtype, flat_grid, index_logits_coop};

use super::attention::{Cache, Heads};
use super::ceiling::random;
use super::work::Work;

/// Tokens of a block that scores are of.
const SELECT_BLOCK: u32 = 64;

fn binds<const N: usize>(binds: [Bind; N]) -> [Bind; N] {
    binds
}

/// Keys and values of `rows` tokens into the cache.
pub(super) fn cache_write(gpu: &Gpu, heads: &Heads, rows: u32) -> Result<Work> {
    let shape = &heads.shape;
    let width = shape.num_kv_heads * shape.head_dim;
    let cache = Cache::new(gpu, shape, 1, rows)?;
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
        pad0: 0,
    };
    let bytes = f64::from(rows) * 2.0 * f64::from(width) * (4.0 + shape.dtype.bytes() as f64);
    let bindings = binds([(&kv).into(), (&slots).into(), (&cache.k).into(), (&cache.v).into()]);
    Ok(Work::new("cache_write", Level::Baseline.name(), format!("{rows} rows, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(cache_write::variant(shape), &params, bindings, cache_write::grid(shape, rows)))
}

/// `copies` blocks to others.
pub(super) fn copy_blocks(gpu: &Gpu, heads: &Heads, copies: u32) -> Result<Work> {
    let shape = &heads.shape;
    let cache = Cache::new(gpu, shape, 1, 2 * copies * shape.block_size)?;
    let pairs: Vec<[u32; 2]> = (0..copies).map(|i| [i * 7919 % copies, copies + i]).collect();
    let pairs = gpu.upload("pairs", &pairs)?;
    let params = CopyBlocksParams { block_quads: copy_blocks::block_quads(shape), pad0: 0, pad1: 0, pad2: 0 };
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
    let params = LseMergeParams { rows, neg_inf: f32::NEG_INFINITY, pad0: 0, pad1: 0 };
    let bindings = binds([(&b).into(), (&b_lse).into(), (&a).into(), (&a_lse).into()]);
    Ok(Work::new("lse_merge", Level::Baseline.name(), format!("{rows} rows of {dim}"))
        .costs(f64::from(rows) * 12.0 * f64::from(dim), 0.0)
        .dispatch(lse_merge::variant(dim), &params, bindings, lse_merge::grid(rows)))
}

/// Digests of all pages of one sequence.
pub(super) fn block_digest(gpu: &Gpu, heads: &Heads, context: u32) -> Result<Work> {
    let shape = &heads.shape;
    let cache = Cache::new(gpu, shape, 1, context)?;
    let touched: Vec<[u32; 2]> = (0..cache.blocks).map(|block| [block, shape.block_size]).collect();
    let digests = gpu.buffer::<f32>("digests", Digest::MinMax.pool_len(shape, touched.len()))?;
    let touched = gpu.upload("touched", &touched)?;
    let params =
        BlockDigestParams { num_kv_heads: shape.num_kv_heads, touched: cache.blocks, pad0: 0, pad1: 0 };
    let bytes = (cache.k.len() + digests.len()) as f64 * 4.0;
    let bindings = binds([(&touched).into(), (&cache.k).into(), (&digests).into()]);
    let variant = block_digest::variant(shape, Digest::MinMax);
    let grid = block_digest::grid(shape, cache.blocks);
    Ok(Work::new("block_digest", Level::Baseline.name(), format!("min/max of {context}, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(variant, &params, bindings, grid))
}

/// Bounds of all blocks for one row of each of `batch` sequences.
pub(super) fn block_score(gpu: &Gpu, heads: &Heads, [batch, context]: [u32; 2]) -> Result<Work> {
    let (shape, num_heads) = (&heads.shape, heads.num_heads);
    let pages = context.div_ceil(shape.block_size);
    let pool = Digest::MinMax.pool_len(shape, (batch * pages) as usize);
    let digests = random(gpu, KvDtype::F32, pool, 1)?;
    let tables: Vec<u32> = (0..batch * pages).map(|i| i * 7919 % (batch * pages)).collect();
    let tables = gpu.upload("tables", &tables)?;
    let q = random(gpu, KvDtype::F32, (batch * num_heads * shape.head_dim) as usize, 2)?;
    let rows: Vec<[u32; 4]> = (0..batch).map(|row| [row, context, row * pages, 0]).collect();
    let rows = gpu.upload("rows", &rows)?;
    let params = BlockScoreParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: num_heads * shape.head_dim,
        heads_a_set: num_heads / shape.num_kv_heads,
        score_stride: context.div_ceil(SELECT_BLOCK),
        sink_blocks: 1,
        recent_blocks: 1,
        recent_full: 0,
        scale: 1.0,
        infinity: f32::INFINITY,
        pad0: 0,
        pad1: 0,
    };
    let scores = gpu.buffer::<f32>("scores", block_score::scores_len(&params, batch as usize))?;
    let bindings =
        binds([(&q).into(), (&digests).into(), (&tables).into(), (&rows).into(), (&scores).into()]);
    let variant = block_score::variant(shape, num_heads, Digest::MinMax, SELECT_BLOCK);
    let grid = block_score::grid(&params, batch);
    let operations = 4.0 * digests.len() as f64 / 2.0 * f64::from(num_heads / shape.num_kv_heads);
    Ok(Work::new("block_score", Level::Baseline.name(), format!("{batch} x {context}, {}", heads.name()))
        .costs(digests.len() as f64 * 4.0, operations)
        .dispatch(variant, &params, bindings, grid))
}

/// The `k` largest of each of `rows` rows of `len` scores.
pub(super) fn top_k(gpu: &Gpu, rows: u32, len: u32, k: u32) -> Result<Work> {
    let scores = random(gpu, KvDtype::F32, rows as usize * len as usize, 1)?;
    let list: Vec<[u32; 4]> = (0..rows).map(|row| [row * len, len, k, 0]).collect();
    let list = gpu.upload("rows", &list)?;
    let table = gpu.buffer::<u32>("table", 1)?;
    let out = gpu.buffer::<u32>("out", (rows * k) as usize)?;
    let params = TopKParams { rows, out_stride: k, copies: 1, page_size: 1 };
    let level = gpu.level().min(Level::Subgroup);
    let variant = top_k::variant(Output::Positions(Transform::None), level);
    let bindings = binds([(&scores).into(), (&list).into(), (&table).into(), (&out).into()]);
    Ok(Work::new("top_k", level.name(), format!("{k} of {len}, {rows} rows"))
        .costs(scores.len() as f64 * 4.0, 0.0)
        .dispatch(variant, &params, bindings, flat_grid(rows)))
}

/// Logits of one query of 64 heads of 128 over fp8 index keys.
pub(super) fn index_logits(gpu: &Gpu, context: u32) -> Result<Work> {
    let (num_heads, head_dim, page) = (64, 128, 64);
    let keys = IndexKeys::Fp8 { head_dim, page };
    let pages = context.div_ceil(page);
    // Codes of any bits are numbers or NaN: the time is the same.
    let cache = random(gpu, KvDtype::F16, (pages * page * (head_dim + 4) / 2) as usize, 1)?;
    let tables: Vec<u32> = (0..pages).map(|i| i * 7919 % pages).collect();
    let tables = gpu.upload("tables", &tables)?;
    let q = random(gpu, KvDtype::F32, (num_heads * head_dim) as usize, 2)?;
    let gates = random(gpu, KvDtype::F32, num_heads as usize, 3)?;
    let rows = gpu.upload("rows", &[[0, 0, context, 0u32]])?;
    let logits = gpu.buffer::<f32>("logits", context as usize)?;
    let params = IndexLogitsParams { num_heads, logit_stride: context, neg_inf: f32::NEG_INFINITY, pad0: 0 };
    let bindings = binds([
        (&q).into(),
        (&cache).into(),
        (&tables).into(),
        (&rows).into(),
        (&gates).into(),
        (&logits).into(),
    ]);
    let operations = 2.0 * f64::from(num_heads * head_dim) * f64::from(context);
    let (kernel, level, variant, grid) = match gpu.runs_coop() {
        true => (
            "index_logits_coop",
            Level::Coop,
            index_logits_coop::variant(&keys),
            index_logits_coop::grid(&params, 1),
        ),
        false => {
            ("index_logits", Level::Baseline, index_logits::variant(&keys), index_logits::grid(&params, 1))
        }
    };
    Ok(Work::new(kernel, level.name(), format!("1 x {context}, 64 x 128, fp8"))
        .costs(cache.len() as f64 * 4.0, operations)
        .dispatch(variant, &params, bindings, grid))
}
