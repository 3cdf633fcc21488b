//! Passes that go to the device in pieces.

use crate::device::{assert_bits, dispatch, gpu};
use attn_kernels::gpu::{Buf, Gpu, Pass};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};

const ROWS: u32 = 3;
const WIDTH: u32 = 8;

/// Zeros, and what is merged into them: rows of ones of the same weight, so that each merge halves the distance to 1.
struct Case {
    from: [Buf<f32>; 2],
    to: [Buf<f32>; 2],
}

impl Case {
    fn new(gpu: &Gpu) -> Self {
        let upload = |n: u32, value: f32| gpu.upload("merge", &vec![value; n as usize]).unwrap();
        let rows = |value| [upload(ROWS * WIDTH, value), upload(ROWS, 0.0)];
        Self { from: rows(1.0), to: rows(0.0) }
    }

    /// Merges the first `rows` rows, and sets the weights back.
    fn merge(&self, gpu: &Gpu, pass: &mut Pass, rows: u32) {
        let params = LseMergeParams { rows, neg_inf: f32::NEG_INFINITY, pad0: 0, pad1: 0 };
        let bindings: Vec<_> = self.from.iter().chain(&self.to).map(Into::into).collect();
        dispatch(gpu, pass, &lse_merge::variant(WIDTH), &params, &bindings, lse_merge::grid(rows));
        pass.copy(&self.from[1], 0..ROWS as usize, &self.to[1], 0);
    }

    fn finish(&self, gpu: &Gpu, mut pass: Pass) -> Vec<f32> {
        let read = pass.read(&self.to[0], 0..self.to[0].len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }
}

fn rows(values: [f32; ROWS as usize]) -> Vec<f32> {
    values.iter().flat_map(|value| [*value; WIDTH as usize]).collect()
}

#[test]
fn a_flushed_pass_goes_on_with_its_parameters() {
    let Some(gpu) = gpu() else { return };
    let (case, other) = (Case::new(gpu), Case::new(gpu));
    let mut pass = Pass::new("flushed");
    case.merge(gpu, &mut pass, 3);
    gpu.flush(&mut pass).unwrap();
    assert_eq!(pass.dispatches(), 0, "what was flushed is on its way");
    // Equal parameters, which are on the device, and others, which are not.
    case.merge(gpu, &mut pass, 3);
    case.merge(gpu, &mut pass, 2);
    gpu.flush(&mut pass).unwrap();
    // Another pass takes the place of the parameters.
    let mut between = Pass::new("between");
    other.merge(gpu, &mut between, 1);
    assert_bits("between", &other.finish(gpu, between), &rows([0.5, 0.0, 0.0]));
    case.merge(gpu, &mut pass, 3);
    case.merge(gpu, &mut pass, 1);
    assert_bits("flushed", &case.finish(gpu, pass), &rows([0.96875, 0.9375, 0.875]));
}
