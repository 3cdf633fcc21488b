//! Reference of `mass_bound`.

use super::{PagedKv, f32_of};
use crate::kernel::mass_bound::{MassBoundParams, RUN};

/// Shares `[rows, num_heads, share_stride]` over blocks of `select_block` tokens, from the keys themselves: the kept sum of
/// exponentials, -1 where nothing is dropped, and the bound of what each [`RUN`] blocks drop; all over the largest kept
/// exponential; f64.
pub fn mass_bound(
    (cache, select_block): (&PagedKv<'_>, usize),
    params: &MassBoundParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    selected: &[u32],
) -> Vec<f32> {
    let (heads, dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let group = heads / params.num_kv_heads as usize;
    let mut shares = Vec::new();
    for (index, [row, len, table, _]) in rows.iter().map(|row| row.map(|n| n as usize)).enumerate() {
        for head in 0..heads {
            let list = (index * params.num_kv_heads as usize + head / group) * params.list_stride as usize;
            let kept = &selected[list + 1..][..selected[list] as usize];
            let q: Vec<f64> = q[row * params.q_stride as usize + head * dim..][..dim]
                .iter()
                .map(|q| f64::from(*q) * f64::from(params.scale))
                .collect();
            let blocks = len.div_ceil(select_block);
            let keys = |block: usize| -> Vec<Vec<f64>> {
                let tokens = block * select_block..len.min((block + 1) * select_block);
                tokens.map(|t| cache.key(&tables[table..], head / group, t).collect()).collect()
            };
            let logit = |key: &Vec<f64>| key.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>();
            let logits: Vec<f64> =
                kept.iter().flat_map(|b| keys(*b as usize).iter().map(logit).collect::<Vec<_>>()).collect();
            // What the kernel starts from stands for no logit.
            let top = logits.iter().copied().fold(-3.0e38, f64::max);
            let all = kept.len() == blocks;
            shares.push(if all { -1.0 } else { f32_of(logits.iter().map(|l| (l - top).exp()).sum()) });
            for run in 0..params.share_stride - 1 {
                let run = (run * RUN) as usize..((run + 1) * RUN) as usize;
                let dropped = run.filter(|b| *b < blocks && !kept.contains(&u32::try_from(*b).expect("few")));
                let bound = |block: usize| {
                    let keys = keys(block);
                    let most =
                        |d: usize| keys.iter().map(|key| key[d] * q[d]).fold(f64::NEG_INFINITY, f64::max);
                    keys.len() as f64 * ((0..dim).map(most).sum::<f64>() - top).min(80.0).exp()
                };
                shares.push(f32_of(dropped.map(bound).sum()));
            }
        }
    }
    shares
}
