//! Reference of `quantize_rows`.

use crate::kernel::quantize_rows::QuantizeRowsParams;

/// Quantises the rows of `x`, which are `4 * x_stride` f32 apart. Returns codes `[rows, 32 * blocks]`, and for each
/// block its scale `d` and `d` times the sum of its codes, `[rows, blocks]`.
pub fn quantize_rows(params: &QuantizeRowsParams, x: &[f32]) -> (Vec<i8>, Vec<[f32; 2]>) {
    let width = params.blocks as usize * 32;
    let rows = (0..params.rows as usize).map(|row| &x[row * params.x_stride as usize * 4..][..width]);
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in rows.flat_map(|row| row.chunks_exact(32)) {
        let largest = block.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let d = largest / 127.0;
        #[expect(clippy::cast_possible_truncation, reason = "magnitudes are at most 127")]
        let here: Vec<i8> = block.iter().map(|v| (v * inverse).round_ties_even() as i8).collect();
        scales.push([d, d * here.iter().map(|code| f32::from(*code)).sum::<f32>()]);
        codes.extend(here);
    }
    (codes, scales)
}
