//! Reference of `paged_reduce`.

use super::attention::Options;
use super::f32_of;
use crate::cast::u32_of;
use crate::kernel::paged_decode::partitions;
use crate::kernel::paged_reduce::PagedReduceParams;

/// Merges the partitions of `paged_decode` into `out` `[*, num_heads, head_dim]`; a row without keys is 0.
#[expect(clippy::too_many_arguments, reason = "the bindings of the kernel")]
pub fn paged_reduce(
    head_dim: usize,
    params: &PagedReduceParams,
    partial: &[f32],
    stats: &[[f32; 2]],
    rows: &[[u32; 4]],
    out: &mut [f32],
    options: &Options<'_>,
    sinks: Option<&[f32]>,
) {
    let (heads, most) = (params.num_heads as usize, params.max_partitions as usize);
    let group = heads / params.num_kv_heads as usize;
    for (index, [row, len, _, first]) in rows.iter().enumerate() {
        for head in 0..heads {
            let list = (params.first_row as usize + index) * params.num_kv_heads as usize + head / group;
            let keys = options.context(list, *len as usize);
            let begin = keys.partition_point(|key| *key < *first as usize);
            let count = partitions(params.partition_size, u32_of(begin), u32_of(keys.len())) as usize;
            let first = (index * heads + head) * most;
            let used = first..first + count;
            let top = stats[used.clone()].iter().map(|s| f64::from(s[0])).fold(f64::NEG_INFINITY, f64::max);
            let weight = |p: usize| (f64::from(stats[p][0]) - top).exp();
            let sum: f64 = used.clone().map(|p| weight(p) * f64::from(stats[p][1])).sum();
            let sink = sinks.map_or(0.0, |sinks| (f64::from(sinks[head]) - top).exp());
            for dim in 0..head_dim {
                let x: f64 = used.clone().map(|p| weight(p) * f64::from(partial[p * head_dim + dim])).sum();
                out[(*row as usize * heads + head) * head_dim + dim] =
                    if used.is_empty() { 0.0 } else { f32_of(x / (sum + sink)) };
            }
        }
    }
}
