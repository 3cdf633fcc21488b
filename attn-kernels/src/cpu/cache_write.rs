//! Reference of `cache_write`.

use crate::kernel::cache_write::CacheWriteParams;
use crate::kernel::{KvDtype, KvShape};
use half::f16;
use sparse_select::dsa::fp8;

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
            let row = &kv[row * params.row_stride as usize + head * head_dim..];
            let kept = |start: u32, scale| stored_row(shape.dtype, scale, &row[start as usize..][..head_dim]);
            let (k, v) = (kept(params.k_start, params.k_scale), kept(params.v_start, params.v_scale));
            for dim in 0..head_dim {
                k_cache[shape.k_index(block, head, offset, dim)] = k[dim];
                v_cache[shape.v_index(block, head, offset, dim)] = v[dim];
            }
        }
    }
}

/// Rounds a row of one head as a cache of `dtype` does: fp8 with `scale`, int8 with a scale of its own.
#[must_use]
pub fn stored_row(dtype: KvDtype, scale: f32, row: &[f32]) -> Vec<f32> {
    match dtype {
        KvDtype::Fp8 => row.iter().map(|x| stored(dtype, x / scale) * scale).collect(),
        KvDtype::Int8 => {
            let scale = int8_scale(row);
            row.iter().map(|x| (x / scale).round_ties_even() * scale).collect()
        }
        _ => row.iter().map(|x| stored(dtype, *x)).collect(),
    }
}

/// Scale of a row of one head in int8: `max(absmax / 127, 1e-6)`.
#[must_use]
pub fn int8_scale(row: &[f32]) -> f32 {
    (row.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 127.0).max(1e-6)
}

/// Converts `x` as a cache of `dtype` does, rounded to nearest even, with a scale of 1.
///
/// # Panics
/// For int8.
#[must_use]
pub fn stored(dtype: KvDtype, x: f32) -> f32 {
    match dtype {
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::F32 => x,
        KvDtype::Fp8 => fp8::decode(fp8::encode(x)),
        KvDtype::Int8 => panic!("what int8 keeps depends on the row: see stored_row"),
    }
}
