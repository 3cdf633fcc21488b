//! Fixed cost of a step and cost per token, estimated from steps of several sizes.

/// Weight of the newest measurement. It is small, so that earlier steps of other sizes still count.
const NEWEST: f64 = 0.1;

/// Weight of the newest measurement if it is not near the line: the earlier steps probably had other contexts.
const NEWEST_ELSEWHERE: f64 = 0.5;

/// Relative difference from the expected time up to which a measurement counts as near the line.
const NEAR: f64 = 0.3;

/// A line through measured costs over tokens, by least squares with weights that fade.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Line {
    /// Sum of the weights. The next fields are the weighted sums of tokens, costs, squared tokens, and products of
    /// tokens and costs.
    weight: f64,
    tokens: f64,
    cost: f64,
    squares: f64,
    products: f64,
}

impl Line {
    pub(super) fn observe(&mut self, tokens: f64, cost: f64) {
        let expected = self.fit().map_or(cost, |(fixed, token)| fixed + token * tokens);
        let near = (cost - expected).abs() <= NEAR * expected;
        let keep = 1.0 - if near { NEWEST } else { NEWEST_ELSEWHERE };
        self.weight = keep * self.weight + 1.0;
        self.tokens = keep * self.tokens + tokens;
        self.cost = keep * self.cost + cost;
        self.squares = keep * self.squares + tokens * tokens;
        self.products = keep * self.products + tokens * cost;
    }

    /// Mean of the tokens, and their variance.
    fn spread(&self) -> (f64, f64) {
        let mean = self.tokens / self.weight;
        (mean, self.squares / self.weight - mean * mean)
    }

    /// Whether all steps so far had about the same number of tokens; false without steps.
    pub(super) fn is_of_one_size(&self) -> bool {
        let (mean, variance) = self.spread();
        self.weight > 0.0 && variance < 0.05 * mean * mean
    }

    /// Fixed cost and cost per token, both not negative; `None` without measurements.
    pub(super) fn fit(&self) -> Option<(f64, f64)> {
        if self.weight == 0.0 {
            return None;
        }
        let (tokens, variance) = self.spread();
        let cost = self.cost / self.weight;
        let whole = cost / tokens;
        if self.is_of_one_size() {
            return Some((0.0, whole));
        }
        let slope = (self.products / self.weight - tokens * cost) / variance;
        // Tokens always cost something, and nothing is had for less than it costs at once.
        let slope = slope.clamp(0.05 * whole, whole);
        Some((cost - slope * tokens, slope))
    }
}
