//! Reference of `lse_merge`.

use super::f32_of;

/// Merges attention `b` into `a`: outputs `[rows, head_dim]`, lse `[rows]` (natural log; infinities mean "no keys", NaN stays
/// NaN).
pub fn lse_merge(head_dim: usize, b_out: &[f32], b_lse: &[f32], a_out: &mut [f32], a_lse: &mut [f32]) {
    let usable = |lse: f32| if lse.is_infinite() { f64::NEG_INFINITY } else { f64::from(lse) };
    for row in 0..a_lse.len() {
        let (a, b) = (usable(a_lse[row]), usable(b_lse[row]));
        let top = a.max(b);
        let none = a == f64::NEG_INFINITY && b == f64::NEG_INFINITY;
        let (wa, wb) = if none { (0.0, 0.0) } else { ((a - top).exp(), (b - top).exp()) };
        for dim in row * head_dim..(row + 1) * head_dim {
            let sum = wa * f64::from(a_out[dim]) + wb * f64::from(b_out[dim]);
            a_out[dim] = if none { 0.0 } else { f32_of(sum / (wa + wb)) };
        }
        a_lse[row] = if none { f32::NEG_INFINITY } else { f32_of(top + (wa + wb).ln()) };
    }
}
