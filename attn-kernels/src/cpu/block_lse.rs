//! Reference of `block_lse`.

use super::{PagedKv, f32_of};
use crate::kernel::block_lse::BlockLseParams;

/// Log-sum-exps `[rows, num_heads, stride]` of all blocks of `select_block` tokens, NaN beyond the sequence; f64.
#[must_use]
pub fn block_lse(
    (cache, select_block): (&PagedKv<'_>, usize),
    params: &BlockLseParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
) -> Vec<f32> {
    let (heads, dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let group = heads / params.num_kv_heads as usize;
    let mut lses = Vec::new();
    for [row, len, table, _] in rows.iter().map(|row| row.map(|n| n as usize)) {
        for head in 0..heads {
            let q = &q[row * params.q_stride as usize + head * dim..][..dim];
            let logit = |token: usize| {
                let key = cache.key(&tables[table..], head / group, token);
                key.zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * f64::from(params.scale)
            };
            lses.extend((0..params.stride as usize).map(|block| {
                let tokens = block * select_block..len.min((block + 1) * select_block);
                let logits: Vec<f64> = tokens.map(logit).collect();
                let top = logits.iter().copied().fold(f64::NAN, f64::max);
                f32_of(top + logits.iter().map(|logit| (logit - top).exp()).sum::<f64>().ln())
            }));
        }
    }
    lses
}
