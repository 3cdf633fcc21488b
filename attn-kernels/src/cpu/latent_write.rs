//! Reference of `latent_write`.

use super::cache_write::stored;
use crate::kernel::latent_write::LatentWriteParams;
use crate::kernel::mla_decode::LatentShape;

/// Writes the latents of rows `kv` to `slots` (-1 = skip), rounded to the cache's type.
pub fn latent_write(
    shape: &LatentShape,
    params: &LatentWriteParams,
    kv: &[f32],
    slots: &[i32],
    latents: &mut [f32],
) {
    let (latent, width) = (shape.latent as usize, shape.width() as usize);
    for (row, slot) in slots.iter().take(params.rows as usize).enumerate() {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        let row = &kv[row * params.row_stride as usize..];
        let parts = row[params.latent_start as usize..][..latent]
            .iter()
            .chain(&row[params.rope_start as usize..][..width - latent]);
        for (to, x) in latents[slot * width..(slot + 1) * width].iter_mut().zip(parts) {
            *to = stored(shape.dtype, *x);
        }
    }
}
