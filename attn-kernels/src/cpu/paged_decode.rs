//! Reference of `paged_decode`.

use super::attention::attend;
use super::{PagedKv, f32_of};
use crate::kernel::paged_decode::{PARTITION, PagedDecodeParams};

/// Attention of single rows, by partitions: `partial` `[rows, num_heads, max_partitions, head_dim]` unnormalised and
/// `stats` `[rows, num_heads, max_partitions]` of (max, sum); with one partition `partial` is
/// `[*, num_heads, head_dim]`, normalised, and 0 for a row of length 0. Partitions after a row's length are left alone.
pub fn paged_decode(
    cache: &PagedKv<'_>,
    params: &PagedDecodeParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    partial: &mut [f32],
    stats: &mut [[f32; 2]],
) {
    let (heads, head_dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let (most, partition) = (params.max_partitions as usize, PARTITION as usize);
    for (index, [row, len, table, _]) in rows.iter().map(|row| row.map(|n| n as usize)).enumerate() {
        for head in 0..heads {
            let kv_head = head / (heads / params.num_kv_heads as usize);
            let q = &q[row * params.q_stride as usize + head * head_dim..][..head_dim];
            for p in 0..len.div_ceil(partition).max(usize::from(most == 1)) {
                let keys = p * partition..len.min((p + 1) * partition);
                let state = attend(cache, &tables[table..], kv_head, q, params.scale, keys);
                let at = (index * heads + head) * most + p;
                if len > 0 {
                    stats[at] = [f32_of(state.top), f32_of(state.sum)];
                }
                if most == 1 {
                    let out = &mut partial[(row * heads + head) * head_dim..][..head_dim];
                    out.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
                } else {
                    let out = &mut partial[at * head_dim..][..head_dim];
                    out.iter_mut().zip(&state.weighted).for_each(|(to, x)| *to = f32_of(*x));
                }
            }
        }
    }
}
