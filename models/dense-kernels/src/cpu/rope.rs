//! Reference of `rope`.

use super::f32_of;
use crate::Pairing;
use crate::kernel::rope::RopeParams;

/// Rotates the pairs of every head in place, from dimension `first` on, by the angles whose cosines and sines are
/// `cs` `[rows, pairs]`; by the opposite angles if `back` is 1.
pub fn rope(head_dim: usize, pairing: Pairing, params: &RopeParams, cs: &[[f32; 2]], x: &mut [f32]) {
    let pairs = params.pairs as usize;
    for row in 0..params.rows as usize {
        for head in 0..params.heads as usize {
            let first = row * params.stride as usize + head * head_dim + params.first as usize;
            let head = &mut x[first..first + 2 * pairs];
            for (pair, turn) in cs[row * pairs..][..pairs].iter().enumerate() {
                let (a, b) = match pairing {
                    Pairing::Halves => (pair, pair + pairs),
                    Pairing::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let [cos, sin] = turn.map(f64::from);
                let sin = if params.back == 1 { -sin } else { sin };
                let (u, v) = (f64::from(head[a]), f64::from(head[b]));
                head[a] = f32_of(u * cos - v * sin);
                head[b] = f32_of(v * cos + u * sin);
            }
        }
    }
}
