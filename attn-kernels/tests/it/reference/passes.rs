//! Passes that go to the device in pieces.

use super::by_hand::dispatch;
use super::device::{assert_bits, gpu};
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
        let params = LseMergeParams::new(rows);
        let bindings: Vec<_> = self.from.iter().chain(&self.to).map(Into::into).collect();
        dispatch(gpu, pass, &lse_merge::variant(WIDTH), &params, &bindings);
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

#[test]
fn a_held_pass_sees_what_was_written_after_its_beginning() {
    let Some(gpu) = gpu() else { return };
    let case = Case::new(gpu);
    let rows_of = 0..case.to[0].len();
    let kept = gpu.buffer::<f32>("kept", rows_of.len()).unwrap();
    let mut pass = Pass::new("held");
    case.merge(gpu, &mut pass, 2);
    pass.copy(&case.to[0], rows_of.clone(), &kept, 0);
    pass.hold();
    case.merge(gpu, &mut pass, 2);
    let reads = [pass.read(&kept, rows_of.clone()), pass.read(&case.to[0], rows_of)];
    let mut encoded = gpu.encode(pass).unwrap();
    gpu.send_first(&mut encoded).unwrap();
    gpu.write(&case.from[0], 0, &rows([3.0; ROWS as usize]));
    // Nothing is left before the hold.
    gpu.send_first(&mut encoded).unwrap();
    let done = gpu.send(encoded).unwrap().wait().unwrap();
    let [before, after] = reads.map(|read| done.get(read));
    assert_bits("before the hold", &before, &rows([0.5, 0.5, 0.0]));
    assert_bits("after it", &after, &rows([1.75, 1.75, 0.0]));
}

#[test]
fn an_encoded_pass_sees_what_was_written_after_it() {
    let Some(gpu) = gpu() else { return };
    let (case, other) = (Case::new(gpu), Case::new(gpu));
    let merge = |case: &Case, merged| {
        let mut pass = Pass::new("encoded");
        case.merge(gpu, &mut pass, merged);
        let read = pass.read(&case.to[0], 0..case.to[0].len());
        (pass.digest(), gpu.encode(pass).unwrap(), read)
    };
    let (digest, encoded, read) = merge(&case, 2);
    let (same, discarded, _) = merge(&case, 2);
    assert_eq!(digest, same);
    gpu.discard(discarded);
    assert_ne!(digest, merge(&case, 3).0, "other parameters");
    assert_ne!(digest, merge(&other, 2).0, "other buffers");
    // Parameters of another pass, so many that theirs is a new buffer.
    let mut between = Pass::new("between");
    (0..10_000).for_each(|i| other.merge(gpu, &mut between, i % 4));
    other.finish(gpu, between);
    gpu.write(&case.from[0], 0, &rows([3.0; ROWS as usize]));
    let merged = gpu.send(encoded).unwrap().wait().unwrap().get(read);
    assert_bits("encoded", &merged, &rows([1.5, 1.5, 0.0]));
}
