//! fp8 e4m3 (the finite variant: no infinities, maximum 448) with one scale per vector, and the rotation
//! before quantisation.

pub use kvblock::e4m3::{MAX, decode, encode};

/// Lower limit of `amax`, so that small vectors do not shrink the scale further.
const AMAX_MIN: f32 = 1e-4;

/// Storage format of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleFormat {
    /// `amax / 448`.
    F32,
    /// The power of two at or above `amax / 448`.
    Ue8m0,
}

impl ScaleFormat {
    /// The scale of a vector, with `amax = max(|x|, 1e-4)`.
    #[must_use]
    pub fn scale(self, x: &[f32]) -> f32 {
        let scale = x.iter().fold(AMAX_MIN, |amax, x| amax.max(x.abs())) / MAX;
        match self {
            Self::F32 => scale,
            Self::Ue8m0 => next_power_of_two(scale),
        }
    }
}

/// The smallest power of two that is at least `x`, for normal `x > 0`.
fn next_power_of_two(x: f32) -> f32 {
    let floor = f32::from_bits(x.to_bits() & 0x7f80_0000);
    if floor == x { x } else { floor * 2.0 }
}

/// Codes of `x / scale`, and the scale. One scale per vector suffices: an index key has at most the 128
/// channels of a block.
#[must_use]
pub fn quantise(x: &[f32], format: ScaleFormat) -> (Vec<u8>, f32) {
    let scale = format.scale(x);
    (x.iter().map(|x| encode(x / scale)).collect(), scale)
}

/// The Hadamard rotation of queries and keys before quantisation, scaled by `1 / sqrt(len)`: spreads outliers
/// over all channels and preserves dot products. O(n log n).
///
/// # Panics
/// When the length is not a power of two.
pub fn hadamard(x: &mut [f32]) {
    assert!(x.len().is_power_of_two(), "{} channels cannot be rotated", x.len());
    let mut half = 1;
    while half < x.len() {
        for block in x.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rotation_keeps_dot_products(x in prop::array::uniform8(-64i8..64), y in prop::array::uniform8(-64i8..64)) {
            let rotate = |x: [i8; 8]| { let mut x = x.map(f32::from); hadamard(&mut x); x };
            let dot = |a: [f32; 8], b: [f32; 8]| crate::heads::dot(&a, &b);
            let (before, after) = (dot(x.map(f32::from), y.map(f32::from)), dot(rotate(x), rotate(y)));
            prop_assert!((before - after).abs() <= 1e-3 * (1.0 + before.abs()));
        }
    }

    #[test]
    fn scales() {
        assert_eq!(ScaleFormat::F32.scale(&[1.0, -896.0]), 2.0);
        assert_eq!(ScaleFormat::Ue8m0.scale(&[1.0, -896.0]), 2.0);
        assert_eq!(ScaleFormat::Ue8m0.scale(&[900.0]), 4.0);
        assert_eq!(ScaleFormat::F32.scale(&[0.0]), 1e-4 / 448.0);
    }
}
