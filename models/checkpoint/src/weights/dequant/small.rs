//! Types below four bits: codebook points with signs (IQ1 to IQ3), and ternary digits (TQ).

use super::codebooks;
use super::f16_at;

/// Coordinates of the codebooks of IQ2 and of IQ3_XXS.
const IQ2: [f32; 3] = [8.0, 25.0, 43.0];
const IQ3: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

/// Shift of all coordinates of IQ1, up or down.
const DELTA: f32 = 0.125;

/// Powers of three modulo 256. A byte times one of these powers, modulo 256, has one of the byte's ternary digits at
/// its top.
const THREES: [u8; 5] = [1, 3, 9, 27, 81];

/// Returns eight signs, each a bit that is 1 for a negative sign. The first seven are the bits of `index`, and the
/// eighth makes the number of negative signs even.
fn signs(index: u32) -> u8 {
    let index = u8::try_from(index & 127).expect("seven bits");
    index | u8::from(index.count_ones() % 2 == 1) << 7
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Writes `scale * point * sign` for a point of eight coordinates, each coded in two bits.
fn eight(point: u16, signs: u8, scale: f32, out: &mut [f32]) {
    for (i, value) in out[..8].iter_mut().enumerate() {
        let magnitude = scale * IQ2[usize::from(point >> (2 * i) & 3)];
        *value = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
    }
}

/// Writes `scale * point * sign` for a point of four coordinates, each coded in three bits.
fn four(point: u16, coordinate: impl Fn(usize) -> f32, signs: u8, scale: f32, out: &mut [f32]) {
    for (i, value) in out[..4].iter_mut().enumerate() {
        let magnitude = scale * coordinate(usize::from(point >> (3 * i) & 7));
        *value = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
    }
}

pub(super) fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let at = 2 + 8 * sub;
        let more = u32_at(block, at + 4);
        let scale = d * (0.5 + (more >> 28) as f32) * 0.25;
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let point = codebooks::IQ2_XXS[usize::from(block[at + i])];
            eight(point, signs(more >> (7 * i)), scale, out);
        }
    }
}

pub(super) fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let code = u16_at(block, 2 + 2 * i);
        let scale = block[66 + i / 4] >> (4 * (i / 2 % 2)) & 15;
        let scale = d * (0.5 + f32::from(scale)) * 0.25;
        eight(codebooks::IQ2_XS[usize::from(code & 511)], signs((code >> 9).into()), scale, out);
    }
}

pub(super) fn iq2_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
        let scale = block[74 + i / 4] >> (4 * (i / 2 % 2)) & 15;
        let scale = d * (0.5 + f32::from(scale)) * 0.25;
        eight(codebooks::IQ2_S[usize::from(block[2 + i]) | high << 8], block[34 + i], scale, out);
    }
}

pub(super) fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let more = u32_at(block, 66 + 4 * sub);
        let scale = d * (0.5 + (more >> 28) as f32) * 0.5;
        for (i, out) in out.chunks_exact_mut(4).enumerate() {
            let point = codebooks::IQ3_XXS[usize::from(block[2 + 8 * sub + i])];
            let signs = signs(more >> (7 * (i / 2))) >> (4 * (i % 2));
            four(point, |code| IQ3[code], signs, scale, out);
        }
    }
}

pub(super) fn iq3_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, out) in out.chunks_exact_mut(4).enumerate() {
        let high = usize::from(block[66 + i / 8] >> (i % 8) & 1);
        let scale = block[106 + i / 16] >> (4 * (i / 8 % 2)) & 15;
        let point = codebooks::IQ3_S[usize::from(block[2 + i]) | high << 8];
        let signs = block[74 + i / 2] >> (4 * (i % 2));
        four(point, |code| (2 * code + 1) as f32, signs, d * f32::from(1 + 2 * scale), out);
    }
}

/// Writes `scale * (point + delta)` for a point of eight ternary coordinates.
fn ternary(point: u16, delta: f32, scale: f32, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * (f32::from(point >> (2 * i) & 3) - 1.0 + delta);
    }
}

pub(super) fn iq1_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let more = u16_at(block, 34 + 2 * sub);
        let scale = d * f32::from(2 * (more >> 12 & 7) + 1);
        let delta = if more >> 15 == 1 { -DELTA } else { DELTA };
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let high = usize::from(more >> (3 * i) & 7);
            ternary(codebooks::IQ1[usize::from(block[2 + 4 * sub + i]) | high << 8], delta, scale, out);
        }
    }
}

pub(super) fn iq1_m(block: &[u8], out: &mut [f32]) {
    let scales: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
    // The scale of all lies in the top four bits of each of these.
    let d = (0..4).fold(0, |bits, i| bits | (scales[i] >> 12) << (4 * i));
    let d = half::f16::from_bits(d).to_f32();
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let more = block[32 + i / 2] >> (4 * (i % 2)) & 15;
        let scale = scales[i / 8] >> (3 * (i / 2 % 4)) & 7;
        let delta = if more & 8 == 8 { -DELTA } else { DELTA };
        let point = codebooks::IQ1[usize::from(block[i]) | usize::from(more & 7) << 8];
        ternary(point, delta, d * f32::from(2 * scale + 1), out);
    }
}

/// Returns a ternary digit of a byte, from -1 to 1. The byte divided by 256 is a fraction in base three, and `place`
/// is the index of the digit.
fn digit(byte: u8, place: usize) -> f32 {
    let rest = u16::from(byte.wrapping_mul(THREES[place]));
    f32::from((rest * 3) >> 8) - 1.0
}

pub(super) fn tq1_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 52);
    for (i, value) in out.iter_mut().enumerate() {
        // 32 bytes of five digits each, 16 of five and 4 of four; the digits of one place are neighbours.
        let (byte, place) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + (i - 160) % 16, (i - 160) / 16),
            _ => (48 + (i - 240) % 4, (i - 240) / 4),
        };
        *value = d * digit(block[byte], place);
    }
}

pub(super) fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 64);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * (f32::from(super::bit_pair(&block[..64], i)) - 1.0);
    }
}

pub(super) fn q8_k(block: &[u8], out: &mut [f32]) {
    let d = f32::from_bits(u32_at(block, 0));
    for (byte, value) in block[4..260].iter().zip(out) {
        *value = d * f32::from(byte.cast_signed());
    }
}
