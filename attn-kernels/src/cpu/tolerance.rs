//! Bounds on the difference between a kernel and its reference.

/// A bound on `|got - want|`: `abs + rel * |want|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute error that is allowed.
    pub abs: f64,
    /// Relative error that is allowed.
    pub rel: f64,
}

/// The element that is furthest outside a [`Tolerance`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "element {index} of {len} is {got}, the reference says {want}, which may differ by {bound:e} ({outside} elements are outside)"
)]
#[non_exhaustive]
pub struct Mismatch {
    /// Index of the element.
    pub index: usize,
    /// Number of elements that were compared.
    pub len: usize,
    /// Number of elements outside the tolerance.
    pub outside: usize,
    /// The kernel's value.
    pub got: f32,
    /// The reference's value.
    pub want: f32,
    /// Maximum difference that the tolerance allows for this element.
    pub bound: f64,
}

impl Tolerance {
    /// Tolerance of kernels that only move data: values must be equal.
    pub const EXACT: Self = Self { abs: 0.0, rel: 0.0 };

    /// Compares `got` with `want`, element by element. Infinities must be equal, and NaN equals only NaN.
    ///
    /// # Errors
    /// The worst element, if one is outside.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn compare(&self, got: &[f32], want: &[f32]) -> Result<(), Mismatch> {
        assert_eq!(got.len(), want.len(), "lengths of result and reference");
        let mut worst: Option<(f64, Mismatch)> = None;
        let mut outside = 0;
        for (index, (&g, &w)) in got.iter().zip(want).enumerate() {
            let bound = self.abs + self.rel * f64::from(w).abs();
            let excess = excess(g, w, bound);
            if excess > 0.0 {
                outside += 1;
                if worst.is_none_or(|(most, _)| excess > most) {
                    let mismatch = Mismatch { index, len: got.len(), outside: 0, got: g, want: w, bound };
                    worst = Some((excess, mismatch));
                }
            }
        }
        worst.map_or(Ok(()), |(_, mismatch)| Err(Mismatch { outside, ..mismatch }))
    }
}

/// Returns by how much the difference exceeds `bound`. The excess is infinite if the values differ and one is not
/// finite.
fn excess(got: f32, want: f32, bound: f64) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    (f64::from(got) - f64::from(want)).abs() - bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_worst_element() {
        let tolerance = Tolerance { abs: 0.1, rel: 0.0 };
        assert_eq!(tolerance.compare(&[1.0, 2.05], &[1.0, 2.0]), Ok(()));
        let error = tolerance.compare(&[1.5, 3.0, 0.0], &[1.0, 2.0, 0.0]).unwrap_err();
        assert_eq!((error.index, error.outside, error.len), (1, 2, 3));
        assert_eq!(
            error.to_string(),
            "element 1 of 3 is 3, the reference says 2, which may differ by 1e-1 (2 elements are outside)"
        );
    }

    #[test]
    fn what_is_not_finite_equals_only_itself() {
        let any = Tolerance { abs: f64::MAX, rel: 1.0 };
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(any.compare(&[inf, -inf, nan], &[inf, -inf, nan]), Ok(()));
        for (got, want) in [(inf, 0.0), (nan, 0.0), (0.0, nan), (inf, -inf)] {
            assert!(any.compare(&[got], &[want]).is_err(), "{got} for {want}");
        }
    }
}
