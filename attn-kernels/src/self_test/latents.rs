//! Caches of latents as the device stores them.

use sparse_select::dsa::fp8;

use super::layer::{values, words};
use crate::cpu::latent_write::part_scale;
use crate::kernel::KvDtype;
use crate::kernel::mla_decode::LatentShape;

/// Values `[slots, latent + rope]` as words.
#[must_use]
pub fn latent_words(shape: &LatentShape, latents: &[f32]) -> Vec<u32> {
    if matches!(shape.dtype, KvDtype::F16 | KvDtype::F32) {
        return words(shape.dtype, latents);
    }
    let mut bytes = Vec::new();
    for token in latents.chunks_exact(shape.width() as usize) {
        let parts = token.split_at(shape.latent as usize);
        let mut scales = Vec::new();
        for part in [parts.0, parts.1] {
            let scale = part_scale(shape.dtype, part);
            bytes.extend(part.iter().map(|x| encode(shape.dtype, x / scale)));
            // A slot of NaN, which holds no token, has scales of NaN.
            scales.push(if part.first().is_some_and(|x| x.is_nan()) { f32::NAN } else { scale });
        }
        bytes.extend(scales.into_iter().flat_map(f32::to_le_bytes));
    }
    bytemuck::pod_collect_to_vec(&bytes)
}

/// The inverse.
#[must_use]
pub fn latent_values(shape: &LatentShape, words: &[u32]) -> Vec<f32> {
    if matches!(shape.dtype, KvDtype::F16 | KvDtype::F32) {
        return values(shape.dtype, words);
    }
    let bytes: &[u8] = bytemuck::cast_slice(words);
    let (width, latent) = (shape.width() as usize, shape.latent as usize);
    let mut latents = Vec::new();
    for token in bytes.chunks_exact(shape.token_bytes()) {
        let scale = |part: usize| bytemuck::pod_read_unaligned::<f32>(&token[width + 4 * part..][..4]);
        let value =
            |(dim, code): (usize, &u8)| decode(shape.dtype, *code) * scale(usize::from(dim >= latent));
        latents.extend(token[..width].iter().enumerate().map(value));
    }
    latents
}

#[expect(clippy::cast_possible_truncation, reason = "a code from -127 to 127; NaN is 0")]
fn encode(dtype: KvDtype, x: f32) -> u8 {
    if dtype == KvDtype::Fp8 { fp8::encode(x) } else { (x.round_ties_even() as i8).cast_unsigned() }
}

fn decode(dtype: KvDtype, code: u8) -> f32 {
    if dtype == KvDtype::Fp8 { fp8::decode(code) } else { f32::from(code.cast_signed()) }
}
