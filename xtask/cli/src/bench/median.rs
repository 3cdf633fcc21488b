//! Medians of measured values, with intervals.

use serde::Serialize;

/// The median of measured values, with a confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Median {
    /// The median.
    pub median: f64,
    /// Lower end of the confidence interval. The interval holds the median of all such measurements with a
    /// probability of 95 % or more, whatever their distribution. It lies between two of the sorted values, by the
    /// normal approximation of the sign test, and spans all measurements if there are few.
    pub low: f64,
    /// Upper end of the interval that begins at `low`.
    pub high: f64,
}

impl Median {
    /// Takes the median of at least one value.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        assert!(n > 0, "a median of {n} values");
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of bursts, and a rank below it"
        )]
        let below = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.0).max(0.0) as usize;
        let below = below.saturating_sub(1);
        let median = f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]);
        Self { median, low: sorted[below], high: sorted[n - 1 - below] }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn few_values_are_the_interval_themselves() {
        assert_eq!(Median::of([3.0, 1.0]), Median { median: 2.0, low: 1.0, high: 3.0 });
    }

    #[test]
    fn the_interval_holds_the_true_median_nineteen_times_of_twenty() {
        let mut random = StdRng::seed_from_u64(9);
        // The median of the square of a uniform number is a quarter.
        let mut draw = || random.random_range(0.0_f64..1.0).powi(2);
        let holds = |m: Median| (m.low..=m.high).contains(&0.25);
        let held = (0..2000).filter(|_| holds(Median::of((0..24).map(|_| draw())))).count();
        assert!((1900..=1990).contains(&held), "{held} of 2000");
    }
}
