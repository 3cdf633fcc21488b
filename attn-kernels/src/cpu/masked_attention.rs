//! Reference of `masked_attention`.

use super::PagedKv;
use super::attention::Options;
use super::attention::{Selected, attend};
use crate::kernel::masked_attention::{MaskedAttentionParams, MaskedRow};

/// Computes the attention of `rows` into `out` `[*, num_heads, head_dim]`. A row attends to the keys of its list
/// whose bits are set in its mask, one of `masks` `[*, mask_stride]`. Only the named rows are written.
#[expect(clippy::too_many_arguments, reason = "the bindings of the kernel")]
pub fn masked_attention(
    cache: &PagedKv<'_>,
    params: &MaskedAttentionParams,
    q: &[f32],
    tables: &[u32],
    rows: &[MaskedRow],
    masks: &[u32],
    selected: Selected<'_>,
    out: &mut [f32],
) {
    let (heads, dim) = (params.num_heads as usize, cache.shape.head_dim as usize);
    let options = Options { selected: Some(selected), ..Options::default() };
    for row in rows {
        let mask = &masks[(row.mask * params.mask_stride) as usize..];
        let mut keys = options.context(row.list as usize, row.len as usize);
        keys.retain(|key| mask[key / 32] >> (key % 32) & 1 == 1);
        for head in 0..heads {
            let kv_head = head / (heads / params.num_kv_heads as usize);
            let q = &q[(row.q * params.q_stride) as usize + head * dim..][..dim];
            let logit = |product: f64, _| f64::from(params.scale) * product;
            let table = &tables[row.table as usize..];
            let state = attend(cache, table, kv_head, q, keys.iter().copied(), logit);
            let to = &mut out[(row.out as usize * heads + head) * dim..][..dim];
            to.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
        }
    }
}
