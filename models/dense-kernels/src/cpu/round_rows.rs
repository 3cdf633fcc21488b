//! Reference of `round_rows`.

use half::f16;

use super::rms_norm;
use crate::kernel::rms_norm::RmsNormParams;
use crate::kernel::round_rows::RoundRowsParams;

/// Rounds the rows of `x`, which are `4 * x_stride` f32 apart, to f16 `[rows, 32 * blocks]`. If there is a `weight`,
/// the rows pass through an RMS norm first.
pub fn round_rows(params: &RoundRowsParams, x: &[f32], weight: Option<&[f32]>) -> Vec<f16> {
    let RoundRowsParams { rows, blocks, x_stride, eps, .. } = *params;
    let width = blocks * 32;
    let row_of = |row: u32| &x[(row * x_stride) as usize * 4..][..width as usize];
    let mut dense = (0..rows).flat_map(row_of).copied().collect::<Vec<f32>>();
    if let Some(weight) = weight {
        let x = dense.clone();
        rms_norm::rms_norm(&RmsNormParams { rows, width, eps, first: 0 }, &x, None, weight, &mut dense);
    }
    dense.into_iter().map(f16::from_f32).collect()
}
