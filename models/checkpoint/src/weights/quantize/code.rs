//! Codes of numbers, and the scales that are stored next to them.

use half::f16;

/// Writes a number as f16.
pub(super) fn put(out: &mut [u8], value: f32) {
    out[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Returns 1 divided by a scale, or 0 for a scale of 0.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Rounds a number down to a code of at most `max`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range of a code")]
pub(super) fn code(value: f32, max: u8) -> u8 {
    value.clamp(0.0, f32::from(max)) as u8
}
