//! Reference of `latent_write`.

use half::bf16;
use sparse_select::dsa::fp8::{self, ScaleFormat};

use super::cache_write::stored_row;
use crate::kernel::KvDtype;
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
        let rope = &row[params.rope_start as usize..][..width - latent];
        let parts = [&row[params.latent_start as usize..][..latent], rope].concat();
        latents[slot * width..(slot + 1) * width].copy_from_slice(&stored_latent(shape, &parts));
    }
}

/// Rounds a token's `[latent + rope]` elements as a cache does. Codes have one scale per part, or one per 64 codes if
/// elements in bf16 follow.
#[must_use]
pub fn stored_latent(shape: &LatentShape, token: &[f32]) -> Vec<f32> {
    if shape.plain > 0 {
        let (coded, plain) = token.split_at((shape.latent - shape.plain) as usize);
        let coded = coded.chunks(SCALED).flat_map(|part| {
            let (codes, scale) = fp8::quantise(part, ScaleFormat::Ue8m0);
            codes.into_iter().map(move |code| fp8::decode(code) * scale)
        });
        return coded.chain(plain.iter().map(|x| bf16::from_f32(*x).to_f32())).collect();
    }
    let (latent, rope) = token.split_at(shape.latent as usize);
    let part = |part| stored_row(shape.dtype, part_scale(shape.dtype, part), part);
    [part(latent), part(rope)].concat()
}

/// Number of codes that share a scale, in latents with elements in bf16.
pub const SCALED: usize = 64;

/// Returns the scale of a part of a token: its largest magnitude divided by the largest code; 1 if elements are floats.
#[must_use]
pub fn part_scale(dtype: KvDtype, part: &[f32]) -> f32 {
    let most = part.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    match dtype {
        KvDtype::Fp8 => (most / 448.0).max(1e-6),
        KvDtype::Int8 => (most / 127.0).max(1e-6),
        KvDtype::F16 | KvDtype::F32 => 1.0,
    }
}
