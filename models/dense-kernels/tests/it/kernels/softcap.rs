//! `softcap` against its reference, of logits of any size.

use super::device::{assert_close, cases, dispatch, gpu};
use super::tensors::floats;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::Pass;
use dense_kernels::cpu;
use dense_kernels::kernel::softcap::{self, SoftcapParams};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn bounds_logits(rows in 1u32..9, cols in 1u32..200, cap in 0.1f32..60.0, size in prop::sample::select(vec![1.0f32, 1e3, 1e30]), seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let params = SoftcapParams { rows, cols, cap };
        let mut x: Vec<f32> = floats((rows * cols) as usize + 3, seed).iter().map(|x| x * size).collect();
        let out = gpu.upload("x", &x).unwrap();
        let mut pass = Pass::new("softcap");
        dispatch(gpu, &mut pass, &softcap::variant(), &params, &[(&out).into()]);
        let read = pass.read(&out, 0..out.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::softcap::softcap(&params, &mut x);
        assert_close(&format!("{params:?}"), Tolerance { abs: 1e-5 * f64::from(cap), rel: 1e-5 }, &got, &x);
        let bounded = &got[..(rows * cols) as usize];
        prop_assert!(bounded.iter().all(|x| x.abs() <= cap * 1.000_001), "a logit beyond {cap}");
    }
}
