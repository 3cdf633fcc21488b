//! Reference of `log_prob`.

use super::f32_of;

/// Computes the negative log likelihood in nats of one target token per row of `logits` `[rows, vocab]`.
pub fn log_prob(vocab: usize, logits: &[f32], targets: &[u32], out: &mut [f32]) {
    for ((logits, target), out) in logits.chunks_exact(vocab).zip(targets).zip(out) {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
        *out = f32_of(f64::from(top) + sum.ln() - f64::from(logits[*target as usize]));
    }
}
