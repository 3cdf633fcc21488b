//! Binary hashes by random projection.

use crate::rng::splitmix64;

/// A matrix `[dim, bits]` for each part of a vector; a hash is the signs of the products, 8 per byte.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
struct Part {
    dim: usize,
    /// `[bits][dim]`
    columns: Vec<Vec<f32>>,
}

impl Projection {
    /// Approximately normal weights from a seed, `bits` columns for each part. `parts` are the numbers of
    /// channels, in order; if empty, there is one part of `dim` channels.
    #[must_use]
    pub fn seeded(dim: usize, parts: &[usize], bits: u32, seed: u64) -> Self {
        let mut state = seed;
        let whole = [dim];
        let parts = if parts.is_empty() { &whole[..] } else { parts };
        let mut part = |&dim: &usize| {
            let mut column = || (0..dim).map(|_| near_normal(&mut state)).collect();
            Part { dim, columns: (0..bits).map(|_| column()).collect() }
        };
        Self { parts: parts.iter().map(&mut part).collect() }
    }

    /// A projection that consists of one part, with trained weights `[dim, bits]`, row-major.
    ///
    /// # Panics
    /// When `weights` do not fill whole rows.
    #[must_use]
    pub fn trained(weights: &[f32], bits: usize) -> Self {
        assert!(weights.len().is_multiple_of(bits), "{} weights for {bits} bits", weights.len());
        let columns =
            (0..bits).map(|bit| weights.iter().skip(bit).step_by(bits).copied().collect()).collect();
        Self { parts: vec![Part { dim: weights.len() / bits, columns }] }
    }

    /// The number of channels of each part and its weights `[channels, bits]`, row-major, as
    /// [`trained`](Self::trained) and kernels take them.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Vec<f32>)> {
        self.parts.iter().map(|part| {
            let row = |d: usize| part.columns.iter().map(move |column| column[d]);
            (part.dim, (0..part.dim).flat_map(row).collect())
        })
    }

    /// Signs of `x · W`: bit i of the hash is bit i % 8 of byte i / 8, and 1 for products above 0. Parts
    /// follow each other, each starting at a new byte.
    #[must_use]
    pub fn hash(&self, x: &[f32]) -> Vec<u8> {
        let mut hash = Vec::new();
        let mut rest = x;
        for part in &self.parts {
            let (own, others) = rest.split_at(part.dim);
            rest = others;
            let byte = |columns: &[Vec<f32>]| {
                let signs = columns.iter().map(|w| crate::heads::dot(own, w) > 0.0);
                signs.enumerate().fold(0u8, |byte, (i, sign)| byte | u8::from(sign) << i)
            };
            hash.extend(part.columns.chunks(8).map(byte));
        }
        hash
    }
}

/// Hamming distance of two hashes, `Σ popcount(a xor b)`.
#[must_use]
pub(super) fn distance(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

/// Sum of twelve uniform values, minus 6: mean 0, variance 1, and bitwise the same on every machine.
fn near_normal(state: &mut u64) -> f32 {
    let uniform = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
    (0..12).map(|_| uniform(splitmix64(state))).sum::<f32>() - 6.0
}
