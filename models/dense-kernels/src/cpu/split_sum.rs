//! Reference of `split_sum`.

use super::f32_of;
use crate::kernel::matmul::Epilogue;
use crate::kernel::split_sum::SplitSumParams;

/// Adds up `partials`, `[splits, rows, cols]`, into rows of `y` of `y_stride` f32 with columns from `y_offset` on.
pub fn split_sum(params: &SplitSumParams, epilogue: Epilogue, partials: &[f32], y: &mut [f32]) {
    let (rows, cols) = (params.rows as usize, params.cols as usize);
    for row in 0..rows {
        for col in 0..cols {
            let sum: f64 = (0..params.splits as usize)
                .map(|split| f64::from(partials[(split * rows + row) * cols + col]))
                .sum();
            let y = &mut y[row * params.y_stride as usize + params.y_offset as usize + col];
            *y = f32_of(if epilogue == Epilogue::Add { f64::from(*y) + sum } else { sum });
        }
    }
}
