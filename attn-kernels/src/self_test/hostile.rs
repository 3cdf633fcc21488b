//! Scores that are not numbers, and lists with arbitrary entries, for kernels whose results later kernels use as indices.
//!
//! Kernels run without bounds checks, so whatever their scores are, the indices that they make must stay inside the buffers
//! of those that use them. Scores become NaN or infinite where activations or a cache in f16 overflow, or where a file says so.

pub(super) mod indices;

pub use indices::{Indices, Order};

use super::Case;
use super::case::Values;

/// Function that makes a score from its index.
type Score = fn(u32) -> f32;

/// Scores such as overflows, damaged caches and hostile files produce.
pub(super) const SCORES: [(&str, Score); 11] = [
    ("NaN", |_| f32::NAN),
    ("-NaN", |_| f32::from_bits(0xffc0_0000)),
    ("signalling NaN", |_| f32::from_bits(0x7f80_0001)),
    ("+inf", |_| f32::INFINITY),
    ("-inf", |_| f32::NEG_INFINITY),
    ("1.7e38", |_| 1.7e38),
    ("-1.7e38", |_| -1.7e38),
    ("equal scores", |_| 0.25),
    ("zeros of both signs", |i| if i.is_multiple_of(2) { 0.0 } else { -0.0 }),
    ("NaN among numbers", |i| if mix(i).is_multiple_of(3) { f32::NAN } else { mix(i) as f32 }),
    ("any bits", |i| f32::from_bits(mix(i))),
];

/// Spreads the bits of a number by a bijection.
pub(super) const fn mix(i: u32) -> u32 {
    let i = (i ^ (i >> 16)).wrapping_mul(0x7feb_352d);
    let i = (i ^ (i >> 15)).wrapping_mul(0x846c_a68b);
    i ^ (i >> 16)
}

/// Returns copies of `case`, one for each kind of hostile scores, which replace the floats of bindings `floats`
/// (counted from 0). Results are compared only with `wants`.
#[must_use]
pub fn cases(case: &Case, floats: &[usize], wants: &[(usize, Indices)]) -> Vec<Case> {
    let with = |(what, score): (&'static str, Score)| {
        let wants = wants.iter().map(|(binding, indices)| (*binding, Values::Indices(indices.clone())));
        let mut case = Case { what, wants: wants.collect(), ..case.clone() };
        for binding in floats {
            for (i, word) in (0..).zip(&mut case.buffers[*binding]) {
                *word = score(i).to_bits();
            }
        }
        case
    };
    SCORES.into_iter().map(with).collect()
}
