//! Quantisation of numbers to ggml's types, the reverse of [`dequantize`](crate::dequantize).

mod code;
mod k;

use code::{code, inverse, put};

use super::Dtype;

impl Dtype {
    /// Types that [`quantize`] makes and that checkpoints can be quantised to at load, from the largest to the smallest.
    pub const TARGETS: [Self; 8] =
        [Self::Q8_0, Self::Q6_K, Self::Q5_1, Self::Q5_0, Self::Q5_K, Self::Q4_1, Self::Q4_0, Self::Q4_K];
}

/// Returns `values` in whole blocks of `dtype`: `block_elems` numbers become `block_bytes` bytes.
///
/// `Q8_0`, `Q5_1`, `Q5_0`, `Q4_1` and `Q4_0` are those of ggml's reference, bit for bit as the Python package `gguf` has it.
/// The K types have no single result: here each run of 16 or 32 numbers tries several scales, fits scale and minimum to the codes
/// of each by weighted least squares, and keeps the best. A block with a number that is not finite has a scale that is none
/// either, so that what was wrong stays visible. O(values); about 20 times as long for the K types.
///
/// # Panics
/// If `dtype` is not one of [`Dtype::TARGETS`], or `values` are not whole blocks of it.
#[must_use]
pub fn quantize(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let bytes = dtype.bytes_for(values.len());
    let mut out = vec![0; bytes.unwrap_or_else(|| panic!("{} values are no whole blocks", values.len()))];
    quantize_into(dtype, values, &mut out);
    out
}

/// Quantises `values` to blocks of `dtype`, and writes them to `out`, which has exactly the size of the blocks.
pub(crate) fn quantize_into(dtype: Dtype, values: &[f32], out: &mut [u8]) {
    let block: fn(&[f32], &mut [u8]) = match dtype {
        Dtype::Q8_0 => q8_0,
        Dtype::Q6_K => k::q6_k,
        Dtype::Q5_1 => q5_1,
        Dtype::Q5_0 => q5_0,
        Dtype::Q5_K => k::q5_k,
        Dtype::Q4_1 => q4_1,
        Dtype::Q4_0 => q4_0,
        Dtype::Q4_K => k::q4_k,
        other => panic!("{other} is no type that weights are quantised to"),
    };
    let blocks = out.chunks_exact_mut(dtype.block_bytes());
    for (values, out) in values.chunks_exact(dtype.block_elems()).zip(blocks) {
        block(values, out);
        if values.iter().any(|value| !value.is_finite()) {
            let scale = scale_at(dtype);
            put(&mut out[scale..], f32::NAN);
        }
    }
}

/// Offset of the scale in a block.
fn scale_at(dtype: Dtype) -> usize {
    if dtype == Dtype::Q6_K { 208 } else { 0 }
}

/// Writes codes as nibbles, two per byte: the first half of the elements in the low nibbles, the second half in the
/// high ones.
fn put_nibbles(out: &mut [u8], codes: impl Fn(usize) -> u8) {
    for (i, byte) in out[..16].iter_mut().enumerate() {
        *byte = codes(i) & 0xF | (codes(i + 16) & 0xF) << 4;
    }
}

/// Writes codes of five bits: first the fifth bits of all codes in four bytes, then the low four bits as nibbles.
fn put_five_bits(out: &mut [u8], codes: impl Fn(usize) -> u8) {
    let fifth = (0..32).fold(0_u32, |bits, i| bits | u32::from(codes(i) >> 4 & 1) << i);
    out[..4].copy_from_slice(&fifth.to_le_bytes());
    put_nibbles(&mut out[4..], codes);
}

#[expect(clippy::cast_possible_truncation, reason = "at most 127 in size")]
fn q8_0(x: &[f32], out: &mut [u8]) {
    let scale = x.iter().fold(0.0_f32, |max, x| max.max(x.abs())) / 127.0;
    let inverse = inverse(scale);
    put(out, scale);
    for (x, code) in x.iter().zip(&mut out[2..]) {
        *code = ((x * inverse).round() as i8).cast_unsigned();
    }
}

/// Writes the scale of a block, and returns the codes. The number farthest from zero has the code of `-half`.
/// Multiplication and addition are rounded separately, which decides between two codes for the many f16 numbers
/// halfway between them.
fn one_scale(x: &[f32], half: u8, out: &mut [u8]) -> [u8; 32] {
    let farthest = x.iter().fold(0.0_f32, |max, x| if x.abs() > max.abs() { *x } else { max });
    let scale = farthest / -f32::from(half);
    let inverse = inverse(scale);
    put(out, scale);
    std::array::from_fn(|i| code(x[i] * inverse + (f32::from(half) + 0.5), 2 * half - 1))
}

/// Writes the scale and the minimum of a block, and returns the codes.
fn scale_and_minimum(x: &[f32], max: u8, out: &mut [u8]) -> [u8; 32] {
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (high - low) / f32::from(max);
    let inverse = inverse(scale);
    put(out, scale);
    put(&mut out[2..], low);
    std::array::from_fn(|i| code((x[i] - low) * inverse + 0.5, max))
}

fn q4_0(x: &[f32], out: &mut [u8]) {
    let codes = one_scale(x, 8, out);
    put_nibbles(&mut out[2..], |i| codes[i]);
}

fn q5_0(x: &[f32], out: &mut [u8]) {
    let codes = one_scale(x, 16, out);
    put_five_bits(&mut out[2..], |i| codes[i]);
}

fn q4_1(x: &[f32], out: &mut [u8]) {
    let codes = scale_and_minimum(x, 15, out);
    put_nibbles(&mut out[4..], |i| codes[i]);
}

fn q5_1(x: &[f32], out: &mut [u8]) {
    let codes = scale_and_minimum(x, 31, out);
    put_five_bits(&mut out[4..], |i| codes[i]);
}
