//! Rope cosines and sines of positions.

use std::ops::Range;

use attn_kernels::rows::Angle;

use crate::Rope;
use crate::cast::f32_of;

/// Number of positions in the table of small angles.
const NEAR: u32 = 64;

/// Computes cosines and sines of positions, by a rule that depends on the position alone.
///
/// An angle is that of the last multiple of [`NEAR`] and one of a table's, added by the sum formulas in f64: four
/// products a pair for nearly every position of a prefill, where sine and cosine take twenty times as long.
#[derive(Debug)]
pub(super) struct RopeCosSin {
    inv_freq: Vec<f64>,
    factor: f64,
    /// (cos, sin) of the positions below [`NEAR`], `[NEAR, pairs]`.
    near: Vec<[f64; 2]>,
}

impl RopeCosSin {
    pub(super) fn new(rope: &Rope) -> Self {
        let inv_freq = rope.inv_freq();
        let near = (0..NEAR).flat_map(|position| cos_sin(&inv_freq, position)).collect();
        Self { near, factor: rope.attention_factor(), inv_freq }
    }

    /// Appends (cos, sin) of `positions`, `[positions, pairs]`, times the attention factor.
    pub(super) fn extend(&self, positions: Range<u32>, to: &mut Vec<Angle>) {
        let pairs = self.inv_freq.len();
        let mut far: Vec<[f64; 2]> = Vec::new();
        for position in positions {
            if far.is_empty() || position.is_multiple_of(NEAR) {
                far.clear();
                far.extend(cos_sin(&self.inv_freq, position - position % NEAR));
            }
            let near = &self.near[(position % NEAR) as usize * pairs..][..pairs];
            to.extend(far.iter().zip(near).map(|([far_cos, far_sin], [near_cos, near_sin])| {
                let cos = far_cos * near_cos - far_sin * near_sin;
                let sin = far_sin * near_cos + far_cos * near_sin;
                Angle { cos: f32_of(cos * self.factor), sin: f32_of(sin * self.factor) }
            }));
        }
    }
}

fn cos_sin(inv_freq: &[f64], position: u32) -> impl Iterator<Item = [f64; 2]> {
    inv_freq.iter().map(move |turn| {
        let (sin, cos) = (f64::from(position) * turn).sin_cos();
        [cos, sin]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pairing;
    use crate::RopeScaling;

    #[test]
    fn sums_of_angles_are_angles() {
        let rope =
            Rope { theta: 500_000.0, rotary_dims: 128, pairing: Pairing::Halves, scaling: RopeScaling::None };
        let cached = RopeCosSin::new(&rope);
        for positions in [0..200, 4_095..4_097, 1_048_000..1_048_200] {
            let mut together = Vec::new();
            cached.extend(positions.clone(), &mut together);
            let mut alone = Vec::new();
            positions.clone().for_each(|position| cached.extend(position..position + 1, &mut alone));
            assert_eq!(together, alone, "positions {positions:?} have other angles in company");
            let direct = positions.flat_map(|position| cos_sin(&cached.inv_freq, position));
            for (got, want) in together.iter().zip(direct) {
                for (got, want) in [got.cos, got.sin].into_iter().zip(want) {
                    assert!((f64::from(got) - want).abs() < 6e-8, "{got} is not {want}");
                }
            }
        }
    }
}
