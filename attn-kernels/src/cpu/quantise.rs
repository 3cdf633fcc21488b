//! Reference of `quantise`.

use super::cache_write::int8_scale;
use crate::kernel::quantise::{Code, QuantiseParams, Scale};
use sparse_select::dsa::fp8::{self, ScaleFormat};

/// Converts rows of `width` elements of `x` to `codes` `[rows, width]` and `scales` `[rows]`.
pub fn quantise(
    width: usize,
    (code, scale): (Code, Scale),
    params: &QuantiseParams,
    x: &[f32],
    codes: &mut [u8],
    scales: &mut [f32],
) {
    let rows = codes.chunks_exact_mut(width).zip(scales).take(params.rows as usize);
    for (row, (codes, kept)) in rows.enumerate() {
        let from = row * params.row_stride as usize + params.first as usize;
        let x = &x[from..from + width];
        *kept = match (code, scale) {
            (_, Scale::Given) => params.scale,
            (Code::Int8, _) => int8_scale(x),
            (Code::Fp8, Scale::PerRow) => {
                (x.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 448.0).max(1e-6)
            }
            (Code::Fp8, Scale::Ue8m0) => ScaleFormat::Ue8m0.scale(x),
        };
        for (code_of, x) in codes.iter_mut().zip(x) {
            *code_of = encode(code, x / *kept);
        }
    }
}

fn encode(code: Code, x: f32) -> u8 {
    match code {
        Code::Fp8 => fp8::encode(x),
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        Code::Int8 => (x.clamp(-127.0, 127.0).round_ties_even() as i8).cast_unsigned(),
    }
}
