//! Histograms that many threads add to.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of values in buckets.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper bounds of all buckets but the last, ascending.
    bounds: &'static [f64],
    /// Number of values in each bucket, `[bounds + 1]`.
    counts: Vec<AtomicU64>,
    /// Bits of the sum of all values.
    sum: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, PartialEq)]
pub(crate) struct Counted {
    /// Upper bounds, each with the number of values up to it; the last bound is infinity.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum: f64,
}

impl Counted {
    /// Number of values.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, count)| *count)
    }

    /// The value that this share of all values does not exceed, between the bounds of its bucket; `None` without values. Values
    /// above the last bound count as that bound.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count() as f64;
        let (mut lower, mut below) = (0.0, 0);
        for (bound, count) in self.buckets.iter().copied().filter(|_| self.count() > 0) {
            if count as f64 >= rank && count > below {
                let part = (rank - below as f64) / (count - below) as f64;
                return Some(if bound.is_finite() { lower + part * (bound - lower) } else { lower });
            }
            (lower, below) = (bound, count);
        }
        None
    }
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let plus = |bits| Some((f64::from_bits(bits) + value).to_bits());
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, plus);
    }

    pub(crate) fn counted(&self) -> Counted {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let cumulated = self.counts.iter().scan(0, |sum, count| {
            *sum += count.load(Ordering::Relaxed);
            Some(*sum)
        });
        Counted {
            buckets: bounds.zip(cumulated).collect(),
            sum: f64::from_bits(self.sum.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_their_bounds() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        assert_eq!(histogram.counted().quantile(0.5), None);
        [0.5, 1.0, 1.5, 2.0, 9.0].into_iter().for_each(|value| histogram.add(value));
        let quantile = |share| histogram.counted().quantile(share);
        assert_eq!([quantile(0.2), quantile(0.5), quantile(0.99)], [Some(0.5), Some(1.25), Some(2.0)]);
        let counted = Counted { buckets: vec![(1.0, 2), (2.0, 4), (f64::INFINITY, 5)], sum: 14.0 };
        assert_eq!(histogram.counted(), counted);
    }
}
