//! Caches of latents as the device stores them.

use half::bf16;
use sparse_select::dsa::fp8::{self, ScaleFormat};

use super::layer::words;
use crate::cpu::latent_write::{SCALED, part_scale};
use crate::kernel::KvDtype;
use crate::kernel::mla_decode::LatentShape;

/// Converts values `[slots, latent + rope]` to the words that the device stores.
#[must_use]
pub fn latent_words(shape: &LatentShape, latents: &[f32]) -> Vec<u32> {
    if matches!(shape.dtype, KvDtype::F16 | KvDtype::F32) {
        return words(shape.dtype, latents);
    }
    if shape.plain > 0 {
        return v4_words(shape, latents);
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

/// Encodes each latent as fp8 codes, then bf16 elements, then the exponents of the scales.
fn v4_words(shape: &LatentShape, latents: &[f32]) -> Vec<u32> {
    let mut bytes = Vec::new();
    for token in latents.chunks_exact(shape.latent as usize) {
        let (coded, plain) = token.split_at((shape.latent - shape.plain) as usize);
        let mut exponents = [0; 8];
        for (part, exponent) in coded.chunks(SCALED).zip(&mut exponents) {
            let (codes, scale) = fp8::quantise(part, ScaleFormat::Ue8m0);
            bytes.extend(codes);
            // A power of two.
            *exponent = u8::try_from(scale.to_bits() >> 23).expect("scales are positive");
        }
        bytes.extend(plain.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
        bytes.extend(exponents);
    }
    bytemuck::pod_collect_to_vec(&bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "a code from -127 to 127; NaN is 0")]
fn encode(dtype: KvDtype, x: f32) -> u8 {
    if dtype == KvDtype::Fp8 { fp8::encode(x) } else { (x.round_ties_even() as i8).cast_unsigned() }
}
