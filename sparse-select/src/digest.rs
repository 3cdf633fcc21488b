//! Digests: what a policy keeps of a block, so that it need not read its keys again.

use kvblock::BlockSize;

use crate::{
    Heads,
    policy::{block_tokens, num_blocks},
};

/// Channelwise minimum and maximum of the keys of every block (Quest, arXiv 2406.10774).
#[derive(Clone, Debug, PartialEq)]
pub struct MinMax {
    kv_heads: usize,
    dim: usize,
    block_size: BlockSize,
    /// Tokens digested.
    kv_len: usize,
    /// `[block][kv_head][2][dim]`: minima, then maxima
    values: Vec<f32>,
}

impl MinMax {
    /// Digests of no blocks yet.
    #[must_use]
    pub const fn new(kv_heads: usize, dim: usize, block_size: BlockSize) -> Self {
        Self { kv_heads, dim, block_size, kv_len: 0, values: Vec::new() }
    }

    /// Digests of all blocks of `k`.
    #[must_use]
    pub fn of(k: &Heads<'_>, block_size: BlockSize) -> Self {
        let mut digest = Self::new(k.heads(), k.dim(), block_size);
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
                    (*lo, *hi) = if fresh { (x, x) } else { (lo.min(x), hi.max(x)) };
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

    /// Tokens of a block; fewer in the last one.
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
        self.bound_with(q, block, kv_head, 0.0)
    }

    /// [`bound`](Self::bound) plus `slack` times the magnitudes of its terms: with a slack above the rounding
    /// error of f32, a bound for f32 arithmetic too.
    #[must_use]
    pub fn bound_with(&self, q: &[f32], block: u32, kv_head: usize, slack: f64) -> f64 {
        let (min, max) = self.block(block, kv_head);
        let product = |a: &f32, b: &f32| f64::from(*a) * f64::from(*b);
        let terms = q.iter().zip(min).zip(max).map(|((q, lo), hi)| product(q, lo).max(product(q, hi)));
        terms.map(|term| term + slack * term.abs()).sum()
    }
}

/// Mean key of every block and KV head, the representative of GSA and ESA: `[block][kv_head][dim]`. Sums in
/// f32 in token order, then one division by the number of tokens.
#[must_use]
pub fn mean_keys(k: &Heads<'_>, block_size: BlockSize) -> Vec<Vec<Vec<f32>>> {
    let mean = |block, head| {
        let tokens = block_tokens(block, block_size, k.len());
        let count = tokens.len() as f32;
        let mut mean = vec![0.0f32; k.dim()];
        for t in tokens {
            mean.iter_mut().zip(k.row(head, t)).for_each(|(m, x)| *m += x);
        }
        mean.iter_mut().for_each(|m| *m /= count);
        mean
    };
    (0..num_blocks(k.len(), block_size)).map(|b| (0..k.heads()).map(|h| mean(b, h)).collect()).collect()
}
