//! fp8 e4m3 (the finite variant): sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinity, NaN is
//! `0x7f`.

use super::{element, set_element};

/// Largest finite value.
pub const F8_MAX: f32 = 448.0;
const NAN: u8 = 0x7f;
/// Exponent of the smallest normal value, 2^-6; subnormals share its step of 2^-9.
const MIN_EXPONENT: i32 = -6;
const MANTISSA_BITS: i32 = 3;
const BIAS: i32 = 7;

/// The nearest fp8 value, ties to even, saturating at ±448; NaN stays NaN.
#[must_use]
pub fn encode_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | NAN;
    }
    let magnitude = value.abs().min(F8_MAX);
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

/// The value of an fp8 byte.
#[must_use]
pub fn decode_e4m3(byte: u8) -> f32 {
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

pub(super) fn encode(shard: &[u8], out: &mut [u8], scale: f32) {
    assert_eq!(shard.len(), out.len() * 2, "fp8 takes half the bytes of f16");
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = encode_e4m3(element(shard, at) / scale);
    }
}

pub(super) fn decode(encoded: &[u8], out: &mut [u8], scale: f32) {
    assert_eq!(out.len(), encoded.len() * 2, "fp8 takes half the bytes of f16");
    for (at, &byte) in encoded.iter().enumerate() {
        set_element(out, at, decode_e4m3(byte) * scale);
    }
}
