//! Conversions between number types, with the reason why they hold.

/// A count or index of lists, all of which fit in 32 bits: kernels could not name them otherwise.
pub(crate) fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists fit in 32 bits")
}
