//! Reference dequantisation of every [`Dtype`] to f32: the oracle of the GPU kernels.
//!
//! Same arithmetic, in the same order, as `dequantize_row_*` of ggml, so results are equal bit for bit where the
//! compiler does not fuse multiply and add.

mod codebooks;
mod small;

use std::sync::LazyLock;

use half::{bf16, f16};
use kvblock::e4m3;

use super::Dtype;

/// Values of the e2m1 codes, doubled so that they are integers; the scale is halved instead. As in ggml, code 8 is
/// a positive zero.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Values of the codes of `IQ4_NL` and `IQ4_XS`.
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Dequantises `data` into `out`.
///
/// # Panics
/// If `data` does not hold exactly `out.len()` elements of `dtype`.
pub fn dequantize(dtype: Dtype, data: &[u8], out: &mut [f32]) {
    assert_eq!(
        dtype.bytes_for(out.len()),
        Some(data.len()),
        "{} elements of {dtype} do not take {} bytes",
        out.len(),
        data.len()
    );
    let block: fn(&[u8], &mut [f32]) = match dtype {
        Dtype::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Dtype::F16 => |b, y| y[0] = f16_at(b, 0),
        Dtype::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Dtype::Q4_0 => q4_0,
        Dtype::Q4_1 => q4_1,
        Dtype::Q5_0 => q5_0,
        Dtype::Q5_1 => q5_1,
        Dtype::Q8_0 => q8_0,
        Dtype::Q2_K => q2_k,
        Dtype::Q3_K => q3_k,
        Dtype::Q4_K => q4_k,
        Dtype::Q5_K => q5_k,
        Dtype::Q6_K => q6_k,
        Dtype::IQ4_NL => iq4_nl,
        Dtype::IQ4_XS => iq4_xs,
        Dtype::MXFP4 => mxfp4,
        Dtype::F8_E4M3 => f8_e4m3,
        Dtype::IQ1_S => small::iq1_s,
        Dtype::IQ1_M => small::iq1_m,
        Dtype::IQ2_XXS => small::iq2_xxs,
        Dtype::IQ2_XS => small::iq2_xs,
        Dtype::IQ2_S => small::iq2_s,
        Dtype::IQ3_XXS => small::iq3_xxs,
        Dtype::IQ3_S => small::iq3_s,
        Dtype::TQ1_0 => small::tq1_0,
        Dtype::TQ2_0 => small::tq2_0,
        Dtype::Q8_K => small::q8_k,
    };
    let blocks = data.chunks_exact(dtype.block_bytes());
    for (bytes, values) in blocks.zip(out.chunks_exact_mut(dtype.block_elems())) {
        block(bytes, values);
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Half of the e8m0 scale `2^(e - 127)`; exact even for subnormals.
fn half_e8m0(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

/// The e8m0 scale `2^(e - 127)`; the last code is NaN.
pub(super) fn e8m0(e: u8) -> f32 {
    if e == u8::MAX { f32::NAN } else { 2.0 * half_e8m0(e) }
}

/// Calls `value(element, nibble)` for 32 elements: low nibbles are the first half, high nibbles the second.
fn split_halves(nibbles: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(nibbles.len());
    for ((byte, low), high) in nibbles.iter().zip(low).zip(high) {
        *low = value(byte & 0xF);
        *high = value(byte >> 4);
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    split_halves(&block[2..], out, |q| (f32::from(q) - 8.0) * d);
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    split_halves(&block[4..], out, |q| f32::from(q) * d + m);
}

/// Returns the 32 codes of a block of `Q5_0` or `Q5_1`, from its fifth bits and its nibbles.
#[must_use]
pub fn five_bits(bytes: &[u8]) -> [u8; 32] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let nibble = |i: usize| bytes[4 + i % 16] >> (4 * (i / 16)) & 0xF;
    std::array::from_fn(|i| nibble(i) + 16 * u8::from(fifth >> i & 1 == 1))
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (q, value) in five_bits(&block[2..]).into_iter().zip(out) {
        *value = (f32::from(q) - 16.0) * d;
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (q, value) in five_bits(&block[4..]).into_iter().zip(out) {
        *value = f32::from(q) * d + m;
    }
}

fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    split_halves(&block[2..], out, |q| f32::from(IQ4[usize::from(q)]) * d);
}

/// The `j`th of the 8 signed scales of a block of `IQ4_XS`.
#[must_use]
pub fn iq4_scale(block: &[u8], j: usize) -> i8 {
    let low = block[4 + j / 2] >> (4 * (j % 2)) & 0xF;
    let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * j) & 3;
    (low | u8::try_from(high).expect("two bits") << 4).cast_signed() - 32
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (j, (nibbles, out)) in block[8..].chunks_exact(16).zip(out.chunks_exact_mut(32)).enumerate() {
        let d = d * f32::from(iq4_scale(block, j));
        split_halves(nibbles, out, |q| f32::from(IQ4[usize::from(q)]) * d);
    }
}

fn mxfp4(block: &[u8], out: &mut [f32]) {
    let d = half_e8m0(block[0]);
    split_halves(&block[1..], out, |q| E2M1_DOUBLED[usize::from(q)] * d);
}

/// Values of the fp8 codes; two are NaN.
pub(crate) static E4M3: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|code| e4m3::decode(u8::try_from(code).expect("256 codes"))));

fn f8_e4m3(block: &[u8], out: &mut [f32]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (code, value) in block[4..].iter().zip(out) {
        *value = E4M3[usize::from(*code)] * d;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (byte, value) in block[2..].iter().zip(out) {
        *value = f32::from(byte.cast_signed()) * d;
    }
}

/// The `j`th of 8 six-bit (scale, minimum) pairs packed in 12 bytes: four whole pairs, then four split ones.
#[must_use]
pub fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let low = packed[j + 4];
    ((low & 0xF) | ((packed[j - 4] >> 6) << 4), (low >> 4) | ((packed[j] >> 6) << 4))
}

/// Dequantises `Q4_K` and `Q5_K`: 4 runs of 64 elements, low nibbles first; `fifth(run_half, lane)` is the extra bit.
fn k_nibbles(head: &[u8], nibbles: &[u8], out: &mut [f32], fifth: impl Fn(usize, usize) -> u8) {
    let (d, dmin) = (f16_at(head, 0), f16_at(head, 2));
    for (run, (bytes, values)) in nibbles.chunks_exact(32).zip(out.chunks_exact_mut(64)).enumerate() {
        for upper in 0..2 {
            let sub = 2 * run + upper;
            let (scale, min) = scale_min(&head[4..16], sub);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            for lane in 0..32 {
                let q = ((bytes[lane] >> (4 * upper)) & 0xF) + 16 * fifth(sub, lane);
                values[32 * upper + lane] = d * f32::from(q) - m;
            }
        }
    }
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    k_nibbles(&block[..16], &block[16..], out, |_, _| 0);
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let high = &block[16..48];
    k_nibbles(&block[..16], &block[48..], out, |sub, lane| (high[lane] >> sub) & 1);
}

/// Low two bits of element `i` of a block of `Q2_K` or `Q3_K`: each half of the block has four runs of 32 in 32 bytes.
#[must_use]
pub fn bit_pair(pairs: &[u8], i: usize) -> u8 {
    pairs[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, value) in out.iter_mut().enumerate() {
        let scales = block[i / 16];
        let q = bit_pair(&block[16..80], i);
        *value = d * f32::from(scales & 0xF) * f32::from(q) - dmin * f32::from(scales >> 4);
    }
}

/// The `j`th of the 16 signed scales of a block of `Q3_K`.
#[must_use]
pub fn q3_scale(packed: &[u8], j: usize) -> i8 {
    let low = packed[j % 8] >> (4 * (j / 8)) & 0xF;
    let high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
    (low | high << 4).cast_signed() - 32
}

/// Returns the code of element `i` of a block of `Q3_K`, from 0 to 7; code 4 stands for zero.
#[must_use]
pub fn q3_code(block: &[u8], i: usize) -> u8 {
    bit_pair(&block[32..96], i) | (block[i % 32] >> (i / 32) & 1) << 2
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 108);
    for (i, value) in out.iter_mut().enumerate() {
        let q = f32::from(q3_code(block, i)) - 4.0;
        *value = d * f32::from(q3_scale(&block[96..108], i / 16)) * q;
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        // Each half of the block holds four runs of 32: runs 0, 1 use low nibbles, runs 2, 3 the high ones.
        let (half, run, lane) = (i / 128, i % 128 / 32, i % 32);
        let nibble = (low[64 * half + 32 * (run % 2) + lane] >> (4 * (run / 2))) & 0xF;
        let pair = (high[32 * half + lane] >> (2 * run)) & 3;
        let q = i16::from(nibble | (pair << 4)) - 32;
        *value = d * f32::from(scales[i / 16].cast_signed()) * f32::from(q);
    }
}
