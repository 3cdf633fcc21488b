//! The kernels round attention that move data.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bind, Gpu};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};

use super::attention::{Cache, Heads};
use super::ceiling::random;
use super::work::Work;

fn binds<const N: usize>(binds: [Bind; N]) -> [Bind; N] {
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
    let cache = Cache::new(gpu, shape, &[2 * copies * shape.block_size])?;
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
    let cache = Cache::new(gpu, shape, &[context])?;
    let blocks = u32::try_from(cache.table.len())?;
    let touched: Vec<[u32; 2]> = (0..blocks).map(|block| [block, shape.block_size]).collect();
    let digests = gpu.buffer::<f32>("digests", Digest::MinMax.pool_len(shape, touched.len()))?;
    let touched = gpu.upload("touched", &touched)?;
    let params = BlockDigestParams { num_kv_heads: shape.num_kv_heads, touched: blocks, pad0: 0, pad1: 0 };
    let bytes = (cache.k.len() + digests.len()) as f64 * 4.0;
    let bindings = binds([(&touched).into(), (&cache.k).into(), (&digests).into()]);
    let variant = block_digest::variant(shape, Digest::MinMax);
    let grid = block_digest::grid(shape, blocks);
    Ok(Work::new("block_digest", Level::Baseline.name(), format!("min/max of {context}, {}", heads.name()))
        .costs(bytes, 0.0)
        .dispatch(variant, &params, bindings, grid))
}
