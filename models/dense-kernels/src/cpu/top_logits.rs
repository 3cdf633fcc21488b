//! Reference of `top_logits`.

use super::f32_of;
use checkpoint::sampling::{LogProbs, TokenLogProb};

/// Log-probabilities of `target` and of the `tokens` likeliest tokens of one row of logits.
#[must_use]
pub fn top_logits(logits: &[f32], target: u32, tokens: usize) -> LogProbs {
    let mut ids: Vec<u32> = (0..).take(logits.len()).collect();
    // Zeros of both signs are equal.
    let logit = |id: &u32| logits[*id as usize] + 0.0;
    ids.sort_by(|a, b| logit(b).total_cmp(&logit(a)).then(a.cmp(b)));
    let top = f64::from(logits[ids[0] as usize]);
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - top).exp()).sum();
    let log_prob = |token: u32| f32_of(f64::from(logits[token as usize]) - top - sum.ln());
    let of = |token| TokenLogProb { token, log_prob: log_prob(token) };
    LogProbs { token: of(target), top: ids.into_iter().take(tokens).map(of).collect() }
}
