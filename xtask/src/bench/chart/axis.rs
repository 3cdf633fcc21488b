//! Linear and logarithmic axes. plotters has both, but labels a logarithmic one at powers of ten alone, so that an axis within
//! a decade would have one tick or none.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis before its values are known.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Axis {
    pub(super) title: &'static str,
    log: bool,
    /// Whether the axis ends near its values, with zero or without.
    close: bool,
}

/// An axis from one round number to another.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::bench) struct Scaled {
    pub(in crate::bench) low: f64,
    pub(in crate::bench) high: f64,
    /// From tick to tick; `None` for a logarithmic axis.
    step: Option<f64>,
}

impl Axis {
    pub(in crate::bench) fn linear(title: &'static str) -> Self {
        Self { title, log: false, close: false }
    }

    pub(in crate::bench) fn log(title: &'static str) -> Self {
        Self { title, log: true, close: false }
    }

    /// A linear axis for values whose differences count, not their distance from zero.
    pub(in crate::bench) fn close(title: &'static str) -> Self {
        Self { close: true, ..Self::linear(title) }
    }

    /// Whether the axis can show the value.
    pub(super) fn holds(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// The axis for these values: it ends on round numbers, and has zero where the values are not far from it.
    pub(in crate::bench) fn over(&self, values: impl Iterator<Item = f64>) -> Scaled {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        match (low <= high, self.log) {
            (false, true) => Scaled { low: 1.0, high: 10.0, step: None },
            (false, false) => Scaled::linear(0.0, 1.0),
            (true, true) => {
                let (low, high) = (round_below(low), round_above(high));
                Scaled { low, high: if high > low { high } else { round_above(low * 1.01) }, step: None }
            }
            (true, false) => {
                Scaled::linear(if !self.close && low >= 0.0 && low < 0.7 * high { 0.0 } else { low }, high)
            }
        }
    }
}

impl Scaled {
    fn linear(low: f64, high: f64) -> Self {
        // Values that agree to twelve digits are one value here, so that ticks differ.
        let size = high.abs().max(low.abs());
        let span = if high - low > 1e-12 * size { high - low } else { size.max(1.0) };
        let step = round_above(span / 5.0 * 0.999);
        let low = (low / step).floor() * step;
        Self { low, high: ((high / step).ceil() * step).max(low + step), step: Some(step) }
    }

    /// Round numbers from end to end: at least two, at most 40.
    pub(in crate::bench) fn ticks(&self) -> Vec<f64> {
        let reached = |at: &f64| *at <= self.high + 1e-9 * (self.high - self.low);
        match self.step {
            Some(step) => (0..40).map(|i| self.low + f64::from(i) * step).take_while(reached).collect(),
            // If there are few decades, also the round numbers in between.
            None if self.high / self.low < 2e3 => {
                std::iter::successors(Some(self.low), |at| Some(round_above(at * 1.01)))
                    .take_while(reached)
                    .collect()
            }
            None => {
                let first = 10f64.powf((self.low.log10() - 1e-9).ceil());
                let every = ((self.high / first).log10() / 20.0).ceil().max(1.0);
                let next = |at: &f64| Some(at * 10f64.powf(every));
                std::iter::successors(Some(first), next).take_while(reached).collect()
            }
        }
    }

    /// The value with a prefix, and as many digits as tell one tick from the next.
    pub(in crate::bench) fn label(&self, value: f64) -> String {
        let size = if self.step.is_some() { self.high.abs().max(self.low.abs()) } else { value };
        let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")];
        let (scale, prefix) =
            prefixes.into_iter().find(|(scale, _)| size >= scale * (1.0 - 1e-9)).unwrap_or((1.0, ""));
        let scale = if prefix == "k" { 1e3 } else { scale };
        let step = self.step.unwrap_or(value) / scale;
        let digits = (0..12).find(|digits| step * 10f64.powi(*digits) >= 0.999).unwrap_or(12);
        if self.step.is_some_and(|step| value.abs() < step / 2.0) {
            return "0".into();
        }
        format!("{:.*}{prefix}", digits.unsigned_abs() as usize, value / scale)
    }
}

impl Ranged for Scaled {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limits: (i32, i32)) -> i32 {
        let part = match self.step {
            Some(_) => (value - self.low) / (self.high - self.low),
            None => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        let (from, to) = (f64::from(limits.0), f64::from(limits.1));
        #[expect(clippy::cast_possible_truncation, reason = "pixels of a picture")]
        let pixel = (from + part * (to - from)).round() as i32;
        pixel
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scaled {
    fn format_ext(&self, value: &f64) -> String {
        self.label(*value)
    }
}

/// The smallest number of the form 1, 2 or 5 times a power of ten that is at least `value`.
fn round_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= value * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

/// The largest number of that form that is at most `value`.
fn round_below(value: f64) -> f64 {
    1.0 / round_above(1.0 / value)
}
