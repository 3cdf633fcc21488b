//! Conversions between number types, each with the reason why it cannot fail.

/// Converts a count or an index to u32; lists are short enough, because kernels use u32.
pub(crate) fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists fit in 32 bits")
}
