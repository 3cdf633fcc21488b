//! Percentiles of latencies.

use std::fmt;

use serde::Serialize;

/// Nearest-rank percentiles of some values; 0 if there are no values.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The value that 90 % of the values do not exceed.
    pub p90: f64,
    /// The value that 99 % of the values do not exceed.
    pub p99: f64,
}

impl Percentiles {
    /// Takes the percentiles of values in any order.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or(0.0)
        };
        Self { p50: rank(50), p90: rank(90), p99: rank(99) }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p90, p99 } = self;
        write!(f, "p50 {p50:9.1} ms, p90 {p90:9.1} ms, p99 {p99:9.1} ms")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_values_that_came_up() {
        let of = |n: u32| Percentiles::of((1..=n).rev().map(f64::from).collect());
        assert_eq!(of(100), Percentiles { p50: 50.0, p90: 90.0, p99: 99.0 });
        assert_eq!(of(10), Percentiles { p50: 5.0, p90: 9.0, p99: 10.0 });
        assert_eq!(of(1), Percentiles { p50: 1.0, p90: 1.0, p99: 1.0 });
        assert_eq!(of(0), Percentiles::default());
    }

    /// The definition: the smallest value that at least this percentage of the values does not exceed.
    fn naive(values: &[f64], percent: usize) -> f64 {
        let not_above = |limit: f64| values.iter().filter(|value| **value <= limit).count();
        let reached = |limit: &f64| 100 * not_above(*limit) >= percent * values.len();
        values.iter().copied().filter(reached).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_definition(values in prop::collection::vec(-1e3f64..1e3, 1..200)) {
            let Percentiles { p50, p90, p99 } = Percentiles::of(values.clone());
            prop_assert_eq!([p50, p90, p99], [50, 90, 99].map(|percent| naive(&values, percent)));
        }
    }
}
