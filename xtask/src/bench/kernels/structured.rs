//! Queries and keys whose attention has the structure that sparse prefill is made for, with a known share of the
//! mass: the published generator of the XAttention figures.
//!
//! Blocks are of 128 tokens. Every row of every head gives the first block (the sink), a local band of 8 blocks (its own
//! and those before it) and 16 single keys at random (vertical lines, others in every head) together 97 % of its attention.
//! The others share the rest alike, but for the band's skirt. Every key of sink and lines has the band's highest logit.
//!
//! The first channel of a head is the sink's, the next ones are those of the lines of each query head of its KV head,
//! the others hold block indices as harmonics of a period a little longer than the prompt. With weights of a Gaussian
//! their product is a Gaussian of the distance between blocks, and so is its exponential near the top: the band.
//! Queries are scaled block by block to the logit that gives the structure its share.

use attn_kernels::kernel::KvShape;
use half::f16;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::f64::consts::TAU;

/// Number of tokens of a block.
pub(super) const TOKENS: u32 = 128;
const BLOCK: usize = TOKENS as usize;

/// Share of a row's attention that the structure has.
const MASS: f64 = 0.97;
const BAND_BLOCKS: usize = 8;
const LINES: usize = 16;

/// Distance of the band's middle from the query's own block, in blocks.
const MIDDLE: f64 = (BAND_BLOCKS - 1) as f64 / 2.0;
/// Standard deviation, in blocks, of the Gaussian of logits. At a logit of 9 the deviation of the attention is a third of it:
/// 98 % of the band are in its 8 blocks.
const DEVIATION: f64 = 4.4;
/// Distance from the middle, in blocks, from which on the Gaussian adds nothing to logits.
const REACH: usize = 24;

/// Structure of the attention in one synthetic prompt, from which its queries and keys are made.
#[derive(Debug)]
pub(super) struct Structure {
    blocks: usize,
    num_heads: usize,
    shape: KvShape,
    /// Amplitudes of the harmonics, the constant first.
    harmonics: Vec<f64>,
    /// For each query head, the positions of the keys that form its lines, ascending.
    lines: Vec<Vec<usize>>,
}

impl Structure {
    /// A prompt of `len` tokens.
    ///
    /// # Panics
    /// When `len` is not a multiple of the block.
    pub(super) fn new(shape: &KvShape, num_heads: u32, len: u32) -> Self {
        let (num_heads, len) = (num_heads as usize, len as usize);
        assert!(len.is_multiple_of(BLOCK), "{len} tokens are not blocks of {BLOCK}");
        let blocks = len / BLOCK;
        let (group, dim) = (num_heads / shape.num_kv_heads as usize, shape.head_dim as usize);
        // A constant and pairs of cosine and sine; no more than the period has.
        let pairs = ((dim - 2 - group) / 2).min(period(blocks) / 2 - 1);
        let deviation = period(blocks) as f64 / (TAU * DEVIATION);
        let weight =
            |m: usize| (-(m as f64 / deviation).powi(2) / 2.0).exp() * if m == 0 { 0.5 } else { 1.0 };
        let sum: f64 = (0..=pairs).map(weight).sum();
        let harmonics = (0..=pairs).map(|m| weight(m) / sum).collect();
        let mut rng = StdRng::seed_from_u64(5);
        let mut keys: Vec<usize> = (BLOCK..len).collect();
        let mut lines = Vec::with_capacity(num_heads);
        for _ in 0..shape.num_kv_heads {
            // A key is on a line of one query head of its KV head at most.
            let (some, _) = keys.partial_shuffle(&mut rng, LINES * group);
            lines.extend(some.chunks(LINES).map(|line| {
                let mut line = line.to_vec();
                line.sort_unstable();
                line
            }));
        }
        Self { blocks, num_heads, shape: *shape, harmonics, lines }
    }

    fn group(&self) -> usize {
        self.num_heads / self.shape.num_kv_heads as usize
    }

    /// Logit of a key `distance` blocks before the middle of the band, as a share of the highest.
    fn bump(&self, distance: f64) -> f64 {
        let turn = TAU / period(self.blocks) as f64 * distance;
        self.harmonics.iter().zip(0..).map(|(a, m)| a * (turn * f64::from(m)).cos()).sum()
    }

    /// Adds the code of block `at` to the channels of the harmonics.
    fn code(&self, at: f64, into: &mut [f32]) {
        let turn = TAU / period(self.blocks) as f64 * at;
        let (first, pairs) = into.split_first_mut().expect("channels of the harmonics");
        *first = f32_of(self.harmonics[0].sqrt());
        for ((pair, a), m) in pairs.chunks_exact_mut(2).zip(&self.harmonics[1..]).zip(1..) {
            let (sin, cos) = (turn * f64::from(m)).sin_cos();
            pair.copy_from_slice(&[f32_of(a.sqrt() * cos), f32_of(a.sqrt() * sin)]);
        }
    }

    /// The highest logit that a row of `block` needs so that the structure gets its share of the attention mass. The row
    /// sees half of the keys of its own block.
    fn logit(&self, head: usize, block: usize, bumps: &[f64]) -> f64 {
        let sink = if block > 0 { BLOCK } else { BLOCK / 2 };
        let seen = self.lines[head].iter().filter(|key| **key < block * BLOCK).count();
        let keys = |distance: usize| if distance == 0 { BLOCK / 2 } else { BLOCK } as f64;
        let others = block.saturating_sub(bumps.len()) * BLOCK;
        let share = |logit: f64| {
            let kept = (sink + seen) as f64 * logit.exp();
            // Blocks before the first, and the sink, are not of the band.
            let mut near = bumps.iter().enumerate().take(block);
            let band: f64 = near.by_ref().take(BAND_BLOCKS).map(|(d, s)| keys(d) * (logit * s).exp()).sum();
            let rest: f64 = near.map(|(d, s)| keys(d) * (logit * s).exp()).sum();
            (kept + band) / (kept + band + rest + others as f64)
        };
        let (mut low, mut high) = (0.0, 16.0);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            *(if share(middle) < MASS { &mut low } else { &mut high }) = middle;
        }
        high
    }

    /// Rows of queries `[rows, num_heads, head_dim]` from position `first` on; both are multiples of the block.
    pub(super) fn queries(&self, first: u32, rows: u32) -> Vec<f32> {
        let (dim, group) = (self.shape.head_dim as usize, self.group());
        let bumps: Vec<f64> = (0..REACH).map(|d| self.bump(d as f64 - MIDDLE)).collect();
        let root = (dim as f64).sqrt();
        let width = self.num_heads * dim;
        let mut all = Vec::with_capacity(rows as usize * width);
        for block in first as usize / BLOCK..(first + rows) as usize / BLOCK {
            let mut row = vec![0.0; width];
            for (head, q) in row.chunks_exact_mut(dim).enumerate() {
                let factor = f32_of(root * self.logit(head, block, &bumps));
                let (marks, code) = q.split_at_mut(1 + group);
                (marks[0], marks[1 + head % group]) = (1.0, 1.0);
                self.code(block as f64 - MIDDLE, code);
                q.iter_mut().for_each(|x| *x *= factor);
            }
            (0..BLOCK).for_each(|_| all.extend_from_slice(&row));
        }
        all
    }

    /// The K cache in f16, with pages at the positions that `table` names.
    pub(super) fn keys(&self, table: &[u32]) -> Vec<u32> {
        let (shape, group) = (&self.shape, self.group());
        let (page, dim, kv_heads) =
            (shape.block_size as usize, shape.head_dim as usize, shape.num_kv_heads as usize);
        let mut cache = vec![f16::ZERO; table.len() * shape.block_elements()];
        let mut put = |token: usize, head: usize, key: &[f16]| {
            let block = table[token / page] as usize;
            for (x, chunk) in key.chunks_exact(shape.key_chunk()).enumerate() {
                let at = shape.k_index(block, head, token % page, x * shape.key_chunk());
                cache[at..at + chunk.len()].copy_from_slice(chunk);
            }
        };
        let mark = |channel: usize| {
            let mut key = vec![f16::ZERO; dim];
            key[channel] = f16::ONE;
            key
        };
        for block in 0..self.blocks {
            let mut code = vec![0.0; dim];
            self.code(block as f64, &mut code[1 + group..]);
            let code: Vec<f16> = code.into_iter().map(f16::from_f32).collect();
            let key = if block == 0 { mark(0) } else { code };
            for token in block * BLOCK..(block + 1) * BLOCK {
                (0..kv_heads).for_each(|head| put(token, head, &key));
            }
        }
        for (head, line) in self.lines.iter().enumerate() {
            line.iter().for_each(|token| put(*token, head / group, &mark(1 + head % group)));
        }
        bytemuck::pod_collect_to_vec(&cache)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
fn f32_of(x: f64) -> f32 {
    x as f32
}

/// Period of the harmonics, in blocks: the band of the last blocks does not come round to the first.
fn period(blocks: usize) -> usize {
    blocks + 2 * REACH
}

#[cfg(test)]
mod tests {
    use attn_kernels::kernel::KvDtype;

    use super::*;

    /// The shares of the attention of one row that sink, band and lines have.
    fn shares(structure: &Structure, row: usize, head: usize) -> [f64; 3] {
        let shape = &structure.shape;
        let (dim, group) = (shape.head_dim as usize, structure.group());
        let pages = u32::try_from(structure.blocks).unwrap() * TOKENS / shape.block_size;
        let table: Vec<u32> = (0..pages).rev().collect();
        let cache: Vec<f16> = bytemuck::pod_collect_to_vec(&structure.keys(&table));
        let block = row / BLOCK;
        let first = u32::try_from(block).unwrap() * TOKENS;
        let q = &structure.queries(first, TOKENS)[head * dim..][..dim];
        let page = shape.block_size as usize;
        let weight = |key: usize| {
            let place = table[key / page] as usize;
            let k = |d| f64::from(cache[shape.k_index(place, head / group, key % page, d)].to_f32());
            let score: f64 = q.iter().enumerate().map(|(d, q)| f64::from(*q) * k(d)).sum();
            (score / (dim as f64).sqrt()).exp()
        };
        let weights: Vec<f64> = (0..=row).map(weight).collect();
        let all: f64 = weights.iter().sum();
        let lines: f64 = structure.lines[head].iter().filter_map(|key| weights.get(*key)).sum();
        let sink: f64 = weights[..BLOCK.min(row)].iter().sum();
        let band: f64 = weights[(block + 1).saturating_sub(BAND_BLOCKS) * BLOCK..].iter().sum();
        [sink / all, band / all, lines / all]
    }

    #[test]
    fn the_structure_has_its_share() {
        let shape = KvShape {
            num_kv_heads: 2,
            head_dim: 128,
            block_size: 16,
            dtype: KvDtype::F16,
            layout: attn_kernels::kernel::KvLayout::Native,
        };
        let structure = Structure::new(&shape, 8, 32_768);
        for (row, head) in [(32_767, 0), (30_000, 5), (16_400, 7)] {
            let [sink, band, lines] = shares(&structure, row, head);
            let all = sink + band + lines;
            assert!((all - MASS).abs() < 0.01, "row {row}, head {head}: {sink} {band} {lines}");
            assert!(band > sink && sink > lines && lines > 0.002, "row {row}: {sink} {band} {lines}");
        }
    }
}
