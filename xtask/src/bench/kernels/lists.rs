//! Lists of selected blocks: random ones of a given share, and those that selection leaves.

use anyhow::Result;
use attn_kernels::gpu::{Buf, Gpu};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Tokens of a block that lists select.
pub(super) const SELECT_BLOCK: u32 = 64;

/// Lists `[count, blocks ascending..]`, one for each group (row or query block) and KV head.
pub(super) struct Lists {
    pub(super) buffer: Buf<u32>,
    /// Entries from one list to the next.
    pub(super) stride: u32,
    /// Tokens of a block.
    pub(super) block: u32,
    /// Tokens that the lists of a KV head hold, on average.
    pub(super) tokens: f64,
    /// Share of the visible blocks.
    pub(super) density: f64,
}

impl Lists {
    /// Selects a share of the blocks of each of `lens`, one for every KV head of a group after the other, at least the last.
    pub(super) fn random(
        gpu: &Gpu,
        lens: impl Iterator<Item = u32>,
        kv_heads: u32,
        density: f64,
    ) -> Result<Self> {
        let (words, stride, tokens) = random(lens, density);
        let buffer = gpu.upload("lists", &words)?;
        Ok(Self { buffer, stride, block: SELECT_BLOCK, tokens: tokens / f64::from(kv_heads), density })
    }

    /// Describes the selection.
    pub(super) fn kind(&self) -> String {
        format!(", {:.0} % of the blocks", self.density * 100.0)
    }
}

/// Random lists, the entries from one to the next, and the tokens that all lists hold.
fn random(lens: impl Iterator<Item = u32>, density: f64) -> (Vec<u32>, u32, f64) {
    let mut random = StdRng::seed_from_u64(3);
    let (mut all, mut tokens) = (Vec::new(), 0.0);
    for len in lens {
        let blocks: Vec<u32> = (0..len.div_ceil(SELECT_BLOCK)).collect();
        let (last, others) = blocks.split_last().expect("no row is empty");
        let more = (budget(len, density) as usize - 1).min(others.len());
        let mut list: Vec<u32> = others.sample(&mut random, more).copied().collect();
        list.sort_unstable();
        list.push(*last);
        tokens += f64::from((len - 1) % SELECT_BLOCK + 1) + more as f64 * f64::from(SELECT_BLOCK);
        all.push(list);
    }
    let stride = all.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let mut words = Vec::with_capacity(all.len() * stride);
    for list in all {
        let end = words.len() + stride;
        words.push(u32::try_from(list.len()).expect("blocks fit in 32 bits"));
        words.extend(list);
        words.resize(end, 0);
    }
    (words, u32::try_from(stride).expect("blocks fit in 32 bits"), tokens)
}

/// Blocks that make up a share of the blocks of `len` tokens, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the blocks")]
pub(super) fn budget(len: u32, density: f64) -> u32 {
    ((f64::from(len.div_ceil(SELECT_BLOCK)) * density).ceil() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_hold_their_share_and_the_last_block() {
        let (words, stride, tokens) = random([6400, 130, 1].into_iter(), 0.1);
        assert_eq!((words.len(), stride), (33, 11));
        let list = |i: usize| &words[i * 11 + 1..][..words[i * 11] as usize];
        assert_eq!(list(0).len(), 10);
        assert!(list(0).is_sorted() && list(0)[9] == 99);
        assert_eq!((list(1), list(2)), (&[2][..], &[0][..]));
        assert_eq!(tokens, 640.0 + 2.0 + 1.0);
    }
}
