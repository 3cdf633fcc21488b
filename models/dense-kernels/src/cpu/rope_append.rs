//! Reference of `rope_append`: `norm_heads`, `rope`, then `cache_write`.

use super::norm_heads::norm_heads;
use super::rope::rope;
use crate::Pairing;
use crate::kernel::norm_heads::{Norm, NormHeadsParams};
use crate::kernel::rope::RopeParams;
use crate::kernel::rope_append::RopeAppendParams;
use attn_kernels::cpu::cache_write::cache_write;
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::cache_write::CacheWriteParams;

/// Rows that [`rope_append`] rotates.
#[derive(Clone, Copy, Debug)]
pub struct NewRows<'a> {
    /// Queries, keys and values, `[rows, num_heads + 2 * num_kv_heads, head_dim]`.
    pub qkv: &'a [f32],
    /// Bias that is added to each row first, `[num_heads + 2 * num_kv_heads, head_dim]`.
    pub bias: Option<&'a [f32]>,
    /// Norm of the first heads, `[queries or keys, factor or addend, head_dim]`.
    pub norm: Option<&'a [f32]>,
    /// Slots that keys and values go to; -1 skips a row.
    pub slots: &'a [i32],
    /// Cosine and sine of each pair, `[rows, pairs]`; then, for each row, a factor on its queries and 0, `[rows]`.
    pub cs: &'a [[f32; 2]],
}

/// Destination of rotated rows.
#[derive(Debug)]
pub struct Destination<'a> {
    /// Cache of keys.
    pub k: &'a mut [f32],
    /// Cache of values.
    pub v: &'a mut [f32],
    /// Queries, `[rows, num_heads, head_dim]`.
    pub q: &'a mut [f32],
}

/// Rotates queries and keys of `rows`, and writes queries, keys and values to `to`.
pub fn rope_append(
    shape: &KvShape,
    pairing: Pairing,
    params: &RopeAppendParams,
    rows: NewRows<'_>,
    to: Destination<'_>,
) {
    let (NewRows { qkv, bias, norm, slots, cs }, Destination { k, v, q }) = (rows, to);
    let RopeAppendParams { rows, num_heads, num_kv_heads, pairs, normed, eps } = *params;
    let stride = (num_heads + 2 * num_kv_heads) * shape.head_dim;
    let mut turned = qkv.to_vec();
    for row in turned.chunks_exact_mut(stride as usize) {
        row.iter_mut().zip(bias.unwrap_or_default()).for_each(|(x, bias)| *x += bias);
    }
    if let Some(weight) = norm {
        let queries = normed.min(num_heads);
        let (of_queries, of_keys) = weight.split_at(2 * shape.head_dim as usize);
        for (first, heads, weight) in [(0, queries, of_queries), (num_heads, normed - queries, of_keys)] {
            let (width, first) = (shape.head_dim, first * shape.head_dim);
            let of_heads = NormHeadsParams { rows, heads, width, stride, first, eps };
            norm_heads(&of_heads, Norm::Rms, weight, &mut turned);
        }
    }
    let heads = num_heads + num_kv_heads;
    let heads = RopeParams { rows, heads, stride, pairs, first: 0, back: 0 };
    let (cs, factors) = cs.split_at((rows * pairs) as usize);
    rope(shape.head_dim as usize, pairing, &heads, cs, &mut turned);
    let width = (num_heads * shape.head_dim) as usize;
    for ((q, turned), [factor, _]) in
        q.chunks_exact_mut(width).zip(turned.chunks_exact(stride as usize)).zip(factors)
    {
        q.iter_mut().zip(turned).for_each(|(q, turned)| *q = factor * turned);
    }
    let k_start = num_heads * shape.head_dim;
    let v_start = k_start + num_kv_heads * shape.head_dim;
    let write = CacheWriteParams {
        rows,
        num_kv_heads,
        row_stride: stride,
        k_start,
        v_start,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    cache_write(shape, &write, &turned, slots, k, v);
}
