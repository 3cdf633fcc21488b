//! Caches in FlashAttention's layout: what is written and gathered is that of the engine's, element by element.

use super::by_hand::dispatch;
use super::device::{assert_bits, cases, gpu};
use super::layer::queries;
use attn_kernels::gpu::{Bound, Buf, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};
use attn_kernels::kernel::paged_decode::{self, Lanes};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::FloatLayout;
use attn_kernels::self_test::layer::{cache_words, converted};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// One sequence's keys and values, written into a cache of NaN and gathered from it again: both buffers and what was gathered, in
/// the layout of the shape.
fn through(gpu: &Gpu, shape: &KvShape, (len, seed): (u32, u64)) -> [Vec<f32>; 4] {
    let blocks = len.div_ceil(shape.block_size) + 2;
    let mut table: Vec<u32> = (0..blocks).collect();
    table.shuffle(&mut StdRng::seed_from_u64(seed));
    let width = shape.num_kv_heads * shape.head_dim;
    let write = cache_write::variant(shape);
    let nan = vec![f32::NAN; blocks as usize * shape.block_elements()];
    let cache = |index| gpu.upload("cache", &cache_words(shape, index, &nan)).unwrap();
    let (k, v): (Buf<u32>, Buf<u32>) = (cache(KvShape::k_index), cache(KvShape::v_index));

    let params = CacheWriteParams {
        rows: len,
        num_kv_heads: shape.num_kv_heads,
        row_stride: 2 * width,
        k_start: 0,
        v_start: width,
        k_scale: 0.5,
        v_scale: 2.0,
    };
    let size = shape.block_size;
    let slot = |token: u32| (table[(token / size) as usize] * size + token % size).cast_signed();
    let slots: Vec<i32> = (0..len).map(slot).collect();
    let kv = gpu.upload("kv", &queries(len as usize, 2 * width as usize, 2 * width as usize, seed)).unwrap();
    let slots = gpu.upload("slots", &slots).unwrap();
    let mut pass = Pass::new("layout");
    let bindings: [Bound; 4] = [(&kv).into(), (&slots).into(), (&k).into(), (&v).into()];
    dispatch(gpu, &mut pass, &write, &params, &bindings);

    let params = GatherCacheParams {
        num_kv_heads: shape.num_kv_heads,
        list_stride: 0,
        k_scale: 0.5,
        v_scale: 2.0,
        max_keys: len,
        spans: 1,
    };
    let out = || gpu.buffer::<f32>("out", (len * width) as usize).unwrap();
    let (k_out, v_out) = (out(), out());
    let (spans, tables) =
        (gpu.upload("spans", &[[0, len, 0, 0]]).unwrap(), gpu.upload("tables", &table).unwrap());
    let bindings: [Bound; 6] =
        [(&spans).into(), (&k).into(), (&v).into(), (&tables).into(), (&k_out).into(), (&v_out).into()];
    let gather = gather_cache::variant(shape, Context::Full);
    dispatch(gpu, &mut pass, &gather, &params, &bindings);

    let caches = [&k, &v].map(|buf| pass.read(buf, 0..buf.len()));
    let gathered = [&k_out, &v_out].map(|buf| pass.read(buf, 0..buf.len()));
    let outcome = gpu.submit(pass).unwrap().wait().unwrap();
    let [k, v] = caches.map(|read| outcome.get(read));
    let [k_out, v_out] = gathered.map(|read| outcome.get(read));
    let native = KvShape { layout: KvLayout::Native, ..*shape };
    let own = |words: &[u32], index| {
        converted(&FloatLayout::cache(shape, index).values(words), (shape, index), (&native, index))
    };
    [own(&k, KvShape::k_index), own(&v, KvShape::v_index), k_out, v_out]
}

proptest! {
    #![proptest_config(cases(4))]
    #[test]
    fn tokens_are_where_the_layout_has_them(
        kv_heads in 1u32..5,
        (eighths, log_block) in (1u32..18, 2u32..6),
        dtype in prop::sample::select(&[KvDtype::F16, KvDtype::F32, KvDtype::Fp8][..]),
        len in 1u32..150,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let shape =
                KvShape { num_kv_heads: kv_heads, head_dim: 8 * eighths, block_size: 1 << log_block, dtype, layout: KvLayout::Native };
            let [own, other] = [KvLayout::Native, KvLayout::Flash].map(|layout| through(gpu, &KvShape { layout, ..shape }, (len, seed)));
            for ((what, want), got) in ["keys", "values", "gathered keys", "gathered values"].iter().zip(own).zip(other) {
                // Slots that nothing was written to are NaN, of whatever bits.
                let canonical = |x: Vec<f32>| -> Vec<f32> {
                    x.into_iter().map(|x| if x.is_nan() { f32::NAN } else { x }).collect()
                };
                assert_bits(&format!("{what}, {shape:?}"), &canonical(got), &canonical(want));
            }
        }
    }
}

#[test]
fn the_layout_is_the_published_one() {
    let shape =
        KvShape { num_kv_heads: 3, head_dim: 8, block_size: 4, dtype: KvDtype::F16, layout: KvLayout::Flash };
    // Row major, [block][token][head][dimension].
    let places: Vec<usize> = [(0, 0, 0, 1), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0), (2, 2, 3, 7)]
        .into_iter()
        .map(|(block, head, offset, dim)| shape.k_index(block, head, offset, dim))
        .collect();
    assert_eq!(places, [1, 8, 24, 96, 2 * 96 + 3 * 24 + 2 * 8 + 7]);
}

fn shape(dtype: KvDtype) -> KvShape {
    KvShape { num_kv_heads: 1, head_dim: 64, block_size: 16, dtype, layout: KvLayout::Flash }
}

#[test]
#[should_panic(expected = "kernel paged_decode: slot kv has nothing for (Flash, F16)")]
fn other_kernels_are_refused() {
    let _ = paged_decode::variant(&shape(KvDtype::F16), 4, Lanes::Workgroup, &Attention::default());
}

#[test]
#[should_panic(expected = "kernel cache_write: slot kv has nothing for (Flash, Int8)")]
fn other_types_are_refused() {
    let _ = cache_write::variant(&shape(KvDtype::Int8));
}
