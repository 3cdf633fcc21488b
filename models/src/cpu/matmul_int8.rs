//! Reference of `matmul_int8` and `matmul_int8_tile`, on the tensors of a checkpoint as they are stored.

use super::matmul::matmul;
use crate::Tensor;
use crate::kernel::matmul::{Epilogue, MatmulParams};

/// The product of `parts` with what codes and scales of `quantize_rows` stand for: [`matmul`] over these numbers.
pub fn matmul_int8(
    params: &MatmulParams,
    epilogue: Epilogue,
    (codes, scales): (&[i8], &[[f32; 2]]),
    parts: &[Tensor<'_>],
    y: &mut [f32],
) {
    let x: Vec<f32> = codes
        .chunks_exact(32)
        .zip(scales)
        .flat_map(|(block, [d, _])| block.iter().map(move |code| d * f32::from(*code)))
        .collect();
    matmul(params, epilogue, &x, parts, y);
}
