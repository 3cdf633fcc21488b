//! int8 with one f32 scale for each token and head. Encoded shard: `[rows, head_dim]` i8, then `[rows]` f32
//! scales.

use super::{RowLayout, element, set_element};

/// Minimum scale, which prevents a division by zero for a row of zeros.
const SCALE_MIN: f32 = 1e-6;

fn num_rows(shard: &[u8], rows: RowLayout) -> usize {
    shard.len() / 2 / rows.head_dim()
}

pub(super) fn encode(shard: &[u8], out: &mut [u8], rows: RowLayout) {
    let (head_dim, num_rows) = (rows.head_dim(), num_rows(shard, rows));
    let (values, scales) = out.split_at_mut(num_rows * head_dim);
    let scales = scales.as_chunks_mut().0;
    for (row, (values, scale)) in values.chunks_exact_mut(head_dim).zip(scales).enumerate() {
        let at = |d| element(shard, rows.position(row, d));
        // Ignores NaN, which i8 cannot hold.
        let absmax = (0..head_dim).map(|d| at(d).abs()).filter(|x| x.is_finite()).fold(0.0, f32::max);
        let step = (absmax / 127.0).max(SCALE_MIN);
        for (d, value) in values.iter_mut().enumerate() {
            *value = quantise(at(d) / step).to_le_bytes()[0];
        }
        *scale = step.to_le_bytes();
    }
}

pub(super) fn decode(encoded: &[u8], out: &mut [u8], rows: RowLayout) {
    let (head_dim, num_rows) = (rows.head_dim(), num_rows(out, rows));
    let (values, scales) = encoded.split_at(num_rows * head_dim);
    let scales = scales.as_chunks().0;
    for (row, (values, scale)) in values.chunks_exact(head_dim).zip(scales).enumerate() {
        let scale = f32::from_le_bytes(*scale);
        for (d, &value) in values.iter().enumerate() {
            set_element(out, rows.position(row, d), f32::from(i8::from_le_bytes([value])) * scale);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "clamped to the range of i8; NaN becomes 0")]
fn quantise(value: f32) -> i8 {
    value.round_ties_even().clamp(-128.0, 127.0) as i8
}
