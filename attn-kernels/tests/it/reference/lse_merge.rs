//! `lse_merge` against attention over both sets of keys.

use super::by_hand::{assert_close, dispatch};
use super::device::gpu;
use super::layer::{ATTENTION, Layer, queries};
use attn_kernels::cpu::attention::attend;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};

fn merge(gpu: &Gpu, head_dim: u32, a: (&[f32], &[f32]), b: (&[f32], &[f32])) -> (Vec<f32>, Vec<f32>) {
    let rows = u32::try_from(a.1.len()).unwrap();
    let params = LseMergeParams::new(rows);
    let buffers = [b.0, b.1, a.0, a.1].map(|data| gpu.upload("merge", data).unwrap());
    let mut pass = Pass::new("lse_merge");
    let bindings: Vec<_> = buffers.iter().map(Into::into).collect();
    dispatch(gpu, &mut pass, &lse_merge::variant(head_dim), &params, &bindings);
    let reads = [2, 3].map(|i: usize| pass.read(&buffers[i], 0..buffers[i].len()));
    let outcome = gpu.submit(pass).unwrap().wait().unwrap();
    let [out, lse] = reads.map(|read| outcome.get(read));
    (out, lse)
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
