//! Caches of latents as the device stores them.

use half::bf16;
use sparse_select::dsa::fp8::{self, ScaleFormat};

use super::layer::{values, words};
use crate::cpu::latent_write::{SCALED, part_scale};
use crate::kernel::KvDtype;
use crate::kernel::mla_decode::LatentShape;

/// Values `[slots, latent + rope]` as words.
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

/// The inverse.
#[must_use]
pub fn latent_values(shape: &LatentShape, words: &[u32]) -> Vec<f32> {
    if matches!(shape.dtype, KvDtype::F16 | KvDtype::F32) {
        return values(shape.dtype, words);
    }
    let bytes: &[u8] = bytemuck::cast_slice(words);
    if shape.plain > 0 {
        return bytes.chunks_exact(shape.token_bytes()).flat_map(|token| v4_token(shape, token)).collect();
    }
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

/// Slots of codes, elements in bf16, and the exponents of scales.
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

fn v4_token(shape: &LatentShape, token: &[u8]) -> Vec<f32> {
    let coded = (shape.latent - shape.plain) as usize;
    let (codes, rest) = token.split_at(coded);
    let (plain, exponents) = rest.split_at(2 * shape.plain as usize);
    let code =
        |(i, code): (usize, &u8)| fp8::decode(*code) * f32::from_bits(u32::from(exponents[i / SCALED]) << 23);
    let plain = plain.chunks_exact(2).map(|two| bf16::from_le_bytes([two[0], two[1]]).to_f32());
    codes.iter().enumerate().map(code).chain(plain).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "a code from -127 to 127; NaN is 0")]
fn encode(dtype: KvDtype, x: f32) -> u8 {
    if dtype == KvDtype::Fp8 { fp8::encode(x) } else { (x.round_ties_even() as i8).cast_unsigned() }
}

fn decode(dtype: KvDtype, code: u8) -> f32 {
    if dtype == KvDtype::Fp8 { fp8::decode(code) } else { f32::from(code.cast_signed()) }
}
