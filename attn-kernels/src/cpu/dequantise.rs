//! Reference of `dequantise`.

use crate::kernel::dequantise::DequantiseParams;
use crate::kernel::quantise::Code;
use sparse_select::dsa::fp8;

/// Writes the products of `codes` `[rows, width]` and `scales` `[rows]` to rows of `x`. Library only: kernels of
/// the engine read codes as they are.
pub fn dequantise(
    width: usize,
    code: Code,
    params: &DequantiseParams,
    codes: &[u8],
    scales: &[f32],
    x: &mut [f32],
) {
    for (row, (codes, scale)) in codes.chunks_exact(width).zip(scales).take(params.rows as usize).enumerate()
    {
        let to = row * params.row_stride as usize + params.first as usize;
        for (x, of) in x[to..to + width].iter_mut().zip(codes) {
            *x = scale
                * match code {
                    Code::Fp8 => fp8::decode(*of),
                    Code::Int8 => f32::from(of.cast_signed()),
                };
        }
    }
}
