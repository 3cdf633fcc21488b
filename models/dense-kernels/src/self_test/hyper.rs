//! Cases of the kernels of hyper-connections.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::{Case, Spec, filled};

use crate::cpu;
use crate::kernel::hyper_collapse::{self, HyperCollapseParams, Reader};
use crate::kernel::hyper_expand::{self, HyperExpandParams, StreamForm};

/// Tolerance of exponentials, and of up to some hundred divisions one after the other.
const MIXED: Tolerance = Tolerance { abs: 1e-5, rel: 1e-5 };

/// Number of rows, and of elements of a stream's row.
fn sizes(spec: &Spec) -> [u32; 2] {
    [spec.rows(5, 1..=40), spec.width(70, 1..=600)]
}

pub(crate) fn collapse(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let streams = filled(variant, hyper_collapse::STREAMS);
    let reader = if filled(variant, hyper_collapse::HEAD) { Reader::Head } else { Reader::Block };
    let parts = hyper_collapse::mixes(streams, reader);
    let [rows, width] = sizes(spec);
    let params =
        HyperCollapseParams { rows, width, rounds: spec.number(20, 1..=24), norm_eps: 1e-6, eps: 1e-6 };
    let floats = |len: u32, seed| spec.floats(len as usize, seed);
    let (mixes, x) = (floats(rows * parts, 1), floats(rows * streams * width, 2));
    let affine = floats(parts + 3, 3);
    let (out, gates) =
        cpu::hyper_collapse::hyper_collapse(&params, streams as usize, reader, &mixes, &x, &affine);
    let case = Case::new("rows of streams", variant, &params)
        .binding(&mixes)
        .binding(&x)
        .binding(&affine)
        .output(MIXED, &out);
    let (block, untouched) = (vec![0.0; out.len()], vec![f32::NAN; out.len()]);
    vec![match reader {
        Reader::Head => case.words(&untouched, &untouched).words(&untouched, &untouched),
        Reader::Block => case.output(MIXED, &gates).output(Tolerance::EXACT, &block),
    }]
}

pub(crate) fn expand(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let streams = filled(variant, hyper_collapse::STREAMS);
    let form = if filled(variant, hyper_expand::FIRST) { StreamForm::Begin } else { StreamForm::Add };
    let [rows, width] = sizes(spec);
    let params = HyperExpandParams { rows, width };
    let floats = |len: u32, seed| spec.floats(len as usize, seed);
    let (block, gates) = (floats(rows * width, 1), floats(rows * streams * (1 + streams), 2));
    let before = floats(rows * streams * width, 3);
    let mut want = before.clone();
    cpu::hyper_expand::hyper_expand(&params, streams as usize, form, &block, &gates, &mut want);
    let case = Case::new("rows to streams", variant, &params)
        .binding(&block)
        .binding(&gates)
        .updated(&before, MIXED, &want);
    vec![case]
}
