//! Quantisation in blocks of 256 numbers, divided into runs with scales of few bits.

use super::code::{code, inverse, put};

/// Number of elements of a block.
const BLOCK: usize = 256;

/// Number of scales that are tried for a run on either side of the scale that follows from its range. Smaller scales
/// clip the outermost numbers, larger ones leave space beyond them.
const TRIED: i8 = 6;

/// Distance between the scales that are tried for a run, in codes.
const DISTANCE: f32 = 0.15;

/// Scale and minimum of a run, whose numbers are `scale * code - minimum`.
#[derive(Clone, Copy, Default)]
struct Affine {
    scale: f32,
    minimum: f32,
}

pub(super) fn q4_k(x: &[f32], out: &mut [u8]) {
    let (head, nibbles) = out.split_at_mut(16);
    let codes = by_32(x, 15, head);
    put_runs(nibbles, &codes);
}

pub(super) fn q5_k(x: &[f32], out: &mut [u8]) {
    let (head, codes_out) = out.split_at_mut(16);
    let codes = by_32(x, 31, head);
    let (fifth, nibbles) = codes_out.split_at_mut(32);
    for (lane, byte) in fifth.iter_mut().enumerate() {
        *byte = (0..8).fold(0, |bits, run| bits | (codes[32 * run + lane] >> 4 & 1) << run);
    }
    put_runs(nibbles, &codes);
}

/// Writes the low four bits of each code, two codes per byte: of every 64 codes, the first 32 are in the low halves.
fn put_runs(out: &mut [u8], codes: &[u8; BLOCK]) {
    for (i, byte) in out.iter_mut().enumerate() {
        let low = 64 * (i / 32) + i % 32;
        *byte = codes[low] & 0xF | (codes[low + 32] & 0xF) << 4;
    }
}

/// Writes scales and minima of 8 runs of 32 to `head`, and returns the codes from 0 to `max`.
fn by_32(x: &[f32], max: u8, head: &mut [u8]) -> [u8; BLOCK] {
    let mut runs = [Affine::default(); 8];
    for (run, x) in runs.iter_mut().zip(x.chunks_exact(32)) {
        *run = fit(x, max);
    }
    let largest = |of: fn(&Affine) -> f32| runs.iter().map(of).fold(0.0, f32::max);
    let steps = [largest(|run| run.scale) / 63.0, largest(|run| run.minimum) / 63.0];
    put(head, steps[0]);
    put(&mut head[2..], steps[1]);
    // What is read back is rounded to f16.
    let [scale, minimum] = steps.map(|step| half::f16::from_f32(step).to_f32());
    let six = |value: f32, step: f32| code(value * inverse(step) + 0.5, 63);
    let pairs = runs.map(|run| [six(run.scale, steps[0]), six(run.minimum, steps[1])]);
    put_pairs(&mut head[4..], &pairs);
    std::array::from_fn(|i| {
        let [s, m] = pairs[i / 32].map(f32::from);
        code((x[i] + minimum * m) * inverse(scale * s) + 0.5, max)
    })
}

/// Writes eight pairs of six-bit numbers into 12 bytes. The first four pairs take eight bytes, whose top bits hold
/// the top bits of the other four pairs.
fn put_pairs(out: &mut [u8], pairs: &[[u8; 2]; 8]) {
    for j in 0..4 {
        let ([scale, minimum], [next_scale, next_minimum]) = (pairs[j], pairs[j + 4]);
        out[j] = scale | next_scale >> 4 << 6;
        out[j + 4] = minimum | next_minimum >> 4 << 6;
        out[j + 8] = next_scale & 0xF | (next_minimum & 0xF) << 4;
    }
}

/// Returns the scale and minimum of a run with the smallest weighted error. Numbers far from zero weigh more.
fn fit(x: &[f32], max: u8) -> Affine {
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(0.0, f32::max);
    if high <= low {
        return Affine::default();
    }
    let rms = (x.iter().map(|x| x * x).sum::<f32>() / 32.0).sqrt();
    let weight = |x: f32| rms + x.abs();
    let mut best = (Affine { scale: (high - low) / f32::from(max), minimum: -low }, f32::INFINITY);
    for tried in -TRIED..=TRIED {
        let inverse = (f32::from(max) + DISTANCE * f32::from(tried)) / (high - low);
        let codes: [f32; 32] = std::array::from_fn(|i| f32::from(code((x[i] - low) * inverse + 0.5, max)));
        let affine = least_squares(x, &codes, weight);
        let error = |(x, code): (&f32, &f32)| {
            let off = affine.scale * code - affine.minimum - x;
            weight(*x) * off * off
        };
        let error = x.iter().zip(&codes).map(error).sum();
        if error < best.1 {
            best = (affine, error);
        }
    }
    best.0
}

/// Returns the scale and the minimum, which is not negative, for which `codes` come closest to `x`.
fn least_squares(x: &[f32], codes: &[f32; 32], weight: impl Fn(f32) -> f32) -> Affine {
    let (mut w, mut wc, mut wcc, mut wx, mut wcx) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, code) in x.iter().zip(codes) {
        let weight = weight(*x);
        w += weight;
        wc += weight * code;
        wcc += weight * code * code;
        wx += weight * x;
        wcx += weight * code * x;
    }
    let determinant = w * wcc - wc * wc;
    let minimum = if determinant > 0.0 { (wc * wcx - wcc * wx) / determinant } else { 0.0 };
    if minimum > 0.0 {
        return Affine { scale: ((w * wcx - wc * wx) / determinant).max(0.0), minimum };
    }
    Affine { scale: (wcx * inverse(wcc)).max(0.0), minimum: 0.0 }
}

pub(super) fn q6_k(x: &[f32], out: &mut [u8]) {
    let mut runs = [0.0; 16];
    for (run, x) in runs.iter_mut().zip(x.chunks_exact(16)) {
        *run = fit_signed(x);
    }
    let largest = runs.iter().fold(0.0_f32, |max, run| if run.abs() > max.abs() { *run } else { max });
    let step = largest / -128.0;
    put(&mut out[208..], step);
    let read = half::f16::from_f32(step).to_f32();
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the range")]
    let scales = runs.map(|run| (run * inverse(step)).round().clamp(-128.0, 127.0) as i8);
    for (byte, scale) in out[192..208].iter_mut().zip(scales) {
        *byte = scale.cast_unsigned();
    }
    let place = |i: usize| (x[i] * inverse(read * f32::from(scales[i / 16]))).round() + 32.0;
    let codes: [u8; BLOCK] = std::array::from_fn(|i| code(place(i), 63));
    // Each half has four runs of 32: low nibbles of runs 0 and 1 beside those of 2 and 3, and bit pairs of all four.
    for half in 0..2 {
        for lane in 0..32 {
            let run = |run: usize| codes[128 * half + 32 * run + lane];
            out[64 * half + lane] = run(0) & 0xF | (run(2) & 0xF) << 4;
            out[64 * half + 32 + lane] = run(1) & 0xF | (run(3) & 0xF) << 4;
            out[128 + 32 * half + lane] = (0..4).fold(0, |pairs, r| pairs | run(r) >> 4 << (2 * r));
        }
    }
}

/// Returns the scale with the smallest error of 16 numbers as codes from -32 to 31. Each error is weighted by the
/// square of its number.
fn fit_signed(x: &[f32]) -> f32 {
    let farthest = x.iter().fold(0.0_f32, |max, x| if x.abs() > max.abs() { *x } else { max });
    if farthest == 0.0 {
        return 0.0;
    }
    // For codes q the best scale is wqx / wqq, and it takes wqx^2 / wqq from the error.
    let mut best = (farthest / -32.0, 0.0);
    for tried in -TRIED..=TRIED {
        let inverse = -(32.0 + DISTANCE * f32::from(tried)) / farthest;
        let (mut wqx, mut wqq) = (0.0, 0.0);
        for x in x {
            let q = (inverse * x).round().clamp(-32.0, 31.0);
            wqx += x * x * q * x;
            wqq += x * x * q * q;
        }
        if wqq > 0.0 && wqx * wqx > best.1 * wqq {
            best = (wqx / wqq, wqx * wqx / wqq);
        }
    }
    best.0
}
