//! Strided scores and their block sums for one head.

use core::ops::Range;

use crate::{Heads, heads::dot};

/// Pairing of the tokens of a query stride with those of a key stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshape {
    /// Query token `S - 1 - t` with key token `t`: the antidiagonal, the published default.
    Inverse,
    /// Query token `t` with key token `t`: the diagonal.
    Slash,
    /// Query token `p(t)` with key token `t`, for a permutation p drawn from the seed.
    Random {
        /// Seed of the permutation.
        seed: u64,
    },
    /// The antidiagonal, with the sum of keys `t` and `t + 1 mod S`.
    Double,
    /// The antidiagonal, with the sum of keys `t - 1`, `t` and `t + 1 mod S`.
    Triple,
}

impl Reshape {
    /// The query token paired with key token `t`, for each t of a stride.
    #[must_use]
    pub fn query_order(self, stride: usize) -> Vec<usize> {
        match self {
            Self::Slash => (0..stride).collect(),
            Self::Random { seed } => permutation(stride, seed),
            Self::Inverse | Self::Double | Self::Triple => (0..stride).rev().collect(),
        }
    }

    /// The key tokens that are added up at `t`.
    fn key_terms(self, t: usize, stride: usize) -> impl Iterator<Item = usize> {
        let count = match self {
            Self::Inverse | Self::Slash | Self::Random { .. } => 1,
            Self::Double => 2,
            Self::Triple => 3,
        };
        [t, (t + 1) % stride, (t + stride - 1) % stride].into_iter().take(count)
    }
}

/// A random permutation by the Fisher-Yates shuffle, from a splitmix64 stream.
fn permutation(n: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        let pick = crate::rng::splitmix64(&mut state) % (i as u64 + 1);
        order.swap(i, usize::try_from(pick).expect("at most i"));
    }
    order
}

/// Scores of one head in units of strides: `[rows, cols]`, row-major, unscaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// Number of query strides.
    pub rows: usize,
    /// Number of key strides, `ceil(k_len / stride)`.
    pub cols: usize,
    /// `[rows, cols]`
    pub values: Vec<f32>,
}

/// `score[i, j] = Σ_t q[i*S + order(t)] · k[j*S + t]` for the query strides `rows` of head `head`, with
/// `front` zero queries before the first one, and zeros in place of tokens beyond either end. Summed in f32,
/// in order of t.
///
/// O(rows · cols · stride · head_dim).
#[must_use]
pub fn strided_scores(
    (q, head, front): (&Heads<'_>, usize, usize),
    k: &Heads<'_>,
    stride: usize,
    reshape: Reshape,
    rows: Range<usize>,
) -> Scores {
    let kv = q.kv_head(head, k.heads());
    let order = reshape.query_order(stride);
    let cols = k.len().div_ceil(stride);
    let keys = reshaped_keys(k, kv, stride, reshape);
    let mut values = Vec::with_capacity(rows.len() * cols);
    let num_rows = rows.len();
    for row in rows {
        let query = |t: usize| (row * stride + order[t]).checked_sub(front).filter(|&at| at < q.len());
        let queries: Vec<_> = (0..stride).map(|t| query(t).map(|at| q.row(head, at))).collect();
        for col in 0..cols {
            let terms = queries.iter().zip(&keys[col * stride..]);
            values.push(terms.filter_map(|(q, k)| q.map(|q| dot(q, k))).sum());
        }
    }
    Scores { rows: num_rows, cols, values }
}

/// The (summed) key vector at each position of each key stride, zeros beyond the end: `[cols * stride][dim]`.
fn reshaped_keys(k: &Heads<'_>, kv: usize, stride: usize, reshape: Reshape) -> Vec<Vec<f32>> {
    let vector = |position: usize| {
        let (col, t) = (position / stride, position % stride);
        let mut sum = vec![0.0f32; k.dim()];
        for at in reshape.key_terms(t, stride).map(|t| col * stride + t).filter(|&at| at < k.len()) {
            sum.iter_mut().zip(k.row(kv, at)).for_each(|(s, x)| *s += x);
        }
        sum
    };
    (0..k.len().next_multiple_of(stride)).map(vector).collect()
}

/// Parameters of [`softmax_block_sum`], in units of strides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSum<'a> {
    /// Number of strides per block, `block_size / stride`.
    pub block: usize,
    /// Column at the position of row 0: a causal row r sees the columns up to `chunk_start + r`.
    pub chunk_start: usize,
    /// Rows that hold a real query; others contribute 0.
    pub real_rows: &'a Range<usize>,
    /// Factor of the scores before the base-2 softmax; see [`softmax_scale`].
    pub scale: f64,
    /// Whether columns after the row's own are masked.
    pub causal: bool,
}

/// Factor of the scores before the base-2 softmax, `log2(e) / (sqrt(head_dim) * stride * norm)`.
#[must_use]
pub fn softmax_scale(head_dim: usize, stride: usize, norm: f64) -> f64 {
    core::f64::consts::LOG2_E / ((head_dim as f64).sqrt() * stride as f64 * norm)
}

/// Base-2 softmax of every row, then sums over blocks of rows and columns:
/// `[ceil(rows / block), ceil(cols / block)]`. A row of blocks adds up to its number of real rows.
/// Exponentials and sums are computed in f64 and rounded to f32 once, at the end.
#[must_use]
pub fn softmax_block_sum(scores: &Scores, by: &BlockSum<'_>) -> Vec<f32> {
    let key_blocks = scores.cols.div_ceil(by.block);
    let mut sums = vec![0.0f64; scores.rows.div_ceil(by.block) * key_blocks];
    for row in by.real_rows.start..by.real_rows.end.min(scores.rows) {
        let seen = if by.causal { scores.cols.min(by.chunk_start + row + 1) } else { scores.cols };
        let scaled = scores.values[row * scores.cols..][..seen].iter().map(|&s| f64::from(s) * by.scale);
        let max = scaled.clone().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scaled.map(|s| (s - max).exp2()).collect();
        let total: f64 = weights.iter().sum();
        let of_row = &mut sums[row / by.block * key_blocks..][..key_blocks];
        for (sum, weights) in of_row.iter_mut().zip(weights.chunks(by.block)) {
            *sum += weights.iter().sum::<f64>() / total;
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "block sums are f32, as the kernel writes them")]
    sums.into_iter().map(|sum| sum as f32).collect()
}
