//! Cases of the kernels that go through rows: norms, biases, rotations, likelihoods.

use attn_kernels::cpu::Tolerance;
use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::self_test::{Case, Spec, filled, shape};
use attn_kernels::{Variant, slot};

use crate::Pairing;
use crate::cast::u32_of;
use crate::cpu;
use crate::cpu::rope_append::{Destination, NewRows};
use crate::kernel::bias::{self, BiasParams};
use crate::kernel::glu;
use crate::kernel::log_prob::LogProbParams;
use crate::kernel::norm_heads::{self, Norm, NormHeadsParams};
use crate::kernel::rms_norm::{self, RmsNormParams};
use crate::kernel::rope::{self, RopeParams};
use crate::kernel::rope_append::{self, RopeAppendParams};
use crate::kernel::segment_sum::SegmentSumParams;
use crate::kernel::softcap::SoftcapParams;
use crate::kernel::state_write::StateWriteParams;

/// Tolerance of a sum of up to some thousand squares or exponentials, then a division, root or logarithm: some tens
/// of units of 2^-24.
const ROW: Tolerance = Tolerance { abs: 2e-6, rel: 5e-6 };
/// Tolerance of likelihoods: logits of up to 40 bring their own rounding, some units of 40 * 2^-24.
const LIKELIHOOD: Tolerance = Tolerance { abs: 2e-5, rel: 5e-6 };
/// Tolerance of two products and a sum, fused or not.
const TURNED: Tolerance = Tolerance { abs: 5e-7, rel: 0.0 };

pub(crate) fn bias(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, cols, first) = (spec.rows(5, 1..=40), spec.width(70, 1..=300), spec.number(9, 0..=9));
    let params = BiasParams { rows, cols, stride: first + cols + spec.number(4, 0..=8), first };
    let form = if filled(variant, bias::KEEP) { bias::BiasForm::Add } else { bias::BiasForm::Store };
    let (added, before) = (spec.floats(cols as usize, 1), spec.floats((rows * params.stride) as usize, 2));
    let mut want = before.clone();
    cpu::bias::bias(&params, form, &added, &mut want);
    let case = Case::new("columns of rows", variant, &params).binding(&added).updated(
        &before,
        Tolerance::EXACT,
        &want,
    );
    vec![case]
}

pub(crate) fn rms_norm(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, width) = (spec.rows(5, 1..=8), spec.width(577, 1..=2048));
    let params = RmsNormParams { rows, width, eps: 1e-5, first: spec.number(2, 0..=4) };
    let size = spec.one_of(1.0, &[1e-4, 1.0, 1e4]);
    let x: Vec<f32> = spec.floats((rows * width) as usize, 1).iter().map(|x| x * size).collect();
    let weight = spec.floats(width as usize, 2);
    // Sources before `first` are not read.
    let usual = [9, 9, 4, 3, 3, 0, 1].into_iter().chain(std::iter::repeat(0));
    let sources = usual.take((params.first + rows) as usize).map(|row| spec.number(row, 0..=rows - 1));
    let sources: Vec<u32> = sources.collect();
    let gather = filled(variant, rms_norm::GATHER);
    let mut want = vec![f32::NAN; x.len()];
    cpu::rms_norm::rms_norm(&params, &x, gather.then_some(&sources[..]), &weight, &mut want);
    let case = Case::new("rows of 577", variant, &params).binding(&x).binding(&sources).binding(&weight);
    if !filled(variant, rms_norm::ADD) {
        return vec![case.output(ROW, &want)];
    }
    let before = spec.floats(x.len(), 3);
    want.iter_mut().zip(&before).for_each(|(want, before)| *want += before);
    vec![case.updated(&before, ROW, &want)]
}

pub(crate) fn norm_heads(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, heads) = (spec.rows(3, 1..=20), spec.named(|size| size.num_heads, 5, 1..=40));
    let width = spec.named(|size| size.cache.head_dim, 96, 1..=512);
    let first = spec.number(8, 0..=12);
    let stride = first + heads * width + spec.number(12, 0..=12);
    let params = NormHeadsParams { rows, heads, width, stride, first, eps: 1e-6 };
    let norm = if filled(variant, norm_heads::CENTRED) { Norm::Layer } else { Norm::Rms };
    let (weight, before) = (spec.floats(2 * width as usize, 1), spec.floats((rows * stride) as usize, 2));
    let mut want = before.clone();
    cpu::norm_heads::norm_heads(&params, norm, &weight, &mut want);
    let case = Case::new("heads of 96", variant, &params).binding(&weight).updated(&before, ROW, &want);
    vec![case]
}

pub(crate) fn log_prob(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let rows = spec.named(|size| size.batch, 4, 4..=4);
    let vocab = match spec.size() {
        Some(size) => size.vocab,
        None => spec.one_of(3001, &[spec.number(1, 1..=600), spec.number(1, 1..=5000), 49_152]),
    };
    let params = LogProbParams { rows, vocab };
    let size = spec.one_of(40.0, &[1.0, 40.0]);
    let logits: Vec<f32> = spec.floats((rows * vocab) as usize, 1).iter().map(|x| x * size).collect();
    let targets = [0, vocab - 1, 255, 256].into_iter().cycle().take(rows as usize);
    let targets: Vec<u32> = targets.map(|target| spec.number(target, 0..=vocab - 1)).collect();
    let mut want = vec![f32::NAN; rows as usize];
    cpu::log_prob::log_prob(vocab as usize, &logits, &targets, &mut want);
    let case = Case::new("rows of 3001", variant, &params)
        .binding(&logits)
        .binding(&targets)
        .output(LIKELIHOOD, &want);
    vec![case]
}

/// Cosine and sine of random angles, `[rows, pairs]`.
fn angles(spec: &Spec, rows: u32, pairs: u32) -> Vec<[f32; 2]> {
    let angles = spec.floats((rows * pairs) as usize, 1);
    angles.iter().map(|angle| [(angle * 4.0).cos(), (angle * 4.0).sin()]).collect()
}

fn pairing(variant: &Variant) -> Pairing {
    if filled(variant, rope::INTERLEAVED) { Pairing::Interleaved } else { Pairing::Halves }
}

pub(crate) fn rope(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let head_dim = filled(variant, slot::HEAD_DIM);
    let pairing = pairing(variant);
    let of = |what, pairs: u32, back| {
        let (rows, heads) = (spec.rows(7, 1..=20), spec.named(|size| size.num_heads, 3, 1..=9));
        let stride = heads * head_dim + spec.number(5, 0..=9);
        let first = 2 * spec.number(0, 0..=(head_dim / 2 - pairs).min(3));
        let params = RopeParams { rows, heads, stride, pairs, first, back: spec.number(back, 0..=1) };
        let (cs, before) = (angles(spec, rows, pairs), spec.floats((rows * stride) as usize, 2));
        let mut want = before.clone();
        cpu::rope::rope(head_dim as usize, pairing, &params, &cs, &mut want);
        Case::new(what, variant, &params).binding(&cs).updated(&before, TURNED, &want)
    };
    vec![of("whole heads", head_dim / 2, 0), of("a part of each head, back", head_dim / 4, 1)]
}

pub(crate) fn segment_sum(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, quads) = (spec.rows(300, 1..=300), spec.named(|size| size.width / 4, 37, 1..=100));
    let x = spec.floats((4 * rows * quads) as usize, 1);
    let segments = match spec.size() {
        Some(size) => (0..size.batch).map(|n| [n * (rows / size.batch), rows / size.batch]).collect(),
        None => spec.list(&[[0, rows], [17, 1], [3, 0], [40, 16], [99, 101]], 9, |spec| {
            let first = spec.number(0, 0..=rows);
            [first, spec.number(0, 0..=rows - first)]
        }),
    };
    let params = SegmentSumParams { segments: u32_of(segments.len()), quads };
    let want = cpu::segment_sum::segment_sum(&params, &x, &segments);
    // Up to 300 numbers of size 1 in some order.
    let sums = Tolerance { abs: 1e-4, rel: 0.0 };
    let case = Case::new("segments of rows", variant, &params).binding(&x).binding(&segments);
    vec![case.output(sums, &want)]
}

pub(crate) fn softcap(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, cols) = (spec.named(|size| size.batch, 3, 1..=9), spec.named(|size| size.vocab, 70, 1..=300));
    let params = SoftcapParams { rows, cols, cap: spec.one_of(0.5, &[0.1, 0.5, 7.0, 60.0]) };
    let loud = spec.one_of(1.0, &[1.0, 1e3, 1e30]);
    // What lies behind the rows stays; one element is far beyond the bound.
    let logits = spec.floats(((rows + 1) * cols) as usize, 1);
    let mut before: Vec<f32> = logits.into_iter().map(|x| x * loud).collect();
    before[7.min(cols as usize - 1)] = -3e4;
    let mut want = before.clone();
    cpu::softcap::softcap(&params, &mut want);
    let near = Tolerance { abs: 2e-6 * f64::from(params.cap), rel: 1e-5 };
    vec![Case::new("rows", variant, &params).updated(&before, near, &want)]
}

pub(crate) fn rope_append(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let shape = shape(variant, spec.kv_heads(2, 1..=4));
    let num_kv_heads = shape.num_kv_heads;
    let (rows, num_heads) = (spec.rows(9, 1..=40), num_kv_heads * spec.group(3, 1..=8));
    let pairs = shape.head_dim / 2;
    let pairing = pairing(variant);
    // Of random specs some are of layers without a norm.
    let normed = spec.one_of(num_heads + num_kv_heads, &[0, num_heads + num_kv_heads]);
    let params = RopeAppendParams { rows, num_heads, num_kv_heads, pairs, normed, eps: 1e-6 };
    let qkv = spec.floats((rows * (num_heads + 2 * num_kv_heads) * shape.head_dim) as usize, 2);
    let bias = spec.floats(((num_heads + 2 * num_kv_heads) * shape.head_dim) as usize, 3);
    let norm = spec.floats(4 * shape.head_dim as usize, 4);
    let num_blocks = spec.number(3, rows.div_ceil(shape.block_size)..=20);
    let mut cs = angles(spec, rows, pairs);
    cs.extend((0..rows).map(|row| [1.0 + (row % 9) as f32 / 8.0, 0.0]));
    let count = num_blocks * shape.block_size;
    let slots = spec.slots(rows, count, |row| (row != 4).then_some(row * 5 % count));
    let before = vec![f32::NAN; num_blocks as usize * shape.block_elements()];
    let (mut k, mut v) = (before.clone(), before.clone());
    let mut q = vec![f32::NAN; (rows * num_heads * shape.head_dim) as usize];
    let biased = filled(variant, glu::BIASED);
    let is_normed = filled(variant, rope_append::NORMED);
    let norm_weight = is_normed.then_some(&norm[..]);
    let new = NewRows { qkv: &qkv, bias: biased.then_some(&bias), norm: norm_weight, slots: &slots, cs: &cs };
    let to = Destination { k: &mut k, v: &mut v, q: &mut q };
    cpu::rope_append::rope_append(&shape, pairing, &params, new, to);
    let stored = match shape.dtype {
        KvDtype::F32 => {
            if is_normed {
                ROW
            } else {
                Tolerance { abs: 1e-6, rel: 0.0 }
            }
        }
        // WGSL leaves the direction of rounding to f16 open: one unit in the last place.
        KvDtype::F16 => Tolerance { abs: 1e-6, rel: f64::exp2(-10.0) },
        // The neighbour of a code, where products and sums of the rotation round to another side; heads reach to sqrt(2).
        KvDtype::Fp8 => Tolerance { abs: f64::exp2(-9.0), rel: f64::exp2(-3.0) },
        // Rows and biases reach to 1 each, normed ones to 2 with what is added to 3.
        KvDtype::Int8 => Tolerance { abs: if biased || is_normed { 4.5 } else { 1.5 } / 126.0, rel: 0.0 },
    };
    let case = Case::new("rows to slots", variant, &params)
        .binding(&qkv)
        .binding(&slots)
        .paged(&shape, KvShape::k_index, &before, stored, &k)
        .paged(&shape, KvShape::v_index, &before, stored, &v)
        .binding(&cs)
        .output(if is_normed { ROW } else { TURNED }, &q)
        .binding(&bias)
        .binding(&norm);
    vec![case]
}

pub(crate) fn state_write(variant: &Variant, spec: &Spec) -> Vec<Case> {
    // Pages are longer than their tokens.
    let (rows, quads) = (spec.rows(9, 1..=30), spec.named(|size| size.width / 4, 5, 1..=40));
    let block_size = spec.number(4, 1..=8);
    let pages = spec.number(3, rows.div_ceil(block_size)..=40);
    let page = block_size * quads + spec.number(3, 0..=5);
    let params = StateWriteParams { rows, quads, block_size, page };
    let x = spec.floats((rows * quads * 4) as usize, 1);
    let count = pages * block_size;
    let slots = spec.slots(rows, count, |row| (row != 4).then_some(row * 7 % count));
    let before = vec![f32::NAN; (pages * page * 4) as usize];
    let mut want = before.clone();
    cpu::state_write::state_write(&params, &x, &slots, &mut want);
    let case = Case::new("rows to slots", variant, &params).binding(&x).binding(&slots).cache(
        KvDtype::F32,
        &before,
        Tolerance::EXACT,
        &want,
    );
    vec![case]
}
