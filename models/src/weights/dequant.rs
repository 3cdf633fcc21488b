//! Reference dequantisation of every [`Dtype`] to f32: the oracle of the GPU kernels.
//!
//! Same arithmetic, in the same order, as `dequantize_row_*` of ggml, so results are equal bit for bit where the
//! compiler does not fuse multiply and add.

use half::{bf16, f16};

use super::Dtype;

/// Values of the e2m1 codes, doubled so that they are integers; the scale is halved instead. As in ggml, code 8 is
/// a positive zero.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

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
        Dtype::Q8_0 => q8_0,
        Dtype::Q4_K => q4_k,
        Dtype::Q5_K => q5_k,
        Dtype::Q6_K => q6_k,
        Dtype::MXFP4 => mxfp4,
    };
    let blocks = data.chunks_exact(dtype.block_bytes());
    for (bytes, values) in blocks.zip(out.chunks_exact_mut(dtype.block_elems())) {
        block(bytes, values);
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Half of the e8m0 scale `2^(e - 127)`; exact down to the subnormals.
fn half_e8m0(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
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

fn mxfp4(block: &[u8], out: &mut [f32]) {
    let d = half_e8m0(block[0]);
    split_halves(&block[1..], out, |q| E2M1_DOUBLED[usize::from(q)] * d);
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (byte, value) in block[2..].iter().zip(out) {
        *value = f32::from(byte.cast_signed()) * d;
    }
}

/// The `j`th of 8 six-bit (scale, minimum) pairs packed in 12 bytes: four whole pairs, then four split ones.
pub(crate) fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let low = packed[j + 4];
    ((low & 0xF) | ((packed[j - 4] >> 6) << 4), (low >> 4) | ((packed[j] >> 6) << 4))
}

/// `Q4_K` and `Q5_K`: 4 runs of 64 elements, low nibbles first; `fifth(run_half, lane)` is the extra bit.
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
