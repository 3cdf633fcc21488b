//! Reference of `paged_prefill`.

use super::PagedKv;
use super::attention::attend;
use crate::kernel::paged_prefill::PagedPrefillParams;

/// Causal attention of tiles `[first row, rows, position of the first row, first entry of the block table]`:
/// `out` `[*, num_heads, head_dim]`, `lse` `[*, num_heads]`.
pub fn paged_prefill(
    cache: &PagedKv<'_>,
    params: &PagedPrefillParams,
    q: &[f32],
    tables: &[u32],
    tiles: &[[u32; 4]],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let (heads, head_dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let group = heads / params.num_kv_heads as usize;
    for [first, rows, position, table] in tiles.iter().map(|tile| tile.map(|n| n as usize)) {
        for i in 0..rows {
            for head in 0..heads {
                let q = &q[(first + i) * params.q_stride as usize + head * head_dim..][..head_dim];
                let keys = 0..position + i + 1;
                let state = attend(cache, &tables[table..], head / group, q, params.scale, keys);
                let at = (first + i) * heads + head;
                let row = &mut out[at * head_dim..][..head_dim];
                row.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
                lse[at] = state.lse();
            }
        }
    }
}
