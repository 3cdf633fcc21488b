//! Cases of the kernels of hyper-connections.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::layer::floats;
use attn_kernels::self_test::{Case, filled};

use crate::cpu;
use crate::kernel::hyper_collapse::{self, HyperCollapseParams, Reader};
use crate::kernel::hyper_expand::{self, Form, HyperExpandParams};

/// Exponentials, and some tens of divisions one after the other.
const MIXED: Tolerance = Tolerance { abs: 1e-5, rel: 1e-5 };

const ROWS: u32 = 5;
const WIDTH: u32 = 70;

pub(crate) fn collapse(variant: &Variant) -> Vec<Case> {
    let streams = filled(variant, hyper_collapse::STREAMS);
    let reader = if filled(variant, hyper_collapse::HEAD) { Reader::Head } else { Reader::Block };
    let parts = hyper_collapse::mixes(streams, reader);
    let params = HyperCollapseParams { rows: ROWS, width: WIDTH, rounds: 20, norm_eps: 1e-6, eps: 1e-6 };
    let floats = |len: u32, seed| floats(len as usize, seed);
    let (mixes, x) = (floats(ROWS * parts, 1), floats(ROWS * streams * WIDTH, 2));
    let affine = floats(parts + 3, 3);
    let (out, gates) =
        cpu::hyper_collapse::hyper_collapse(&params, streams as usize, reader, &mixes, &x, &affine);
    let case = Case::new("rows of streams", variant, &params, hyper_collapse::grid(ROWS))
        .binding(&mixes)
        .binding(&x)
        .binding(&affine)
        .output(MIXED, &out);
    let block = vec![0.0; (ROWS * WIDTH) as usize];
    vec![match reader {
        Reader::Head => case.binding(&block).binding(&block),
        Reader::Block => case.output(MIXED, &gates).output(Tolerance::EXACT, &block),
    }]
}

pub(crate) fn expand(variant: &Variant) -> Vec<Case> {
    let streams = filled(variant, hyper_collapse::STREAMS);
    let form = if filled(variant, hyper_expand::FIRST) { Form::Begin } else { Form::Add };
    let params = HyperExpandParams { rows: ROWS, width: WIDTH };
    let floats = |len: u32, seed| floats(len as usize, seed);
    let (block, gates) = (floats(ROWS * WIDTH, 1), floats(ROWS * streams * (1 + streams), 2));
    let before = floats(ROWS * streams * WIDTH, 3);
    let mut want = before.clone();
    cpu::hyper_expand::hyper_expand(&params, streams as usize, form, &block, &gates, &mut want);
    let case = Case::new("rows to streams", variant, &params, hyper_expand::grid(ROWS, WIDTH))
        .binding(&block)
        .binding(&gates)
        .updated(&before, MIXED, &want);
    vec![case]
}
