//! Cases of `cache_write`.

use super::layer::floats;
use super::{Case, shape};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::cache_write::{self, CacheWriteParams};
use crate::kernel::{KvDtype, KvShape};

/// WGSL leaves the direction of rounding to f16 open: one unit in the last place. f32 is only moved.
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

pub(crate) fn cases(variant: &Variant) -> Vec<Case> {
    let shape = shape(variant, 2);
    let width = shape.num_kv_heads * shape.head_dim;
    let (rows, num_blocks) = (21, 4);
    let params = CacheWriteParams {
        rows,
        num_kv_heads: shape.num_kv_heads,
        row_stride: 2 * width + 12,
        k_start: 3,
        v_start: width + 8,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let kv = floats((rows * params.row_stride) as usize, 1);
    // Distinct slots out of order; every fifth row has none.
    let num_slots = num_blocks * shape.block_size;
    let slot = |row: u32| if row % 5 == 4 { -1 } else { (row * 7 % num_slots).cast_signed() };
    let slots: Vec<i32> = (0..rows).map(slot).collect();
    let before = vec![f32::NAN; num_blocks as usize * shape.block_elements()];
    let (mut k, mut v) = (before.clone(), before.clone());
    cpu::cache_write::cache_write(&shape, &params, &kv, &slots, &mut k, &mut v);
    let tolerance = stored(shape.dtype);
    let case = Case::new("rows to scattered slots", variant, &params, cache_write::grid(&shape, rows))
        .binding(&kv)
        .binding(&slots)
        .paged(&shape, KvShape::k_index, &before, tolerance, &k)
        .paged(&shape, KvShape::v_index, &before, tolerance, &v);
    vec![case]
}
