//! Digests: summaries of the keys of a block, by which policies rank it without reading the keys.

use half::f16;
use kvblock::BlockSize;

use crate::{
    Heads,
    blocks::{block_tokens, num_blocks},
};

/// Element type in which an engine stores digests. Policies round digests in the same way as the kernels, so
/// that both select the same blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestFormat {
    /// f32: minima and maxima are exact, and means are computed in f32.
    #[default]
    F32,
    /// f16, for pages of `page` tokens; a block may have several pages. Minima are rounded down and maxima up, so that they
    /// remain bounds; beyond 65,504, the largest f16, they become the largest f32. Means are rounded to the nearest f16, ties
    /// to even, and limited to the largest f16.
    F16 {
        /// Tokens per page.
        page: BlockSize,
    },
}

impl DigestFormat {
    /// Rounds the minimum of some keys to the format, never up.
    #[must_use]
    pub fn round_down(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 { .. } => -half_above(-x),
        }
    }

    /// Rounds the maximum of some keys to the format, never down.
    #[must_use]
    pub fn round_up(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 { .. } => half_above(x),
        }
    }

    /// A mean rounded to the format.
    #[must_use]
    pub fn mean(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 { .. } => f16::from_f32(x).clamp(f16::MIN, f16::MAX).to_f32(),
        }
    }
}

/// The smallest f16 that is at least `x`. Above the largest f16, it is the largest f32, which, unlike
/// infinity, may be multiplied by 0.
fn half_above(x: f32) -> f32 {
    let nearest = f16::from_f32(x);
    let bits = nearest.to_bits();
    let above = match nearest.to_f32() < x {
        true if nearest.is_sign_negative() => f16::from_bits(bits - 1),
        true => f16::from_bits(bits + 1),
        false => nearest,
    };
    if above.is_infinite() { f32::MAX.copysign(x) } else { above.to_f32() }
}

/// Channelwise minimum and maximum of the keys of every block (Quest, arXiv 2406.10774).
#[derive(Clone, Debug, PartialEq)]
pub struct MinMax {
    kv_heads: usize,
    dim: usize,
    block_size: BlockSize,
    format: DigestFormat,
    /// Number of tokens digested.
    kv_len: usize,
    /// `[block][kv_head][2][dim]`: minima, then maxima
    values: Vec<f32>,
}

impl MinMax {
    /// Digests of no blocks yet.
    #[must_use]
    pub const fn new(kv_heads: usize, dim: usize, block_size: BlockSize, format: DigestFormat) -> Self {
        Self { kv_heads, dim, block_size, format, kv_len: 0, values: Vec::new() }
    }

    /// Digests of all blocks of `k`.
    #[must_use]
    pub fn of(k: &Heads<'_>, block_size: BlockSize, format: DigestFormat) -> Self {
        let mut digest = Self::new(k.heads(), k.dim(), block_size, format);
        digest.extend(k);
        digest
    }

    /// Adds the tokens of `k` that are not digested yet; a partial last block grows in place.
    ///
    /// # Panics
    /// When `k` has a different number of heads or channels.
    pub fn extend(&mut self, k: &Heads<'_>) {
        assert_eq!((k.heads(), k.dim()), (self.kv_heads, self.dim), "keys of another shape");
        let stride = self.kv_heads * 2 * self.dim;
        for t in self.kv_len..k.len() {
            let fresh = t % self.block_size.get() as usize == 0;
            if fresh {
                self.values.resize(self.values.len() + stride, 0.0);
            }
            let block = self.values.len() - stride;
            for head in 0..self.kv_heads {
                let at = block + head * 2 * self.dim;
                let (min, max) = self.values[at..at + 2 * self.dim].split_at_mut(self.dim);
                for ((lo, hi), &x) in min.iter_mut().zip(max).zip(k.row(head, t)) {
                    // Rounding is monotonic: the minimum of rounded keys is the rounded minimum.
                    let (least, most) = (self.format.round_down(x), self.format.round_up(x));
                    (*lo, *hi) = if fresh { (least, most) } else { (lo.min(least), hi.max(most)) };
                }
            }
        }
        self.kv_len = self.kv_len.max(k.len());
    }

    /// Tokens per full block.
    #[must_use]
    pub const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Number of blocks digested.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        num_blocks(self.kv_len, self.block_size)
    }

    /// Number of tokens of a block; fewer in the last one.
    #[must_use]
    pub fn tokens(&self, block: u32) -> usize {
        block_tokens(block, self.block_size, self.kv_len).len()
    }

    /// Minima and maxima of one block and KV head, `[dim]` each.
    #[must_use]
    pub fn block(&self, block: u32, kv_head: usize) -> (&[f32], &[f32]) {
        let at = (block as usize * self.kv_heads + kv_head) * 2 * self.dim;
        self.values[at..at + 2 * self.dim].split_at(self.dim)
    }

    /// Upper bound of `q·k` over the keys of a block, `Σ_d max(q_d min_d, q_d max_d)`, in f32: the page score of Quest.
    #[must_use]
    pub fn score(&self, q: &[f32], block: u32, kv_head: usize) -> f32 {
        let (min, max) = self.block(block, kv_head);
        q.iter().zip(min).zip(max).map(|((q, lo), hi)| (q * lo).max(q * hi)).sum()
    }

    /// [`score`](Self::score) in f64, for uses that need a true bound and not only an order.
    #[must_use]
    pub fn bound(&self, q: &[f32], block: u32, kv_head: usize) -> f64 {
        let (min, max) = self.block(block, kv_head);
        let product = |a: &f32, b: &f32| f64::from(*a) * f64::from(*b);
        q.iter().zip(min).zip(max).map(|((q, lo), hi)| product(q, lo).max(product(q, hi))).sum()
    }

    /// Upper bound of the sum of the magnitudes of the terms of `q·k` over the keys of a block: the rounding error of a dot
    /// product is relative to it.
    #[must_use]
    pub fn magnitude(&self, q: &[f32], block: u32, kv_head: usize) -> f64 {
        let (min, max) = self.block(block, kv_head);
        let term =
            |((q, lo), hi): ((&f32, &f32), &f32)| f64::from(q.abs()) * f64::from(lo.abs().max(hi.abs()));
        q.iter().zip(min).zip(max).map(term).sum()
    }
}

/// Mean key of every block and KV head, the representative of GSA and ESA: `[block][kv_head][dim]`.
#[must_use]
pub fn mean_keys(k: &Heads<'_>, block_size: BlockSize, format: DigestFormat) -> Vec<Vec<Vec<f32>>> {
    let mean = |block, head| mean_key(k, head, block_tokens(block, block_size, k.len()), format);
    (0..num_blocks(k.len(), block_size)).map(|b| (0..k.heads()).map(|h| mean(b, h)).collect()).collect()
}

/// Mean key `[dim]` of some tokens: in f32, sums in token order, then one division; in f16, the mean of the
/// stored page means, weighted by their tokens.
#[must_use]
pub fn mean_key(
    k: &Heads<'_>,
    head: usize,
    tokens: core::ops::Range<usize>,
    format: DigestFormat,
) -> Vec<f32> {
    let count = tokens.len() as f32;
    let mut mean = vec![0.0f32; k.dim()];
    match format {
        DigestFormat::F32 => {
            for t in tokens {
                mean.iter_mut().zip(k.row(head, t)).for_each(|(m, x)| *m += x);
            }
            mean.iter_mut().for_each(|m| *m /= count);
        }
        DigestFormat::F16 { page } => {
            for first in tokens.clone().step_by(page.get() as usize) {
                let page = first..tokens.end.min(first + page.get() as usize);
                let share = page.len() as f32 / count;
                let of_page = page_mean(k, head, page);
                mean.iter_mut().zip(of_page).for_each(|(m, x)| *m += share * format.mean(x));
            }
        }
    }
    mean
}

/// Mean key of a page, bitwise as the kernels compute it in f32, so that both round it in the same way: every eighth token is
/// added up, then the eight sums, in order.
fn page_mean(k: &Heads<'_>, head: usize, tokens: core::ops::Range<usize>) -> Vec<f32> {
    const LANES: usize = 8;
    let mut sums = vec![[0.0f32; LANES]; k.dim()];
    for (i, t) in tokens.clone().enumerate() {
        sums.iter_mut().zip(k.row(head, t)).for_each(|(sums, x)| sums[i % LANES] += x);
    }
    let lanes = tokens.len().min(LANES);
    sums.iter().map(|sums| sums[..lanes].iter().sum::<f32>() / tokens.len() as f32).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn half() -> DigestFormat {
        DigestFormat::F16 { page: BlockSize::new(4).unwrap() }
    }

    /// Any f32, f16 exactly, and the neighbours of an f16 in f32, subnormals and the largest ones included.
    fn numbers() -> impl Strategy<Value = f32> {
        let of_half = any::<u16>().prop_map(|bits| f16::from_bits(bits).to_f32());
        let beside =
            (of_half.clone(), any::<bool>()).prop_map(|(x, up)| if up { x.next_up() } else { x.next_down() });
        let about_largest = (0u32..8).prop_map(|i| 65_500.0 + 8.0 * i as f32);
        prop_oneof![any::<u32>().prop_map(f32::from_bits), of_half, beside, about_largest]
            .prop_filter("a number", |x| x.is_finite())
    }

    proptest! {
        #[test]
        fn bounds_are_the_next_halves_outwards(x in numbers()) {
            // All finite ones, ascending.
            static HALVES: LazyLock<Vec<f32>> = LazyLock::new(|| {
                let all = (0..=u16::MAX).map(f16::from_bits).filter(|half| half.is_finite());
                let mut all: Vec<f32> = all.map(f16::to_f32).collect();
                all.sort_by(f32::total_cmp);
                all
            });
            let below = HALVES.iter().copied().rev().find(|half| *half <= x);
            let above = HALVES.iter().copied().find(|half| *half >= x);
            prop_assert_eq!(half().round_down(x), below.unwrap_or(-f32::MAX));
            prop_assert_eq!(half().round_up(x), above.unwrap_or(f32::MAX));
            let (mean, off) = (half().mean(x), |half: f32| (f64::from(half) - f64::from(x)).abs());
            prop_assert!(below.into_iter().chain(above).all(|half| off(mean) <= off(half)), "{mean}");
            prop_assert!(Some(mean) == below || Some(mean) == above);
        }

        /// The mean of a block of whole pages is that of its keys up to a rounding of each page.
        #[test]
        fn means_of_pages_are_means(values in prop::collection::vec(-2.0f32..2.0, 1..60)) {
            let k = Heads::new("k", &values, [1, values.len(), 1]).unwrap();
            let size = BlockSize::new(8).unwrap();
            let halves = mean_keys(&k, size, half());
            for (mean, half) in mean_keys(&k, size, DigestFormat::F32).iter().zip(halves) {
                prop_assert!((mean[0][0] - half[0][0]).abs() <= 1.0 / 2047.0);
            }
        }
    }

    #[test]
    fn beyond_the_largest_half_a_bound_is_the_largest_number() {
        assert_eq!([half().round_up(65_504.5), half().round_down(65_504.5)], [f32::MAX, 65_504.0]);
        assert_eq!([half().round_up(-7e4), half().round_down(-7e4)], [-65_504.0, -f32::MAX]);
        assert_eq!([half().mean(1e30), half().mean(-65_519.0)], [65_504.0, -65_504.0]);
        let k = [1e5, -1e5, 1.0, 2.0];
        let digest = MinMax::of(&Heads::new("k", &k, [1, 2, 2]).unwrap(), BlockSize::new(2).unwrap(), half());
        // A channel of the query that is 0 asks nothing of an endless bound.
        assert_eq!(digest.bound(&[0.0, 2.0], 0, 0), 4.0);
        assert!(digest.bound(&[1.0, 0.0], 0, 0) >= 1e5);
    }
}
