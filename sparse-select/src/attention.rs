//! Exact attention, the reference for measures and certificates.

use crate::Heads;

/// Logits of one query against every token of KV head `kv`, `scale * q·k`, accumulated in f64.
#[must_use]
pub fn logits(q: &[f32], k: &Heads<'_>, kv: usize, scale: f64) -> Vec<f64> {
    k.rows(kv).map(|row| scale * crate::heads::dot_f64(q, row)).collect()
}

/// The usual attention scale, `1 / sqrt(head_dim)`.
#[must_use]
pub fn default_scale(head_dim: usize) -> f64 {
    1.0 / (head_dim as f64).sqrt()
}

/// Natural logarithm of `Σ e^x`; -inf if there are no values.
#[must_use]
pub fn log_sum_exp(values: impl IntoIterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().into_iter().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + values.into_iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}

/// Softmax of `logits`: probabilities that sum to 1; empty for no logits.
#[must_use]
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let lse = log_sum_exp(logits.iter().copied());
    logits.iter().map(|x| (x - lse).exp()).collect()
}
