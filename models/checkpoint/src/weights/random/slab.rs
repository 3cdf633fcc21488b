//! Random numbers of one type, from which tensors are cut.

use std::borrow::Cow;

use half::{bf16, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use crate::Dtype;

/// Maximum number of bytes of a slab: enough for the rows of a large vocabulary to differ, and made in a few hundredths of a
/// second.
const BYTES: usize = 32 << 20;

/// Random blocks of one type. Tensors longer than the slab repeat it. As the number of blocks is prime, their rows
/// begin at different positions.
#[derive(Debug)]
pub(super) struct Slab {
    dtype: Dtype,
    data: Vec<u8>,
}

impl Slab {
    /// Creates a slab of numbers with mean 0 and standard deviation `deviation`. It has at least `elems` elements, unless
    /// they would take more than `BYTES`.
    pub(super) fn new(dtype: Dtype, elems: usize, deviation: f32, seed: u64) -> Self {
        let bytes = dtype.block_bytes();
        let blocks = next_prime(elems.div_ceil(dtype.block_elems()).min(BYTES / bytes));
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ dtype as u64);
        let mut data = vec![0; blocks * bytes];
        random.fill_bytes(&mut data);
        data.chunks_exact_mut(bytes).for_each(|block| shape(dtype, deviation, block));
        Self { dtype, data }
    }

    /// Returns `elems` elements from a position that `place` determines: borrowed if they fit into the slab, with
    /// repetitions otherwise. O(bytes).
    pub(super) fn cut(&self, elems: usize, place: u64) -> Cow<'_, [u8]> {
        let bytes = self.dtype.bytes_for(elems).expect("tensors are of whole blocks");
        let blocks = self.data.len() / self.dtype.block_bytes();
        let spare = self.data.len().saturating_sub(bytes) / self.dtype.block_bytes();
        let places = if spare == 0 { blocks } else { spare + 1 } as u64;
        let start = usize::try_from(place % places).expect("less than a length") * self.dtype.block_bytes();
        if start + bytes <= self.data.len() {
            return Cow::Borrowed(&self.data[start..start + bytes]);
        }
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&self.data[start..]);
        while out.len() < bytes {
            out.extend_from_slice(&self.data[..self.data.len().min(bytes - out.len())]);
        }
        Cow::Owned(out)
    }
}

/// Turns a block of random bytes into numbers of standard deviation `deviation`. Codes stay, and scales are set. The
/// constants are standard deviations of codes.
fn shape(dtype: Dtype, deviation: f32, b: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            let sum: i16 = b.iter().map(|b| i16::from(*b)).sum();
            b.copy_from_slice(&(f32::from(sum - 510) * (deviation / BYTE / 2.0)).to_le_bytes());
        }
        Dtype::F16 => put(b, difference(b) * (deviation / BYTE)),
        Dtype::BF16 => {
            let value = bf16::from_f32(difference(b) * (deviation / BYTE));
            b.copy_from_slice(&value.to_le_bytes());
        }
        Dtype::Q4_0 => signed_scale(&mut b[..2], deviation / 4.61),
        Dtype::Q4_1 => {
            let step = deviation / 4.61;
            put(&mut b[..2], step);
            put(&mut b[2..4], -7.5 * step);
        }
        Dtype::Q5_0 => signed_scale(&mut b[..2], deviation / 9.23),
        Dtype::Q5_1 => {
            let step = deviation / 9.23;
            put(&mut b[..2], step);
            put(&mut b[2..4], -15.5 * step);
        }
        Dtype::Q2_K => {
            b[..16].iter_mut().for_each(|scales| *scales = (4 + *scales % 4) * 17);
            let d = deviation / 1.118 / SUB_SCALE;
            put(&mut b[80..82], d);
            put(&mut b[82..], 1.5 * d);
        }
        Dtype::Q3_K => {
            // Scales are 32 less.
            b[96..104].iter_mut().for_each(|scales| *scales = *scales & 0x33 | 0x44);
            b[104..108].fill(0xaa);
            signed_scale(&mut b[108..], deviation / 2.345 / SUB_SCALE);
        }
        Dtype::Q8_0 => signed_scale(&mut b[..2], deviation / BYTE),
        Dtype::Q4_K => sub_scales(b, deviation / 4.61, 7.5),
        Dtype::Q5_K => sub_scales(b, deviation / 9.23, 15.5),
        Dtype::Q6_K => {
            b[192..208].iter_mut().for_each(|scale| *scale = 4 + *scale % 4);
            signed_scale(&mut b[208..], deviation / 18.47 / SUB_SCALE);
        }
        Dtype::IQ4_NL => signed_scale(&mut b[..2], deviation / 67.44),
        Dtype::IQ4_XS => {
            // As in `Q3_K`.
            b[2..4].fill(0xaa);
            b[4..8].iter_mut().for_each(|scales| *scales = *scales & 0x33 | 0x44);
            signed_scale(&mut b[..2], deviation / 67.44 / SUB_SCALE);
        }
        Dtype::MXFP4 => {
            // The power of two that is nearest.
            let exponent = 127.0 + (deviation / 2.926).log2().round();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            let exponent = exponent.clamp(1.0, 254.0) as u8;
            b[0] = exponent;
        }
        Dtype::F8_E4M3 => {
            // Magnitudes from 8 to 15.
            b[4..].iter_mut().for_each(|code| *code = *code & 0x87 | 0x50);
            b[..4].copy_from_slice(&(deviation / 11.73).to_le_bytes());
        }
        other => unreachable!("random weights are never {other}"),
    }
}

/// Standard deviation of a byte.
const BYTE: f32 = 73.9;

fn put(bytes: &mut [u8], value: f32) {
    bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Returns the difference of two bytes, scaled to the standard deviation of one byte.
fn difference(b: &[u8]) -> f32 {
    f32::from(i16::from(b[0]) - i16::from(b[1])) * std::f32::consts::FRAC_1_SQRT_2
}

/// Writes a scale with a random sign. The mean of codes is half a step off zero; random signs make the mean of the
/// numbers 0. Otherwise, the mean would add up over the width of a matrix, and from layer to layer.
fn signed_scale(bytes: &mut [u8], scale: f32) {
    let sign = if bytes[0] < 128 { 1.0 } else { -1.0 };
    put(bytes, sign * scale);
}

/// Root mean square of sub-scales, which are from 4 to 7. With such small sub-scales, the scale of the whole block
/// stays out of the range that some devices flush to zero.
const SUB_SCALE: f32 = 5.61;

/// Writes the head of a block of `Q4_K` or `Q5_K` whose numbers are `step * (code - centre)` on average: the minimum
/// of each run is `centre` times its scale.
fn sub_scales(b: &mut [u8], step: f32, centre: f32) {
    let d = step / SUB_SCALE;
    put(&mut b[..2], d);
    put(&mut b[2..4], centre * d);
    for j in 0..4 {
        let [first, second] = [4 + b[4 + j] % 4, 4 + b[8 + j] % 4];
        // Six bits each; the upper two of the second, which are stored apart, are zero.
        (b[4 + j], b[8 + j], b[12 + j]) = (first, first, second | second << 4);
    }
}

/// The first prime from `n` on.
fn next_prime(n: usize) -> usize {
    let is_prime = |n: usize| (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    (n.max(2)..).find(|n| is_prime(*n)).expect("there is always another prime")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantize;

    fn values(dtype: Dtype, slab: &Slab) -> Vec<f32> {
        let mut out = vec![0.0; slab.data.len() / dtype.block_bytes() * dtype.block_elems()];
        dequantize(dtype, &slab.data, &mut out);
        out
    }

    /// The deviation of 60,000 numbers is known to 1 %; MXFP4 has powers of two alone.
    #[test]
    fn numbers_of_every_type_have_the_mean_and_the_deviation() {
        for dtype in Dtype::ALL {
            let deviation = 1.0 / 64.0;
            let slab = Slab::new(dtype, 60_000, deviation, 1);
            let values = values(dtype, &slab);
            assert!(values.iter().all(|v| v.is_finite()), "{dtype}");
            let count = values.len() as f32;
            let mean = values.iter().sum::<f32>() / count / deviation;
            let square = (values.iter().map(|v| v * v).sum::<f32>() / count).sqrt() / deviation;
            let of_square = if dtype == Dtype::MXFP4 { 0.4 } else { 0.03 };
            assert!(mean.abs() < 0.02, "{dtype}: mean {mean}");
            assert!((square - 1.0).abs() < of_square, "{dtype}: deviation {square}");
        }
    }

    #[test]
    fn a_seed_gives_one_slab() {
        let slab = |seed| Slab::new(Dtype::Q4_K, 4096, 0.02, seed).data;
        assert_eq!(slab(1), slab(1));
        assert_ne!(slab(1), slab(2));
    }

    /// A slab of 17 blocks of one element: tensors shorter than it lie in it, longer ones go round it.
    #[test]
    fn tensors_are_cut_anywhere_and_go_round() {
        let slab = Slab::new(Dtype::F32, 15, 1.0, 1);
        assert_eq!(slab.data.len(), 17 * 4);
        for place in 0..40_u32 {
            let short = slab.cut(11, place.into());
            assert!(matches!(short, Cow::Borrowed(_)));
            let start = place as usize % 7 * 4;
            assert_eq!(short[..], slab.data[start..start + 44]);
            let long = slab.cut(50, place.into());
            let from = place as usize % 17;
            let round: Vec<u8> = slab.data.iter().copied().cycle().skip(from * 4).take(200).collect();
            assert_eq!(long[..], round);
        }
    }

    #[test]
    fn primes() {
        assert_eq!([0, 2, 4, 14, 17, 7907].map(next_prime), [2, 2, 5, 17, 17, 7907]);
    }
}
