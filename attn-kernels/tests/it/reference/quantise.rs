//! `quantise` and `dequantise`: what comes back is within half a step.

use super::by_hand::dispatch;
use super::device::{cases, gpu};
use attn_kernels::cpu;
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::dequantise::{self, DequantiseParams};
use attn_kernels::kernel::quantise::{self, Code, QuantiseParams, Scale};
use attn_kernels::self_test::layer::floats;
use proptest::prelude::*;

fn kinds() -> impl Strategy<Value = (Code, Scale)> {
    prop::sample::select(vec![
        (Code::Fp8, Scale::Given),
        (Code::Fp8, Scale::PerRow),
        (Code::Fp8, Scale::Ue8m0),
        (Code::Int8, Scale::Given),
        (Code::Int8, Scale::PerRow),
    ])
}

/// Half of the step from a code to the next one, at `x`.
fn half_step(code: Code, scale: f32, x: f32) -> f32 {
    match code {
        Code::Int8 => scale / 2.0,
        // Three bits of mantissa; below 2^-6 steps of 2^-9.
        Code::Fp8 => (x.abs() / 16.0).max(scale / 1024.0),
    }
}

proptest! {
    #![proptest_config(cases(12))]
    #[test]
    fn rows_come_back_within_half_a_step(
        (code, scale) in kinds(),
        rows in 1u32..9,
        width in (1u32..100).prop_map(|n| 4 * n),
        [first, gap] in [0u32..5, 0u32..5],
        size in prop_oneof![Just(1.0f32), Just(1e-3), Just(1e3), Just(0.0)],
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let row_stride = first + width + gap;
        let x: Vec<f32> = floats((rows * row_stride) as usize, seed).iter().map(|x| x * size).collect();
        // Given scales take all values in.
        let params = QuantiseParams { rows, row_stride, first, scale: (size / 100.0).max(1e-6) };
        let source = gpu.upload("x", &x).unwrap();
        let codes = gpu.buffer::<u32>("codes", (rows * width / 4) as usize).unwrap();
        let scales = gpu.buffer::<f32>("scales", rows as usize).unwrap();
        let back = gpu.upload("back", &x).unwrap();
        let mut pass = Pass::new("quantise");
        let bindings = [(&source).into(), (&codes).into(), (&scales).into()];
        let variant = quantise::variant(width, code, scale).unwrap();
        dispatch(gpu, &mut pass, &variant, &params, &bindings);
        let undo = DequantiseParams { rows, row_stride, first };
        let bindings = [(&codes).into(), (&scales).into(), (&back).into()];
        let variant = dequantise::variant(width, code).unwrap();
        dispatch(gpu, &mut pass, &variant, &undo, &bindings);
        let reads = (pass.read(&back, 0..x.len()), pass.read(&scales, 0..rows as usize));
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        let (got, scales) = (outcome.get(reads.0), outcome.get(reads.1));

        let (mut want_codes, mut want) = (vec![0; (rows * width) as usize], vec![0.0; rows as usize]);
        cpu::quantise::quantise(width as usize, (code, scale), &params, &x, &mut want_codes, &mut want);
        for (got, want) in scales.iter().zip(&want) {
            prop_assert!((got - want).abs() <= want * 1e-6, "scale {got}, not {want}");
        }
        for (i, (got, x)) in got.iter().zip(&x).enumerate() {
            let (row, column) = (i / row_stride as usize, i % row_stride as usize);
            if !(first as usize..(first + width) as usize).contains(&column) {
                prop_assert_eq!(got, x, "element {} is of no row", i);
                continue;
            }
            let most = half_step(code, scales[row], *x) * 1.001 + 1e-12;
            prop_assert!((got - x).abs() <= most, "{code:?}, {scale:?}: {x} came back as {got}, {most} is half a step");
        }
    }
}

#[test]
fn a_row_that_is_not_words_is_refused() {
    let said = |width| quantise::variant(width, Code::Int8, Scale::PerRow).unwrap_err().to_string();
    assert_eq!(said(42), "quantise: width of a row is 42, not a multiple of 4");
    let error = dequantise::variant(3, Code::Fp8).unwrap_err();
    assert_eq!(error.to_string(), "dequantise: width of a row is 3, not a multiple of 4");
}
