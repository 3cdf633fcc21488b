//! Reference of `cache_write`.

use crate::kernel::cache_write::CacheWriteParams;
use crate::kernel::{KvDtype, KvShape};
use half::f16;

/// Writes the keys and values of rows `kv` to `slots` (-1 = skip), rounded to the cache's type.
pub fn cache_write(
    shape: &KvShape,
    params: &CacheWriteParams,
    kv: &[f32],
    slots: &[i32],
    k_cache: &mut [f32],
    v_cache: &mut [f32],
) {
    let (block_size, head_dim) = (shape.block_size as usize, shape.head_dim as usize);
    for (row, slot) in slots.iter().take(params.rows as usize).enumerate() {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        let (block, offset) = (slot / block_size, slot % block_size);
        for head in 0..params.num_kv_heads as usize {
            for dim in 0..head_dim {
                let at = row * params.row_stride as usize + head * head_dim + dim;
                k_cache[shape.k_index(block, head, offset, dim)] =
                    stored(shape.dtype, kv[at + params.k_start as usize]);
                v_cache[shape.v_index(block, head, offset, dim)] =
                    stored(shape.dtype, kv[at + params.v_start as usize]);
            }
        }
    }
}

/// What a cache of `dtype` keeps of `x`, rounded to nearest even.
#[must_use]
pub fn stored(dtype: KvDtype, x: f32) -> f32 {
    match dtype {
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::F32 => x,
    }
}
