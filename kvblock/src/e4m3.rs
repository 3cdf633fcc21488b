//! Codes of [`KvDtype::Fp8`](crate::KvDtype::Fp8): fp8 e4m3, the finite variant. Sign, 4 bits of exponent with bias 7, 3 bits of
//! mantissa; no infinity, NaN is `0x7f`.
//!
//! ```
//! use kvblock::e4m3::{MAX, decode, encode};
//!
//! assert_eq!([1.0, 1.06, -500.0].map(|x| decode(encode(x))), [1.0, 1.0, -MAX]);
//! ```

/// Largest finite value of e4m3.
pub const MAX: f32 = 448.0;
const NAN: u8 = 0x7f;
/// Exponent of the smallest normal value, 2^-6; subnormals share its step of 2^-9.
const MIN_EXPONENT: i32 = -6;
const MANTISSA_BITS: i32 = 3;
const BIAS: i32 = 7;

/// Code of the nearest value, ties to even, saturating at ±448; NaN stays NaN.
#[must_use]
pub fn encode(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | NAN;
    }
    let magnitude = value.abs().min(MAX);
    let bits = magnitude.to_bits();
    // f32 subnormals are far below half the smallest fp8 step and round to zero like any tiny value.
    let exponent = (i32::try_from(bits >> 23).expect("8 bits") - 127).max(MIN_EXPONENT);
    // A multiple of a power of two: exact in f32, so the only rounding is the one to the grid.
    let steps = (magnitude * exp2(MANTISSA_BITS - exponent)).round_ties_even();
    // 8 to 16 steps for normal values, 0 to 8 for subnormals; a carry into the next exponent adds up by
    // itself.
    let carried = (exponent + BIAS - 1) * 8 + steps_to_int(steps);
    sign | u8::try_from(carried).expect("at most 0x7e, since the magnitude is at most 448")
}

/// Value of a code; NaN for `0x7f` and `0xff`.
#[must_use]
pub fn decode(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let magnitude = match byte & NAN {
        NAN => f32::NAN,
        _ if exponent == 0 => mantissa * exp2(MIN_EXPONENT - MANTISSA_BITS),
        _ => (8.0 + mantissa) * exp2(exponent - BIAS - MANTISSA_BITS),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// 2^`exponent` for exponents of normal f32.
fn exp2(exponent: i32) -> f32 {
    f32::from_bits(u32::try_from(exponent + 127).expect("a normal exponent") << 23)
}

#[expect(clippy::cast_possible_truncation, reason = "a whole number from 0 to 16")]
fn steps_to_int(steps: f32) -> i32 {
    steps as i32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_CODE: u8 = 0x7e;

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
    }

    #[test]
    fn every_code_is_its_own_value() {
        for code in (0..=MAX_CODE).chain(0x80..=0xfe) {
            assert_eq!(encode(decode(code)), code);
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan());
        assert_eq!([f32::NAN, -f32::NAN].map(|x| encode(x) & 0x7f), [0x7f; 2]);
        assert_eq!([448.0, 464.0, 1e9, f32::INFINITY].map(encode), [MAX_CODE; 4]);
    }

    #[test]
    fn known_values() {
        let known = [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x07, 7.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0)];
        for (code, value) in known.into_iter().chain([(0x7e, MAX), (0xb8, -1.0), (0x3c, 1.5)]) {
            assert_eq!((decode(code), encode(value)), (value, code));
        }
    }
}
