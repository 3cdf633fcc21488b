//! fp8 e4m3 (the finite variant: no infinities, maximum 448) with one scale per vector, and the rotation
//! before quantisation.

/// Largest magnitude of e4m3.
pub const MAX: f32 = 448.0;
/// Lower limit of `amax`, so that small vectors do not shrink the scale further.
const AMAX_MIN: f32 = 1e-4;
const MAX_CODE: u8 = 0x7e;

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

/// Rounds to the nearest e4m3 value, ties to even; saturates at 448.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "mantissa and exponent fields")]
pub fn encode(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs();
    let code = if magnitude.is_nan() {
        0x7f
    } else if magnitude >= MAX {
        MAX_CODE
    } else if magnitude < 2.0f32.powi(-6) {
        // Subnormal: steps of 2^-9; rounding up to 8 steps yields the first normal code.
        (magnitude * 512.0).round_ties_even() as u8
    } else {
        // 8..=16 eighths of 2^exponent; 16 carries into the exponent field.
        let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
        let eighths = (magnitude * 2.0f32.powi(3 - exponent)).round_ties_even() as i32;
        (((exponent + 7) << 3) + eighths - 8).min(i32::from(MAX_CODE)) as u8
    };
    sign | code
}

/// The value of a code; NaN for `0x7f` and `0xff`.
#[must_use]
pub fn decode(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
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

    /// The positive code whose value is nearest, the even one of two.
    fn nearest(x: f32) -> u8 {
        let distance = |code: u8| (f64::from(decode(code)) - f64::from(x.abs())).abs();
        (0..=MAX_CODE)
            .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))))
            .unwrap()
    }

    proptest! {
        #[test]
        fn encodes_to_the_nearest(x in prop_oneof![-500.0f32..500.0, -0.03f32..0.03]) {
            prop_assert_eq!(encode(x) & 0x7f, nearest(x));
            prop_assert_eq!(encode(-x), encode(x) ^ 0x80);
        }

        #[test]
        fn halves_round_to_even(code in 0u8..MAX_CODE) {
            let middle = (decode(code) + decode(code + 1)) / 2.0;
            prop_assert_eq!(encode(middle), code + (code & 1));
        }

        #[test]
        fn rotation_keeps_dot_products(x in prop::array::uniform8(-64i8..64), y in prop::array::uniform8(-64i8..64)) {
            let rotate = |x: [i8; 8]| { let mut x = x.map(f32::from); hadamard(&mut x); x };
            let dot = |a: [f32; 8], b: [f32; 8]| crate::heads::dot(&a, &b);
            let (before, after) = (dot(x.map(f32::from), y.map(f32::from)), dot(rotate(x), rotate(y)));
            prop_assert!((before - after).abs() <= 1e-3 * (1.0 + before.abs()));
        }
    }

    #[test]
    fn every_code_is_its_own_value() {
        for code in (0..=MAX_CODE).chain(0x80..=0xfe) {
            assert_eq!(encode(decode(code)), code);
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan());
        assert_eq!([448.0, 464.0, 1e9].map(encode), [MAX_CODE; 3]);
    }

    #[test]
    fn scales() {
        assert_eq!(ScaleFormat::F32.scale(&[1.0, -896.0]), 2.0);
        assert_eq!(ScaleFormat::Ue8m0.scale(&[1.0, -896.0]), 2.0);
        assert_eq!(ScaleFormat::Ue8m0.scale(&[900.0]), 4.0);
        assert_eq!(ScaleFormat::F32.scale(&[0.0]), 1e-4 / 448.0);
    }
}
