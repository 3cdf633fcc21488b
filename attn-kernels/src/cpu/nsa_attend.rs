//! Reference of `nsa_attend`.

use super::block_digest::mean;
use super::{PagedKv, f32_of};
use crate::kernel::nsa_attend::NsaAttendParams;

/// Computes the attention `[rows, num_heads, head_dim]` to the mean values of blocks of `block` tokens with weights
/// `probs`, from the values themselves. Means of pages are rounded as in digests.
pub fn nsa_attend(
    cache: &PagedKv<'_>,
    block: usize,
    params: &NsaAttendParams,
    probs: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    out: &mut [f32],
) {
    let (heads, dim, page) =
        (params.num_heads as usize, cache.shape.head_dim as usize, cache.shape.block_size as usize);
    let group = heads / params.num_kv_heads as usize;
    for (index, probs) in probs.chunks(params.prob_stride as usize).enumerate() {
        let head = index % heads;
        let [row, len, table, _] = rows[index / heads].map(|n| n as usize);
        let mut sum = vec![0.0; dim];
        for first in (0..len / block * block).step_by(page) {
            let value = |t| cache.value(&tables[table..], head / group, t).collect();
            let values: Vec<Vec<f64>> = (first..first + page).map(value).collect();
            let share = f64::from(probs[first / block]) * page as f64 / block as f64;
            for (d, sum) in sum.iter_mut().enumerate() {
                *sum += share * f64::from(mean(cache.shape.dtype, values.iter().map(|value| value[d])));
            }
        }
        let out = &mut out[(row * heads + head) * dim..][..dim];
        out.iter_mut().zip(sum).for_each(|(out, sum)| *out = f32_of(sum));
    }
}
