//! Reference of `rope_append`: what `rope` and `cache_write` do, one after the other.

use super::rope::rope;
use crate::kernel::rope::RopeParams;
use crate::kernel::rope_append::RopeAppendParams;
use attn_kernels::cpu::cache_write::cache_write;
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::cache_write::CacheWriteParams;

/// Turns queries and keys of `qkv` `[rows, num_heads + 2 * num_kv_heads, head_dim]`; queries go to `q`
/// `[rows, num_heads, head_dim]`, with no pairs multiplied by the first of `cs` `[rows]`; keys and values to `slots` (-1 = skip) of the caches (K, V).
#[expect(clippy::too_many_arguments, reason = "the kernel's bindings")]
pub fn rope_append(
    shape: &KvShape,
    interleaved: bool,
    params: &RopeAppendParams,
    qkv: &[f32],
    slots: &[i32],
    caches: (&mut [f32], &mut [f32]),
    cs: &[[f32; 2]],
    q: &mut [f32],
) {
    let RopeAppendParams { rows, num_heads, num_kv_heads, pairs } = *params;
    let stride = (num_heads + 2 * num_kv_heads) * shape.head_dim;
    let mut turned = qkv.to_vec();
    let heads = num_heads + num_kv_heads;
    let heads = RopeParams { rows, heads, stride, pairs, first: 0, back: 0, pad0: 0, pad1: 0 };
    rope(shape.head_dim as usize, interleaved, &heads, cs, &mut turned);
    let width = (num_heads * shape.head_dim) as usize;
    for (row, (q, turned)) in q.chunks_exact_mut(width).zip(turned.chunks_exact(stride as usize)).enumerate()
    {
        let factor = if pairs == 0 { cs[row][0] } else { 1.0 };
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
        pad0: 0,
    };
    cache_write(shape, &write, &turned, slots, caches.0, caches.1);
}
