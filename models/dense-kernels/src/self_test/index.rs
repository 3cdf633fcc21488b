//! Cases of the kernels that convert the vectors of an indexer to their format.

use attn_kernels::cpu::Tolerance;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::{Case, Spec, filled};
use attn_kernels::{Variant, slot};
use sparse_select::dsa::logits::PagedIndexKeys;

use crate::cpu;
use crate::kernel::index_query_fp8::IndexQueryFp8Params;
use crate::kernel::index_write::{self, IndexWriteParams};
use crate::kernel::index_write_fp8::{self, IndexWriteFp8Params};

pub(crate) fn write(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (dtype, tolerance) = match filled(variant, index_write::CHUNK) {
        // WGSL leaves the direction of rounding to f16 open: one unit in the last place.
        8 => (KvDtype::F16, Tolerance { abs: f64::exp2(-24.0), rel: f64::exp2(-10.0) }),
        _ => (KvDtype::F32, Tolerance::EXACT),
    };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: filled(variant, slot::HEAD_DIM),
        block_size: filled(variant, slot::BLOCK_SIZE),
        dtype,
        layout: KvLayout::Native,
    };
    let (rows, first) = (spec.rows(9, 1..=40), spec.number(4, 0..=8));
    let blocks = spec.number(2, rows.div_ceil(shape.block_size)..=20);
    let row_stride = first + shape.head_dim + spec.number(2, 0..=4);
    let params = IndexWriteParams { rows, row_stride, first };
    let x = spec.floats((rows * params.row_stride) as usize, 1);
    let held: Vec<f32> = x.iter().map(|x| (x * 1024.0).round() / 1024.0).collect();
    let count = blocks * shape.block_size;
    let slots = spec.slots(rows, count, |row| (row != 4).then_some(row * 13 % count));
    let before = vec![f32::NAN; blocks as usize * shape.block_bytes() / dtype.bytes() as usize];
    let of = |what, x: &[f32], tolerance| {
        let mut after = before.clone();
        cpu::index_write::index_write(&shape, &params, x, &slots, &mut after);
        Case::new(what, variant, &params).binding(x).binding(&slots).cache(dtype, &before, tolerance, &after)
    };
    vec![of("keys to slots", &x, tolerance), of("keys that f16 holds", &held, Tolerance::EXACT)]
}

/// Returns vectors with one channel far above the others, and one vector of zeros.
fn vectors(spec: &Spec, count: u32, head_dim: u32, seed: u64) -> Vec<f32> {
    let size = spec.one_of(1.0, &[1e-7, 1.0, 1e6]);
    let mut x: Vec<f32> = spec.floats((count * head_dim) as usize, seed).iter().map(|x| x * size).collect();
    x.iter_mut().step_by(head_dim as usize + 1).for_each(|x| *x *= 300.0);
    x[head_dim as usize..2 * head_dim as usize].fill(0.0);
    x
}

/// Cases of writing keys in fp8: sums of the rotation have one order and the division by a power of two is exact, so
/// that codes equal the reference's.
pub(crate) fn write_fp8(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (head_dim, page) = (filled(variant, slot::HEAD_DIM), filled(variant, slot::BLOCK_SIZE));
    let (rows, first) = (spec.rows(9, 2..=40), spec.number(4, 0..=8));
    let (pages, root) = (spec.number(2, rows.div_ceil(page)..=20), index_write_fp8::root(head_dim));
    let row_stride = first + head_dim + spec.number(2, 0..=4);
    let params = IndexWriteFp8Params { rows, row_stride, first, root };
    let x = vectors(spec, rows, params.row_stride, 1);
    let slots = spec.slots(rows, pages * page, |row| (row != 4).then_some(row * 13 % (pages * page)));
    let mut keys = PagedIndexKeys::new(pages as usize, page as usize, head_dim as usize);
    let before = keys.bytes().to_vec();
    cpu::index_write_fp8::index_write_fp8(head_dim as usize, &params, &x, &slots, &mut keys);
    let case = Case::new("keys to slots", variant, &params);
    vec![case.binding(&x).binding(&slots).words(&before, keys.bytes())]
}

pub(crate) fn query_fp8(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (head_dim, count) = (filled(variant, slot::HEAD_DIM), spec.rows(13, 2..=70));
    let params = IndexQueryFp8Params { vectors: count, root: index_write_fp8::root(head_dim) };
    let (q, gates) = (vectors(spec, count, head_dim, 1), spec.floats(count as usize, 2));
    let (mut values, mut scaled) = (q.clone(), gates.clone());
    cpu::index_query_fp8::index_query_fp8(head_dim as usize, &mut values, &mut scaled);
    let case = Case::new("heads of rows", variant, &params);
    vec![case.updated(&q, Tolerance::EXACT, &values).updated(&gates, Tolerance::EXACT, &scaled)]
}
