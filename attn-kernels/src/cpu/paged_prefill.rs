//! Reference of `paged_prefill`.

use super::PagedKv;
use super::attention::{Options, attend};
use crate::kernel::paged_prefill::{PagedPrefillParams, Tile};

/// Attention of tiles to the keys up to each row's position, of the dispatch's `num_keys` from `first_key` on:
/// `out` `[*, num_heads, head_dim]`, `lse` `[*, num_heads]`.
#[expect(clippy::too_many_arguments, reason = "the bindings of the kernel")]
pub fn paged_prefill(
    cache: &PagedKv<'_>,
    params: &PagedPrefillParams,
    q: &[f32],
    tables: &[u32],
    tiles: &[Tile],
    out: &mut [f32],
    lse: &mut [f32],
    options: &Options<'_>,
) {
    let (heads, kv_heads) = (params.num_heads as usize, params.num_kv_heads as usize);
    let head_dim = cache.shape.head_dim as usize;
    for tile in tiles {
        let table = &tables[tile.table as usize..];
        for (row, position) in (tile.row..tile.row + tile.rows).zip(tile.position..) {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let q = &q[(row * params.q_stride) as usize + head * head_dim..][..head_dim];
                let keys = options.context(tile.list as usize * kv_heads + kv_head, position as usize + 1);
                let first = options.mask.first_key(position) as usize;
                let asked = keys.into_iter().skip(params.first_key as usize).take(params.num_keys as usize);
                let keys = asked.filter(|key| *key >= first);
                let logit = |product: f64, key: usize| {
                    options.logit(f64::from(params.scale) * product, head, position as usize - key)
                };
                let state = attend(cache, table, kv_head, q, keys, logit);
                let at = row as usize * heads + head;
                let row = &mut out[at * head_dim..][..head_dim];
                row.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
                lse[at] = state.lse();
            }
        }
    }
}
