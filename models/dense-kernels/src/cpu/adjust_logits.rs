//! Reference of `adjust_logits`.

use super::f32_of;
use crate::kernel::adjust_logits::{AdjustRow, NO_MASK};

/// Edits the rows of `logits` `[.., vocab]` that `rows` names, by `masks` and the lists of `edits`.
pub fn adjust_logits(
    vocab: usize,
    rows: &[AdjustRow],
    masks: &[u32],
    edits: &[[u32; 2]],
    logits: &mut [f32],
) {
    for row in rows {
        let logits = &mut logits[row.row as usize * vocab..][..vocab];
        let [suppressed, biases, counts, end] =
            [row.suppressed, row.biases, row.counts, row.end].map(|at| at as usize);
        for (id, logit) in logits.iter_mut().enumerate().filter(|_| row.mask != NO_MASK) {
            if masks[row.mask as usize + id / 32] >> (id % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
        for [token, _] in &edits[suppressed..biases] {
            logits[*token as usize] = f32::NEG_INFINITY;
        }
        for [token, bias] in &edits[biases..counts] {
            logits[*token as usize] += f32::from_bits(*bias);
        }
        for [token, count] in &edits[counts..end] {
            let logit = &mut logits[*token as usize];
            *logit = f32_of(penalised(row, f64::from(*logit), *count));
        }
    }
}

fn penalised(row: &AdjustRow, logit: f64, count: u32) -> f64 {
    let [repetition, presence, frequency] = [row.repetition, row.presence, row.frequency].map(f64::from);
    let repeated = if logit > 0.0 { logit / repetition } else { logit * repetition };
    repeated - frequency * f64::from(count) - if count > 0 { presence } else { 0.0 }
}
