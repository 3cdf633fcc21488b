//! `cache_write` against its reference.

use super::by_hand::{assert_close, dispatch};
use super::device::gpu;
use super::layer::{cache_words, queries};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::FloatLayout;
use attn_kernels::self_test::layer::Index;

/// WGSL leaves the direction of rounding to f16 open: one unit in the last place. f32 is only moved.
fn tolerance(dtype: KvDtype) -> Tolerance {
    match dtype {
        KvDtype::F16 => Tolerance { abs: f64::exp2(-24.0), rel: f64::exp2(-10.0) },
        KvDtype::F32 => Tolerance::EXACT,
        // The neighbour of a code, where the quotient is a tie: rows reach to 4, scales of fp8 to 0.25.
        KvDtype::Fp8 => Tolerance { abs: f64::exp2(-10.0), rel: f64::exp2(-3.0) },
        KvDtype::Int8 => Tolerance { abs: 4.0 / 126.0, rel: 0.0 },
    }
}

/// Writes `kv` to `slots` of a cache of NaN.
fn check(gpu: &Gpu, shape: KvShape, params: &CacheWriteParams, kv: &[f32], slots: &[i32], num_blocks: u32) {
    let nan = vec![f32::NAN; num_blocks as usize * shape.block_elements()];
    let index: [Index; 2] = [KvShape::k_index, KvShape::v_index];
    let [k, v] = index.map(|index| gpu.upload("cache", &cache_words(&shape, index, &nan)).unwrap());
    let source = gpu.upload("kv", kv).unwrap();
    let slot_buf = gpu.upload("slots", slots).unwrap();
    let mut pass = Pass::new("cache_write");
    let bindings = [(&source).into(), (&slot_buf).into(), (&k).into(), (&v).into()];
    dispatch(gpu, &mut pass, &cache_write::variant(&shape), params, &bindings);
    let reads = [pass.read(&k, 0..k.len()), pass.read(&v, 0..v.len())];
    let outcome = gpu.submit(pass).unwrap().wait().unwrap();

    let (mut k, mut v) = (nan.clone(), nan);
    cpu::cache_write::cache_write(&shape, params, kv, slots, &mut k, &mut v);
    let caches: [(_, Index, _, _); 2] =
        [("k_cache", KvShape::k_index, params.k_scale, k), ("v_cache", KvShape::v_index, params.v_scale, v)];
    for ((name, index, scale, want), read) in caches.into_iter().zip(reads) {
        let what = format!("{name} {shape:?} {params:?}");
        let mut got = FloatLayout::cache(&shape, index).values(&outcome.get(read));
        if shape.dtype == KvDtype::Fp8 {
            got.iter_mut().for_each(|x| *x *= scale);
        }
        assert_close(&what, tolerance(shape.dtype), &got, &want);
    }
}

fn params(shape: &KvShape, rows: u32, [before, between, after]: [u32; 3]) -> CacheWriteParams {
    let width = shape.num_kv_heads * shape.head_dim;
    CacheWriteParams {
        rows,
        num_kv_heads: shape.num_kv_heads,
        row_stride: before + width + between + width + after,
        k_start: before,
        v_start: before + width + between,
        // All values that fp8 represents, and some that saturate.
        k_scale: 0.25,
        v_scale: f32::exp2(-8.0),
    }
}

#[test]
fn rows_beyond_one_dimension_of_a_grid() {
    let Some(gpu) = gpu() else { return };
    // 70,000 workgroups of 64 lanes, more than one dimension takes. Rows overlap, and few have a slot, to save memory.
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 256,
        block_size: 256,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let rows = 140_000;
    let params = CacheWriteParams { row_stride: 8, ..params(&shape, rows, [0; 3]) };
    assert!(cache_write::variant(&shape).grid(&params)[1] > 1);
    let kv = queries(1, rows as usize * 8 + 512, rows as usize * 8 + 512, 7);
    let slots: Vec<i32> = (0..140_000).map(|row| if row % 500 == 499 { row / 500 } else { -1 }).collect();
    check(gpu, shape, &params, &kv, &slots, 2);
}
