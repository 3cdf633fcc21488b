//! `apply_sinks` against its reference.

use super::device::{assert_close, cases, dispatch, gpu};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::apply_sinks::{self, ApplySinksParams};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Shares are `exp` of a difference of at most 40: 3 + 2|x| units in the last place (WGSL's bound).
const SHARE: Tolerance = Tolerance { abs: 1e-6, rel: 2e-5 };

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn scales_as_the_reference_does(
        head_dim in prop::sample::select(vec![4u32, 40, 64, 256]),
        num_heads in 1u32..9,
        rows in 1u32..40,
        first_row in 0u32..5,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let mut rng = StdRng::seed_from_u64(seed);
        let count = ((first_row + rows + 2) * num_heads) as usize;
        let mut out: Vec<f32> = (0..count * head_dim as usize).map(|_| rng.random_range(-2.0..2.0)).collect();
        let mut lse: Vec<f32> = (0..count).map(|_| rng.random_range(-20.0..20.0)).collect();
        let mut sinks: Vec<f32> = (0..num_heads).map(|_| rng.random_range(-20.0..20.0)).collect();
        sinks[0] = f32::NEG_INFINITY;
        // A row without keys.
        let none = (first_row * num_heads) as usize;
        lse[none] = f32::NEG_INFINITY;
        out[none * head_dim as usize..(none + 1) * head_dim as usize].fill(0.0);

        let params = ApplySinksParams { first_row, rows, num_heads };
        apply_sinks::check(head_dim, &params, [lse.len(), sinks.len(), out.len()]).unwrap();
        let buffers = [&lse, &sinks, &out].map(|data| gpu.upload("sinks", data).unwrap());
        let bindings: Vec<_> = buffers.iter().map(Into::into).collect();
        let mut pass = Pass::new("apply_sinks");
        let grid = apply_sinks::grid(num_heads, head_dim, rows);
        dispatch(gpu, &mut pass, &apply_sinks::variant(head_dim), &params, &bindings, grid);
        let read = pass.read(&buffers[2], 0..out.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::apply_sinks::apply_sinks(head_dim as usize, &params, &lse, &sinks, &mut out);
        assert_close(&format!("{lse:?} {sinks:?}"), SHARE, &got, &out);
    }
}
