//! Reference of `paged_decode`.

use super::attention::{Options, attend};
use super::{PagedKv, f32_of};
use crate::kernel::paged_decode::PagedDecodeParams;

/// Computes the attention of single rows `[row, length, table, first key]`, in partitions of the keys in the order of
/// attention, from the partition of the first key on. Writes unnormalised outputs to `partial` `[rows, num_heads,
/// max_partitions, head_dim]`, and (max, sum) to `stats` `[rows, num_heads, max_partitions]`. Without a reduce pass,
/// `partial` is `[*, num_heads, head_dim]`, normalised, and 0 for a row without keys. Partitions after a row's keys
/// are left alone.
#[expect(clippy::too_many_arguments, reason = "the bindings of the kernel")]
pub fn paged_decode(
    cache: &PagedKv<'_>,
    params: &PagedDecodeParams,
    q: &[f32],
    tables: &[u32],
    rows: &[[u32; 4]],
    partial: &mut [f32],
    stats: &mut [[f32; 2]],
    options: &Options<'_>,
) {
    let (heads, kv_heads) = (params.num_heads as usize, params.num_kv_heads as usize);
    let (head_dim, most) = (cache.shape.head_dim as usize, params.max_partitions as usize);
    for (index, [row, len, table, first]) in rows.iter().map(|row| row.map(|n| n as usize)).enumerate() {
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let q = &q[row * params.q_stride as usize + head * head_dim..][..head_dim];
            let keys = options.context((params.first_row as usize + index) * kv_heads + kv_head, len);
            let seen = |keys: &[usize]| keys.iter().any(|key| *key >= first);
            let partitions = keys.chunks(params.partition_size as usize).filter(|keys| seen(keys));
            for (p, keys) in partitions.enumerate() {
                let keys = keys.iter().copied().filter(|key| *key >= first);
                let logit = |product: f64, key: usize| {
                    options.logit(f64::from(params.scale) * product, head, len - 1 - key)
                };
                let state = attend(cache, &tables[table..], kv_head, q, keys, logit);
                let at = (index * heads + head) * most + p;
                stats[at] = [f32_of(state.top), f32_of(state.sum)];
                if params.reduced == 0 {
                    let out = &mut partial[(row * heads + head) * head_dim..][..head_dim];
                    out.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
                } else {
                    let out = &mut partial[at * head_dim..][..head_dim];
                    out.iter_mut().zip(&state.weighted).for_each(|(to, x)| *to = f32_of(*x));
                }
            }
            if params.reduced == 0 && !seen(&keys) {
                partial[(row * heads + head) * head_dim..][..head_dim].fill(0.0);
            }
        }
    }
}
