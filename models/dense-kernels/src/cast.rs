//! Conversions between number types, each with the reason why it is lossless.

/// Converts a count or index of a case, which fits in 32 bits because kernels use u32.
#[cfg(feature = "self-test")]
pub(crate) fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("counts of a case fit in 32 bits")
}

/// Rounds to the nearest f32.
#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
pub(crate) fn f32_of(v: f64) -> f32 {
    v as f32
}
