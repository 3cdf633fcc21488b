//! Reference of `nsa_probs`.

use super::block_digest::mean;
use super::{PagedKv, f32_of};
use crate::kernel::nsa_probs::NsaProbsParams;

/// Computes the probabilities `[n, num_heads, prob_stride]` of compressed keys of `kernel_size` tokens, `stride`
/// apart, from the keys themselves. Means of pages are rounded as in digests.
pub fn nsa_probs(
    cache: &PagedKv<'_>,
    [kernel_size, stride]: [usize; 2],
    params: &NsaProbsParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    probs: &mut [f32],
) {
    let (heads, head_dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let group = heads / params.num_kv_heads as usize;
    for (index, probs) in probs.chunks_mut(params.prob_stride as usize).enumerate() {
        let head = index % heads;
        let [row, len, table, _] = rows[index / heads].map(|n| n as usize);
        let q = &q[row * params.q_stride as usize + head * head_dim..][..head_dim];
        let page = cache.shape.block_size as usize;
        let dot = |first: usize| -> f64 {
            let keys = (first..first + page).map(|t| cache.key(&tables[table..], head / group, t).collect());
            let keys: Vec<Vec<f64>> = keys.collect();
            let mean = |d: usize| f64::from(mean(cache.shape.dtype, keys.iter().map(|key| key[d])));
            q.iter().enumerate().map(|(d, q)| f64::from(*q) * mean(d)).sum()
        };
        let logit = |first: usize| {
            let pages = (first..first + kernel_size).step_by(page);
            f64::from(params.scale) * pages.map(dot).sum::<f64>() / (kernel_size / page) as f64
        };
        let logits: Vec<f64> =
            (0..len).step_by(stride).take_while(|first| first + kernel_size <= len).map(logit).collect();
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - top).exp()).sum();
        probs.fill(0.0);
        probs.iter_mut().zip(&logits).for_each(|(p, logit)| *p = f32_of((logit - top).exp() / sum));
    }
}
