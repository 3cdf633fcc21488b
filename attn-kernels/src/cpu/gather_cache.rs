//! Reference of `gather_cache`.

use super::attention::Options;
use super::{PagedKv, f32_of};

/// Copies the keys and values of `spans` to `k_out` and `v_out` `[rows, num_kv_heads, head_dim]`, in the order of
/// their lists. A span is `[first key, KV length, first row, first entry of the block table]`.
pub fn gather_cache(
    cache: &PagedKv<'_>,
    spans: &[[u32; 4]],
    tables: &[u32],
    (k_out, v_out): (&mut [f32], &mut [f32]),
    options: &Options<'_>,
) {
    let (heads, dim) = (cache.shape.num_kv_heads as usize, cache.shape.head_dim as usize);
    for (index, span) in spans.iter().enumerate() {
        let [first, len, row, table] = span.map(|n| n as usize);
        let keys: Vec<_> = (0..heads).map(|head| options.context(index * heads + head, len)).collect();
        let longest = keys.iter().map(Vec::len).max().unwrap_or(0);
        for (to, key) in (first..longest).enumerate() {
            for (head, keys) in keys.iter().enumerate() {
                let at = ((row + to) * heads + head) * dim;
                let (k_out, v_out) = (&mut k_out[at..at + dim], &mut v_out[at..at + dim]);
                let Some(position) = keys.get(key) else {
                    k_out.fill(0.0);
                    v_out.fill(0.0);
                    continue;
                };
                let table = &tables[table..];
                k_out.iter_mut().zip(cache.key(table, head, *position)).for_each(|(to, x)| *to = f32_of(x));
                v_out.iter_mut().zip(cache.value(table, head, *position)).for_each(|(to, x)| *to = f32_of(x));
            }
        }
    }
}
