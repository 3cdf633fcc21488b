//! Reference of `mass_bound`.

use super::f32_of;
use crate::kernel::mass_bound::{MassBoundParams, RUN};

/// Computes in f64 the shares `[rows, num_heads, share_stride]` of kept and dropped keys, from the bounds `[rows,
/// num_heads, bound_stride]` of blocks and the (maximum, sum) `[rows, num_heads, max_partitions]` of the kept keys.
/// The first share is the kept sum of exponentials, or -1 if nothing is dropped. Each further one is the bound of the
/// dropped sum of [`RUN`] blocks. All are divided by the largest kept exponential, less its rounding error.
#[must_use]
pub fn mass_bound(
    params: &MassBoundParams,
    bounds: &[[f32; 2]],
    rows: &[[u32; 4]],
    selected: &[u32],
    stats: &[[f32; 2]],
) -> Vec<f32> {
    let (heads, group) = (params.num_heads as usize, (params.num_heads / params.num_kv_heads) as usize);
    let mut shares = Vec::new();
    for (i, stats) in stats.chunks_exact(params.max_partitions as usize).enumerate() {
        let (len, list) = (rows[i / heads][1], i / heads * params.num_kv_heads as usize + i % heads / group);
        let list = &selected[list * params.list_stride as usize..];
        let kept = &list[1..=list[0] as usize];
        let blocks = len.div_ceil(params.select_block);
        let tokens = |b: &u32| params.select_block.min(len - b * params.select_block);
        let keys: u32 = kept.iter().map(tokens).sum();
        let stats = &stats[..keys.div_ceil(params.partition_size) as usize];
        // What the kernel starts from stands for no logit.
        let top = stats.iter().map(|[max, _]| f64::from(*max)).fold(-3.0e38, f64::max);
        let sum: f64 = stats.iter().map(|[max, sum]| f64::from(*sum) * (f64::from(*max) - top).exp()).sum();
        let of_block = |b: u32| bounds[i * params.bound_stride as usize + b as usize].map(f64::from);
        let lost = kept.iter().map(|b| of_block(*b)[1]).fold(0.0, f64::max) * f64::from(params.slack);
        let sum: f64 = if lost < 80.0 { sum * (-lost).exp() } else { 0.0 };
        shares.push(if kept.len() == blocks as usize { -1.0 } else { f32_of(sum) });
        for run in 0..params.share_stride - 1 {
            let dropped = (run * RUN..(run + 1) * RUN).filter(|b| *b < blocks && !kept.contains(b));
            let part: f64 = dropped.map(|b| (of_block(b)[0] - top).min(80.0).exp()).sum();
            shares.push(f32_of(part.min(1e36)));
        }
    }
    shares
}
