//! Cases of `cache_write`.

use super::spec::SPREAD;
use super::{Case, Spec, shape};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::cache_write::CacheWriteParams;
use crate::kernel::{KvDtype, KvShape};

/// Tolerance of values in the cache. WGSL leaves the direction of rounding to f16 open, so f16 may differ by one unit
/// in the last place. f32 is only moved.
#[must_use]
pub(crate) fn stored(dtype: KvDtype) -> Tolerance {
    match dtype {
        KvDtype::F16 => Tolerance { abs: f64::exp2(-24.0), rel: f64::exp2(-10.0) },
        KvDtype::F32 => Tolerance::EXACT,
        // The neighbour of a code, where the quotient is a tie.
        KvDtype::Fp8 => Tolerance { abs: f64::exp2(-9.0), rel: f64::exp2(-3.0) },
        KvDtype::Int8 => Tolerance { abs: 1.0 / 126.0, rel: 0.0 },
    }
}

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let shape = shape(variant, spec.kv_heads(2, 1..=4));
    let width = shape.num_kv_heads * shape.head_dim;
    let rows = spec.rows(21, 1..=70);
    let num_blocks = spec.number(4, rows.div_ceil(shape.block_size)..=20);
    let k_start = spec.number(3, 0..=8);
    let v_start = k_start + width + spec.number(5, 0..=7);
    let scale =
        || if shape.dtype == KvDtype::Fp8 { spec.one_of(1.0, &[f32::exp2(-10.0), 0.25, 4.0]) } else { 1.0 };
    let params = CacheWriteParams {
        rows,
        num_kv_heads: shape.num_kv_heads,
        row_stride: v_start + width + spec.number(4, 0..=7),
        k_start,
        v_start,
        k_scale: scale(),
        v_scale: scale(),
    };
    let case = Case::new("rows to scattered slots", variant, &params)
        .costs(f64::from(rows * 2 * width) * f64::from(4 + shape.dtype.bytes()), 0.0);
    if spec.size().is_some() {
        let slots: Vec<u32> = (0..rows).map(|row| row * SPREAD % rows).collect();
        let case = case.floats_of(rows * params.row_stride).binding(&slots);
        return vec![case.blocks_of(&shape, num_blocks).blocks_of(&shape, num_blocks)];
    }
    let kv = spec.floats((rows * params.row_stride) as usize, 1);
    // Distinct slots out of order; every fifth row has none.
    let num_slots = num_blocks * shape.block_size;
    let slots = spec.slots(rows, num_slots, |row| (row % 5 != 4).then_some(row * 7 % num_slots));
    let before = vec![f32::NAN; num_blocks as usize * shape.block_elements()];
    let (mut k, mut v) = (before.clone(), before.clone());
    cpu::cache_write::cache_write(&shape, &params, &kv, &slots, &mut k, &mut v);
    // The cache has codes: what they stand for, by powers of two.
    k.iter_mut().for_each(|x| *x /= params.k_scale);
    v.iter_mut().for_each(|x| *x /= params.v_scale);
    let tolerance = stored(shape.dtype);
    let case = case
        .binding(&kv)
        .binding(&slots)
        .paged(&shape, KvShape::k_index, &before, tolerance, &k)
        .paged(&shape, KvShape::v_index, &before, tolerance, &v);
    vec![case]
}
