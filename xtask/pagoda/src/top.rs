//! The most likely tokens of a row of logits.

/// The `n` most likely ids and the natural logarithms of their probabilities; ties go to the lower id.
/// O(logits + n log n).
///
/// # Panics
/// If there are no logits, or `n` is 0.
#[must_use]
pub fn most_likely(logits: &[f32], n: usize) -> (Vec<u32>, Vec<f32>) {
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut order: Vec<u32> = (0..).take(logits.len()).collect();
    if n < order.len() {
        order.select_nth_unstable_by(n, likelier);
        order.truncate(n);
    }
    order.sort_unstable_by(likelier);
    let most = f64::from(logits[order[0] as usize]);
    let sum: f64 = logits.iter().map(|v| (f64::from(*v) - most).exp()).sum();
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let log_prob = |id: &u32| (f64::from(logits[*id as usize]) - most - sum.ln()) as f32;
    let log_probs = order.iter().map(log_prob).collect();
    (order, log_probs)
}
