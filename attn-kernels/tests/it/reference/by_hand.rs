//! Passes and comparisons of tests that no case of the self-test makes.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use bytemuck::Pod;

/// Records one dispatch.
pub(crate) fn dispatch<P: Pod>(
    gpu: &Gpu,
    pass: &mut Pass,
    variant: &Variant,
    params: &P,
    bindings: &[Bound],
) {
    let pipeline = gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}"));
    pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(params), bindings);
}

/// Fails with the worst element, its index and both values.
#[track_caller]
pub(crate) fn assert_close(what: &str, tolerance: Tolerance, got: &[f32], want: &[f32]) {
    if let Err(mismatch) = tolerance.compare(got, want) {
        panic!("{what}: {mismatch}");
    }
}
