//! Reference of `mass_bound`.

use super::{PagedKv, f32_of};
use crate::kernel::mass_bound::MassBoundParams;

/// Lowers `masses` `[rows, num_heads]` to `K / (K + D)` where a list drops blocks of `select_block` tokens: K and the
/// bound D from the keys themselves, f64.
pub fn mass_bound(
    (cache, select_block): (&PagedKv<'_>, usize),
    params: &MassBoundParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    selected: &[u32],
    masses: &mut [f32],
) {
    let (heads, dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let group = heads / params.num_kv_heads as usize;
    for (index, [row, len, table, _]) in rows.iter().map(|row| row.map(|n| n as usize)).enumerate() {
        for head in 0..heads {
            let list = (index * params.num_kv_heads as usize + head / group) * params.list_stride as usize;
            let kept = &selected[list + 1..][..selected[list] as usize];
            let q: Vec<f64> = q[row * params.q_stride as usize + head * dim..][..dim]
                .iter()
                .map(|q| f64::from(*q) * f64::from(params.scale))
                .collect();
            let (mut sum, mut bound) = (0.0, 0.0);
            for block in 0..len.div_ceil(select_block) {
                let tokens = block * select_block..len.min((block + 1) * select_block);
                let keys: Vec<Vec<f64>> =
                    tokens.map(|t| cache.key(&tables[table..], head / group, t).collect()).collect();
                if kept.iter().any(|b| *b as usize == block) {
                    let logit = |key: &Vec<f64>| key.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>();
                    sum += keys.iter().map(|key| logit(key).exp()).sum::<f64>();
                } else {
                    let most =
                        |d: usize| keys.iter().map(|key| key[d] * q[d]).fold(f64::NEG_INFINITY, f64::max);
                    bound += keys.len() as f64 * (0..dim).map(most).sum::<f64>().exp();
                }
            }
            if kept.len() < len.div_ceil(select_block) {
                let mass = &mut masses[index * heads + head];
                *mass = mass.min(f32_of(sum / (sum + bound)));
            }
        }
    }
}
