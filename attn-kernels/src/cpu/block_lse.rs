//! Reference of `block_lse`.

use super::PagedKv;
use crate::kernel::block_lse::BlockLseParams;

/// Computes in f64 the log-sum-exps `[rows, num_heads, stride]` of all blocks of `select_block` tokens; blocks beyond
/// the sequence get NaN.
#[must_use]
pub fn block_lse(
    (cache, select_block): (&PagedKv<'_>, usize),
    params: &BlockLseParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
) -> Vec<f32> {
    let BlockLseParams { num_heads, num_kv_heads, q_stride, stride, scale, .. } = *params;
    cache.of_blocks(
        select_block,
        [num_heads, num_kv_heads, q_stride, stride],
        (q, tables, rows),
        |q, keys| {
            let logit = |key: &Vec<f64>| {
                key.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * f64::from(scale)
            };
            let logits: Vec<f64> = keys.iter().map(logit).collect();
            let top = logits.iter().copied().fold(f64::NAN, f64::max);
            top + logits.iter().map(|logit| (logit - top).exp()).sum::<f64>().ln()
        },
    )
}
