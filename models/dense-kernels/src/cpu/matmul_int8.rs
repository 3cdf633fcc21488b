//! Reference of `matmul_int8` and `matmul_int8_tile`, on the tensors of a checkpoint as they are stored.

use super::matmul::matmul;
use crate::Tensor;
use crate::kernel::matmul::{Epilogue, MatmulParams};

/// Rows as codes of 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    /// Codes by blocks of 32.
    pub codes: &'a [i8],
    /// Scale of each block, and the scaled sum of the block's codes, which only the kernel reads.
    pub scales: &'a [[f32; 2]],
}

/// Computes the [`matmul`] of `parts` with the numbers that the codes and scales of `quantize_rows` stand for.
pub fn matmul_int8(
    params: &MatmulParams,
    epilogue: Epilogue,
    rows: Codes<'_>,
    parts: &[Tensor<'_>],
    y: &mut [f32],
) {
    let x: Vec<f32> = rows
        .codes
        .chunks_exact(32)
        .zip(rows.scales)
        .flat_map(|(block, [d, _])| block.iter().map(move |code| d * f32::from(*code)))
        .collect();
    matmul(params, epilogue, &x, parts, y);
}
