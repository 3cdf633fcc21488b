//! Cases of the kernels that go through rows: norms, biases, rotations, likelihoods.

use attn_kernels::cpu::Tolerance;
use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::self_test::layer::floats;
use attn_kernels::self_test::{Case, filled, shape};
use attn_kernels::{Variant, slot};

use crate::Pairing;
use crate::cpu;
use crate::cpu::rope_append::{Destination, NewRows};
use crate::kernel::bias::{self, BiasParams};
use crate::kernel::log_prob::{self, LogProbParams};
use crate::kernel::norm_heads::{self, Norm, NormHeadsParams};
use crate::kernel::rms_norm::{self, RmsNormParams};
use crate::kernel::rope::{self, RopeParams};
use crate::kernel::rope_append::{self, RopeAppendParams};
use crate::kernel::softcap::{self, SoftcapParams};
use crate::kernel::state_write::{self, StateWriteParams};

/// A sum of up to some thousand squares or exponentials, divided, rooted or logged: some tens of units of 2^-24.
const ROW: Tolerance = Tolerance { abs: 2e-6, rel: 5e-6 };
/// Logits of up to 40 bring their own rounding: some units of 40 * 2^-24.
const LIKELIHOOD: Tolerance = Tolerance { abs: 2e-5, rel: 5e-6 };
/// Two products and a sum, fused or not.
const TURNED: Tolerance = Tolerance { abs: 5e-7, rel: 0.0 };

pub(crate) fn bias(variant: &Variant) -> Vec<Case> {
    let params = BiasParams { rows: 5, cols: 70, stride: 83, first: 9 };
    let form = if filled(variant, bias::KEEP) { bias::Form::Add } else { bias::Form::Store };
    let (added, before) = (floats(70, 1), floats(5 * 83, 2));
    let mut want = before.clone();
    cpu::bias::bias(&params, form, &added, &mut want);
    let case = Case::new("columns of rows", variant, &params, bias::grid(5, 70)).binding(&added).updated(
        &before,
        Tolerance::EXACT,
        &want,
    );
    vec![case]
}

pub(crate) fn rms_norm(variant: &Variant) -> Vec<Case> {
    let params = RmsNormParams { rows: 5, width: 577, eps: 1e-5, first: 2 };
    let (x, weight) = (floats(5 * 577, 1), floats(577, 2));
    let sources = [9, 9, 4, 3, 3, 0, 1];
    let gather = filled(variant, rms_norm::GATHER);
    let mut want = vec![f32::NAN; x.len()];
    cpu::rms_norm::rms_norm(&params, &x, gather.then_some(&sources[..]), &weight, &mut want);
    let case = Case::new("rows of 577", variant, &params, rms_norm::grid(5))
        .binding(&x)
        .binding(&sources)
        .binding(&weight);
    if !filled(variant, rms_norm::ADD) {
        return vec![case.output(ROW, &want)];
    }
    let before = floats(5 * 577, 3);
    want.iter_mut().zip(&before).for_each(|(want, before)| *want += before);
    vec![case.updated(&before, ROW, &want)]
}

pub(crate) fn norm_heads(variant: &Variant) -> Vec<Case> {
    let params = NormHeadsParams { rows: 3, heads: 5, width: 96, stride: 5 * 96 + 20, first: 8, eps: 1e-6 };
    let norm = if filled(variant, norm_heads::CENTRED) { Norm::Layer } else { Norm::Rms };
    let (weight, before) = (floats(2 * 96, 1), floats((3 * params.stride) as usize, 2));
    let mut want = before.clone();
    cpu::norm_heads::norm_heads(&params, norm, &weight, &mut want);
    let case = Case::new("heads of 96", variant, &params, norm_heads::grid(3, 5))
        .binding(&weight)
        .updated(&before, ROW, &want);
    vec![case]
}

pub(crate) fn log_prob(variant: &Variant) -> Vec<Case> {
    let (rows, vocab) = (4, 3001);
    let params = LogProbParams { rows, vocab };
    let logits: Vec<f32> = floats((rows * vocab) as usize, 1).iter().map(|x| x * 40.0).collect();
    let targets = [0, 3000, 255, 256];
    let mut want = vec![f32::NAN; rows as usize];
    cpu::log_prob::log_prob(vocab as usize, &logits, &targets, &mut want);
    let case = Case::new("rows of 3001", variant, &params, log_prob::grid(rows))
        .binding(&logits)
        .binding(&targets)
        .output(LIKELIHOOD, &want);
    vec![case]
}

/// Cosine and sine of random angles, `[rows, pairs]`.
fn angles(rows: u32, pairs: u32) -> Vec<[f32; 2]> {
    let angles = floats((rows * pairs) as usize, 1);
    angles.iter().map(|angle| [(angle * 4.0).cos(), (angle * 4.0).sin()]).collect()
}

fn pairing(variant: &Variant) -> Pairing {
    if filled(variant, rope::INTERLEAVED) { Pairing::Interleaved } else { Pairing::Halves }
}

pub(crate) fn rope(variant: &Variant) -> Vec<Case> {
    let head_dim = filled(variant, slot::HEAD_DIM);
    let pairing = pairing(variant);
    let of = |what, pairs, back| {
        let stride = 3 * head_dim + 5;
        let params = RopeParams { rows: 7, heads: 3, stride, pairs, first: 0, back };
        let (cs, before) = (angles(7, pairs), floats((7 * params.stride) as usize, 2));
        let mut want = before.clone();
        cpu::rope::rope(head_dim as usize, pairing, &params, &cs, &mut want);
        Case::new(what, variant, &params, rope::grid(7, 3, pairs))
            .binding(&cs)
            .updated(&before, TURNED, &want)
    };
    vec![of("whole heads", head_dim / 2, 0), of("a part of each head, back", head_dim / 4, 1)]
}

pub(crate) fn softcap(variant: &Variant) -> Vec<Case> {
    let params = SoftcapParams { rows: 3, cols: 70, cap: 0.5 };
    // What lies behind the rows stays; one element is far beyond the bound.
    let mut before = floats(4 * 70, 1);
    before[7] = -3e4;
    let mut want = before.clone();
    cpu::softcap::softcap(&params, &mut want);
    let near = Tolerance { abs: 1e-6, rel: 1e-5 };
    vec![Case::new("rows", variant, &params, softcap::grid(3, 70)).updated(&before, near, &want)]
}

pub(crate) fn rope_append(variant: &Variant) -> Vec<Case> {
    let shape = shape(variant, 2);
    let (rows, num_heads, pairs) = (9, 6, shape.head_dim / 2);
    let pairing = pairing(variant);
    let params = RopeAppendParams { rows, num_heads, num_kv_heads: 2, pairs };
    let qkv = floats((rows * (num_heads + 4) * shape.head_dim) as usize, 2);
    let (num_blocks, mut cs) = (3, angles(rows, pairs));
    cs.extend((0_u8..9).map(|row| [1.0 + f32::from(row) / 8.0, 0.0]));
    let slot =
        |row: u32| if row == 4 { -1 } else { (row * 5 % (num_blocks * shape.block_size)).cast_signed() };
    let slots: Vec<i32> = (0..rows).map(slot).collect();
    let before = vec![f32::NAN; num_blocks as usize * shape.block_elements()];
    let (mut k, mut v) = (before.clone(), before.clone());
    let mut q = vec![f32::NAN; (rows * num_heads * shape.head_dim) as usize];
    let new = NewRows { qkv: &qkv, slots: &slots, cs: &cs };
    let to = Destination { k: &mut k, v: &mut v, q: &mut q };
    cpu::rope_append::rope_append(&shape, pairing, &params, new, to);
    let stored = match shape.dtype {
        KvDtype::F32 => Tolerance { abs: 1e-6, rel: 0.0 },
        // WGSL leaves the direction of rounding to f16 open: one unit in the last place.
        KvDtype::F16 => Tolerance { abs: 1e-6, rel: f64::exp2(-10.0) },
        // The neighbour of a code, where products and sums of the rotation round to another side; heads reach to sqrt(2).
        KvDtype::Fp8 => Tolerance { abs: f64::exp2(-9.0), rel: f64::exp2(-3.0) },
        KvDtype::Int8 => Tolerance { abs: 1.5 / 126.0, rel: 0.0 },
    };
    let case = Case::new("rows to slots", variant, &params, rope_append::grid(&shape, num_heads, rows))
        .binding(&qkv)
        .binding(&slots)
        .paged(&shape, KvShape::k_index, &before, stored, &k)
        .paged(&shape, KvShape::v_index, &before, stored, &v)
        .binding(&cs)
        .output(TURNED, &q);
    vec![case]
}

pub(crate) fn state_write(variant: &Variant) -> Vec<Case> {
    // Pages are longer than their tokens.
    let params = StateWriteParams { rows: 9, quads: 5, block_size: 4, page: 23 };
    let x = floats(9 * 20, 1);
    let slots: Vec<i32> = (0..9).map(|row| if row == 4 { -1 } else { row * 7 % 12 }).collect();
    let before = vec![f32::NAN; 3 * 23 * 4];
    let mut want = before.clone();
    cpu::state_write::state_write(&params, &x, &slots, &mut want);
    let case = Case::new("rows to slots", variant, &params, state_write::grid(9, 5))
        .binding(&x)
        .binding(&slots)
        .updated(&before, Tolerance::EXACT, &want);
    vec![case]
}
