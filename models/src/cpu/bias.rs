//! Reference of `bias`.

use crate::kernel::bias::BiasParams;

/// Writes `bias` to columns of every row of `y`, or adds it with `keep`.
pub fn bias(params: &BiasParams, keep: bool, bias: &[f32], y: &mut [f32]) {
    for row in y.chunks_mut(params.stride as usize).take(params.rows as usize) {
        for (y, bias) in row[params.first as usize..].iter_mut().zip(bias) {
            *y = if keep { *y + bias } else { *bias };
        }
    }
}
