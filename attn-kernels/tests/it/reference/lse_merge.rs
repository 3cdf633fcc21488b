//! `lse_merge` against its reference, and against attention over both sets of keys.

use super::device::{assert_close, cases, dispatch, gpu};
use super::layer::{ATTENTION, Layer, queries};
use attn_kernels::cpu::attention::attend;
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Weights are `exp` of a difference of at most 40: 3 + 2|x| units in the last place (WGSL's bound).
const MERGE: Tolerance = Tolerance { abs: 1e-6, rel: 2e-5 };

fn merge(gpu: &Gpu, head_dim: u32, a: (&[f32], &[f32]), b: (&[f32], &[f32])) -> (Vec<f32>, Vec<f32>) {
    let rows = u32::try_from(a.1.len()).unwrap();
    let params = LseMergeParams::new(rows);
    let buffers = [b.0, b.1, a.0, a.1].map(|data| gpu.upload("merge", data).unwrap());
    let lens = |side: usize| [b, a].map(|set| [set.0.len(), set.1.len()][side]);
    lse_merge::check(head_dim, &params, lens(0), lens(1)).unwrap();
    let mut pass = Pass::new("lse_merge");
    let bindings: Vec<_> = buffers.iter().map(Into::into).collect();
    let grid = lse_merge::grid(head_dim, rows);
    dispatch(gpu, &mut pass, &lse_merge::variant(head_dim), &params, &bindings, grid);
    let reads = [2, 3].map(|i: usize| pass.read(&buffers[i], 0..buffers[i].len()));
    let outcome = gpu.submit(pass).unwrap().wait().unwrap();
    let [out, lse] = reads.map(|read| outcome.get(read));
    (out, lse)
}

fn check(gpu: &Gpu, head_dim: u32, a_lse: &[f32], b_lse: &[f32], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut random = || (0..a_lse.len() * head_dim as usize).map(|_| rng.random_range(-2.0..2.0)).collect();
    let (a, b): (Vec<f32>, Vec<f32>) = (random(), random());
    let (out, lse) = merge(gpu, head_dim, (&a, a_lse), (&b, b_lse));
    let (mut want_out, mut want_lse) = (a, a_lse.to_vec());
    cpu::lse_merge::lse_merge(head_dim as usize, &b, b_lse, &mut want_out, &mut want_lse);
    assert_close(&format!("out {a_lse:?} {b_lse:?}"), MERGE, &out, &want_out);
    assert_close(&format!("lse {a_lse:?} {b_lse:?}"), MERGE, &lse, &want_lse);
}

#[test]
fn sides_without_keys() {
    let Some(gpu) = gpu() else { return };
    let lse = [f32::NEG_INFINITY, f32::INFINITY, 0.0, -700.0, 700.0, -30.0];
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for x in lse {
        for y in lse {
            a.push(x);
            b.push(y);
        }
    }
    check(gpu, 64, &a, &b, 1);
}

#[test]
fn two_halves_are_the_whole() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F32,
        layout: KvLayout::Native,
    };
    let layer = Layer::new(shape, &[100], 3);
    let q = queries(1, 64, 64, 4);
    let part = |keys| {
        let state = attend(&layer.kv(), &layer.tables, 0, &q, keys, |product, _| 0.125 * product);
        (state.output().collect::<Vec<_>>(), [state.lse()])
    };
    let (a, b, whole) = (part(0..37), part(37..100), part(0..100));
    let (out, lse) = merge(gpu, 64, (&a.0, &a.1), (&b.0, &b.1));
    assert_close("output", ATTENTION, &out, &whole.0);
    assert_close("lse", ATTENTION, &lse, &whole.1);
}

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn merges_as_the_reference_does(
        head_dim in prop::sample::select(vec![4u32, 60, 64, 128, 256]),
        lse in prop::collection::vec((-20.0f32..20.0, -20.0f32..20.0), 1..70),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let (a, b): (Vec<f32>, Vec<f32>) = lse.into_iter().unzip();
            check(gpu, head_dim, &a, &b, seed);
        }
    }
}
