//! `hyper_collapse`, `hyper_expand` and `state_write` against their references.

use super::device::{assert_bits, assert_close, cases, dispatch, gpu};
use super::tensors::floats;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Pass};
use dense_kernels::checkpoint::HyperConfig;
use dense_kernels::cpu;
use dense_kernels::kernel::hyper_collapse::{self, HyperCollapseParams, Reader};
use dense_kernels::kernel::hyper_expand::{self, Form, HyperExpandParams};
use dense_kernels::kernel::state_write::{self, StateWriteParams};
use proptest::prelude::*;

/// Exponentials, and up to some hundred divisions one after the other.
const MIXED: Tolerance = Tolerance { abs: 2e-5, rel: 2e-5 };

#[test]
fn mixes_of_files_are_those_of_the_kernel() {
    for streams in 1..=16 {
        let config = HyperConfig { streams, rounds: 1, eps: 0.0 };
        assert_eq!(config.block_mixes(), hyper_collapse::mixes(streams, Reader::Block));
        assert_eq!(streams, hyper_collapse::mixes(streams, Reader::Head));
    }
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn collapses_streams(
        rows in 1u32..6,
        streams in 1u32..7,
        width in prop_oneof![1u32..100, Just(576u32)],
        rounds in 1u32..25,
        reader in prop::sample::select(vec![Reader::Block, Reader::Head]),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let parts = hyper_collapse::mixes(streams, reader);
        let params =
            HyperCollapseParams { rows, width, rounds, norm_eps: 1e-6, eps: 1e-6 };
        let floats = |len: u32, seed| floats(len as usize, seed);
        let (mixes, x) = (floats(rows * parts, seed), floats(rows * streams * width, seed ^ 1));
        let affine = floats(parts + 3, seed ^ 2);
        let (out, gates) =
            cpu::hyper_collapse::hyper_collapse(&params, streams as usize, reader, &mixes, &x, &affine);
        let upload = |data: &[f32]| gpu.upload("data", data).unwrap();
        let (mixes, x, affine) = (upload(&mixes), upload(&x), upload(&affine));
        let (got_out, got_block) = (upload(&vec![f32::NAN; out.len()]), upload(&vec![f32::NAN; out.len()]));
        let got_gates = upload(&vec![f32::NAN; gates.len().max(1)]);
        let bindings: [Bound; 6] = [
            (&mixes).into(),
            (&x).into(),
            (&affine).into(),
            (&got_out).into(),
            (&got_gates).into(),
            (&got_block).into(),
        ];
        let mut pass = Pass::new("hyper_collapse");
        let variant = hyper_collapse::variant(streams, reader, gpu.level());
        dispatch(gpu, &mut pass, &variant, &params, &bindings, hyper_collapse::grid(&params));
        let reads = [&got_out, &got_gates, &got_block].map(|buffer| pass.read(buffer, 0..buffer.len()));
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let [got_out, got_gates, got_block] = reads.map(|read| done.get(read));
        let what = format!("{params:?}, {streams} streams, {reader:?}");
        assert_close(&what, MIXED, &got_out, &out);
        if reader == Reader::Head {
            prop_assert!(got_gates.iter().chain(&got_block).all(|x| x.is_nan()), "{what}: the end of streams has no block");
        } else {
            assert_close(&what, MIXED, &got_gates, &gates);
            prop_assert!(got_block.iter().all(|x| x.to_bits() == 0), "{what}: a block adds to zeros");
        }
    }

    #[test]
    fn expands_streams(rows in 1u32..6, streams in 1u32..7, width in 1u32..200, form in prop::sample::select(vec![Form::Begin, Form::Add]), seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let params = HyperExpandParams { rows, width };
        let floats = |len: u32, seed| floats(len as usize, seed);
        let (block, gates) = (floats(rows * width, seed), floats(rows * streams * (1 + streams), seed ^ 1));
        let mut want = floats(rows * streams * width, seed ^ 2);
        let upload = |data: &[f32]| gpu.upload("data", data).unwrap();
        let (block_buf, gates_buf, x) = (upload(&block), upload(&gates), upload(&want));
        let bindings: [Bound; 3] = [(&block_buf).into(), (&gates_buf).into(), (&x).into()];
        let mut pass = Pass::new("hyper_expand");
        let variant = hyper_expand::variant(streams, form);
        dispatch(gpu, &mut pass, &variant, &params, &bindings, hyper_expand::grid(&params));
        let read = pass.read(&x, 0..x.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::hyper_expand::hyper_expand(&params, streams as usize, form, &block, &gates, &mut want);
        assert_close(&format!("{params:?}, {streams} streams, {form:?}"), MIXED, &got, &want);
    }

    #[test]
    fn writes_states(rows in 1u32..30, quads in 1u32..9, block_size in 1u32..9, gap in 0u32..4, seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let params = StateWriteParams { rows, quads, block_size, page: block_size * quads + gap };
        let x = floats((rows * quads * 4) as usize, seed);
        // Every third row is skipped, the others go backwards.
        let count = i32::try_from(rows).unwrap();
        let slots: Vec<i32> = (0..count).map(|row| if row % 3 == 2 { -1 } else { count - 1 - row }).collect();
        let mut want = vec![f32::NAN; (rows.div_ceil(block_size) * params.page * 4) as usize];
        let (x_buf, slots_buf) = (gpu.upload("x", &x).unwrap(), gpu.upload("slots", &slots).unwrap());
        let states = gpu.upload("states", &want).unwrap();
        let bindings: [Bound; 3] = [(&x_buf).into(), (&slots_buf).into(), (&states).into()];
        let mut pass = Pass::new("state_write");
        dispatch(gpu, &mut pass, &state_write::variant(), &params, &bindings, state_write::grid(&params));
        let read = pass.read(&states, 0..states.len());
        let got: Vec<f32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::state_write::state_write(&params, &x, &slots, &mut want);
        assert_bits(&format!("{params:?}"), &got, &want);
    }
}
