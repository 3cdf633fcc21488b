//! `rms_norm`, `norm_heads`, `bias`, `rope`, `softcap` and `log_prob` against their references.

use super::device::{assert_close, cases, dispatch, gpu};
use super::tensors::floats;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::{Variant, gpu};
use bytemuck::Pod;
use dense_kernels::kernel::bias::{self, BiasParams};
use dense_kernels::kernel::log_prob::{self, LogProbParams};
use dense_kernels::kernel::norm_heads::{self, Norm, NormHeadsParams};
use dense_kernels::kernel::rms_norm::{self, RmsNormParams};
use dense_kernels::kernel::rope::{self, RopeParams};
use dense_kernels::kernel::softcap::{self, SoftcapParams};
use dense_kernels::{Pairing, cpu};
use proptest::prelude::*;

/// A sum of up to some thousand squares or exponentials, divided, rooted or logged: some tens of units of 2^-24.
const ROW: Tolerance = Tolerance { abs: 2e-6, rel: 5e-6 };

/// Runs one kernel whose last binding is f32, and returns that.
fn run<P: Pod>(
    gpu: &Gpu,
    variant: &Variant,
    params: &P,
    inputs: &[Bound],
    out: &gpu::Buf<f32>,
    grid: [u32; 3],
) -> Vec<f32> {
    let mut pass = Pass::new("rows");
    let bindings: Vec<Bound> = inputs.iter().cloned().chain([out.into()]).collect();
    dispatch(gpu, &mut pass, variant, params, &bindings, grid);
    let read = pass.read(out, 0..out.len());
    gpu.submit(pass).unwrap().wait().unwrap().get(read)
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn norms_rows(
        rows in 1u32..9,
        width in prop_oneof![1u32..200, Just(576u32), Just(2048u32)],
        first in 0u32..5,
        gather: bool,
        lanes in prop::sample::select(vec![64u32, 256]),
        size in prop_oneof![Just(1.0f32), Just(1e-4), Just(1e4)],
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let params = RmsNormParams { rows, width, eps: 1e-5, first };
        let x: Vec<f32> = floats((rows * width) as usize, seed).iter().map(|x| x * size).collect();
        let weight = floats(width as usize, seed ^ 1);
        // In reverse, and the first of them twice.
        let sources: Vec<u32> = (0..first + rows).map(|i| (first + rows - 1 - i).min(rows - 1)).collect();
        let buffers = (gpu.upload("x", &x).unwrap(), gpu.upload("sources", &sources).unwrap());
        let weights = gpu.upload("weight", &weight).unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; x.len()]).unwrap();
        let inputs = [(&buffers.0).into(), (&buffers.1).into(), (&weights).into()];
        let form = if gather { rms_norm::Form::Gather } else { rms_norm::Form::Store };
        let variant = rms_norm::variant(form, lanes, gpu.level());
        let got = run(gpu, &variant, &params, &inputs, &out, rms_norm::grid(&params));
        let mut want = vec![f32::NAN; x.len()];
        cpu::rms_norm::rms_norm(&params, &x, gather.then_some(&sources[..]), &weight, &mut want);
        assert_close(&format!("{params:?}"), ROW, &got, &want);
    }

    #[test]
    fn norms_heads_in_place(
        rows in 1u32..6,
        heads in 1u32..5,
        width in prop_oneof![1u32..150, Just(512u32)],
        [before, after] in [0u32..9, 0u32..9],
        norm in prop::sample::select(vec![Norm::Rms, Norm::Layer]),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let stride = before + heads * width + after;
        let params = NormHeadsParams { rows, heads, width, stride, first: before, eps: 1e-5 };
        let mut x = floats((rows * stride) as usize, seed);
        let weight = floats(2 * width as usize, seed ^ 1);
        let (weights, out) = (gpu.upload("weight", &weight).unwrap(), gpu.upload("x", &x).unwrap());
        let variant = norm_heads::variant(norm, gpu.level());
        let got = run(gpu, &variant, &params, &[(&weights).into()], &out, norm_heads::grid(&params));
        cpu::norm_heads::norm_heads(&params, norm, &weight, &mut x);
        assert_close(&format!("{params:?}, {norm:?}"), ROW, &got, &x);
    }

    #[test]
    fn adds_a_bias(rows in 1u32..9, cols in 1u32..200, [first, gap] in [0u32..9, 0u32..9], form in prop::sample::select(vec![bias::Form::Store, bias::Form::Add]), seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let stride = first + cols + gap;
        let params = BiasParams { rows, cols, stride, first };
        let mut y = floats((rows * stride) as usize, seed);
        let added = floats(cols as usize, seed ^ 1);
        let (added_buf, out) = (gpu.upload("added", &added).unwrap(), gpu.upload("y", &y).unwrap());
        let bindings = [(&added_buf).into()];
        let got = run(gpu, &bias::variant(form), &params, &bindings, &out, bias::grid(&params));
        cpu::bias::bias(&params, form, &added, &mut y);
        assert_close(&format!("{params:?}, {form:?}"), Tolerance { abs: 0.0, rel: 0.0 }, &got, &y);
    }

    #[test]
    fn bounds_logits(rows in 1u32..9, cols in 1u32..200, cap in 0.1f32..60.0, size in prop::sample::select(vec![1.0f32, 1e3, 1e30]), seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let params = SoftcapParams { rows, cols, cap };
        let mut x: Vec<f32> = floats((rows * cols) as usize + 3, seed).iter().map(|x| x * size).collect();
        let out = gpu.upload("x", &x).unwrap();
        let got = run(gpu, &softcap::variant(), &params, &[], &out, softcap::grid(&params));
        cpu::softcap::softcap(&params, &mut x);
        assert_close(&format!("{params:?}"), Tolerance { abs: 1e-5 * f64::from(cap), rel: 1e-5 }, &got, &x);
        let bounded = &got[..(rows * cols) as usize];
        prop_assert!(bounded.iter().all(|x| x.abs() <= cap * 1.000_001), "a logit beyond {cap}");
    }

    #[test]
    fn turns_heads(
        rows in 1u32..20,
        heads in 1u32..5,
        head_dim in prop::sample::select(vec![16u32, 64, 80, 128]),
        whole: bool,
        pairing in prop::sample::select(vec![Pairing::Halves, Pairing::Interleaved]),
        gap in 0u32..7,
        first in 0u32..4,
        back in 0u32..2,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let pairs = if whole { head_dim / 2 } else { head_dim / 4 };
        let stride = heads * head_dim + gap;
        let first = if whole { 0 } else { first * 2 };
        let params = RopeParams { rows, heads, stride, pairs, first, back };
        let angles = floats((rows * pairs) as usize, seed);
        let cs: Vec<[f32; 2]> = angles.iter().map(|a| [(a * 4.0).cos(), (a * 4.0).sin()]).collect();
        let mut x = floats((rows * stride) as usize, seed ^ 1);
        let (cs_buf, out) = (gpu.upload("cs", &cs).unwrap(), gpu.upload("x", &x).unwrap());
        let variant = rope::variant(head_dim, pairing);
        let got = run(gpu, &variant, &params, &[(&cs_buf).into()], &out, rope::grid(&params));
        cpu::rope::rope(head_dim as usize, pairing, &params, &cs, &mut x);
        // Two products and a sum, fused or not.
        let tolerance = Tolerance { abs: 3e-7, rel: 0.0 };
        assert_close(&format!("{params:?}, {pairing:?}"), tolerance, &got, &x);
    }

    #[test]
    fn scores_targets(
        rows in 1u32..6,
        vocab in prop_oneof![1u32..600, Just(49_152u32)],
        size in prop_oneof![Just(1.0f32), Just(40.0)],
        target: prop::sample::Index,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let params = LogProbParams { rows, vocab };
        let logits: Vec<f32> = floats((rows * vocab) as usize, seed).iter().map(|x| x * size).collect();
        let first = u32::try_from(target.index(vocab as usize)).unwrap();
        let targets: Vec<u32> = (0..rows).map(|row| (first + row) % vocab).collect();
        let buffers = (gpu.upload("logits", &logits).unwrap(), gpu.upload("targets", &targets).unwrap());
        let out = gpu.upload("out", &vec![f32::NAN; rows as usize]).unwrap();
        let inputs = [(&buffers.0).into(), (&buffers.1).into()];
        let got = run(gpu, &log_prob::variant(), &params, &inputs, &out, log_prob::grid(&params));
        let mut want = vec![f32::NAN; rows as usize];
        cpu::log_prob::log_prob(vocab as usize, &logits, &targets, &mut want);
        // Logits of up to 40 bring their own rounding: some units of 40 * 2^-24.
        let tolerance = Tolerance { abs: 2e-5, rel: 5e-6 };
        assert_close(&format!("{params:?} {targets:?}"), tolerance, &got, &want);
    }
}
