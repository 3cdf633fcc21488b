//! Reference of `index_logits`.

use super::f32_of;
use crate::kernel::index_logits::IndexLogitsParams;

/// Computes the logits `[n, logit_stride]` of queries `[rows, num_heads, head_dim]`. `key` takes the first entry of a
/// page table and a position, and returns the scaled elements of that key.
pub fn index_logits<K: AsRef<[f32]>>(
    params: &IndexLogitsParams,
    head_dim: usize,
    q: &[f32],
    rows: &[[u32; 4]],
    gates: &[f32],
    key: impl Fn(usize, usize) -> K,
    logits: &mut [f32],
) {
    let heads = params.num_heads as usize;
    for (&row, logits) in rows.iter().zip(logits.chunks_mut(params.logit_stride as usize)) {
        let [at, first, end, table] = row.map(|n| n as usize);
        logits.fill(f32::NEG_INFINITY);
        for (n, logit) in logits.iter_mut().enumerate().take(end).skip(first) {
            let key = key(table, n);
            let of_head = |head: usize| {
                let q = &q[(at * heads + head) * head_dim..][..head_dim];
                let dot: f64 = q.iter().zip(key.as_ref()).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                f64::from(gates[at * heads + head]) * dot.max(0.0)
            };
            *logit = f32_of((0..heads).map(of_head).sum());
        }
    }
}
