//! Lists of selected blocks.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::count;
use crate::cpu::attention::Selected;

/// Lists of `[count, blocks ascending..]`. The entries after a list's end are out of every range.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Number of tokens a block.
    pub block: u32,
    /// Number of entries from one list to the next.
    pub stride: u32,
    /// The lists.
    pub lists: Vec<u32>,
}

impl Lists {
    /// Makes one list for each length in tokens. Each block that starts before the length is kept with probability
    /// `chance`.
    #[must_use]
    pub fn random(lens: impl Iterator<Item = u32>, block: u32, chance: f64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let kept = |len: u32| (0..len.div_ceil(block)).filter(|_| rng.random_bool(chance)).collect();
        Self::new(lens.map(kept).collect(), block)
    }

    /// Makes one list for each length in tokens: a random fraction of the blocks, always including the last one. No
    /// length may be 0.
    #[must_use]
    pub fn share(lens: impl Iterator<Item = u32>, block: u32, density: f64) -> Self {
        let mut rng = StdRng::seed_from_u64(3);
        let kept = |len: u32| {
            let last = len.div_ceil(block) - 1;
            let others: Vec<u32> = (0..last).collect();
            let more = Self::budget(len, block, density) - 1;
            let mut list: Vec<u32> = others.sample(&mut rng, more as usize).copied().collect();
            list.sort_unstable();
            list.push(last);
            list
        };
        Self::new(lens.map(kept).collect(), block)
    }

    /// Number of blocks of `block` tokens that make up a fraction of the blocks of `len` tokens, at least one.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the blocks")]
    pub fn budget(len: u32, block: u32, density: f64) -> u32 {
        ((f64::from(len.div_ceil(block)) * density).ceil() as u32).max(1)
    }

    fn new(lists: Vec<Vec<u32>>, block: u32) -> Self {
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let stride = u32::try_from(longest + 1).expect("lists are short");
        let padded = |list: Vec<u32>| {
            let mut entries = vec![count(&list)];
            entries.extend(list);
            entries.resize(longest + 1, u32::MAX);
            entries
        };
        Self { block, stride, lists: lists.into_iter().flat_map(padded).collect() }
    }

    /// Number of tokens in the blocks of all lists, one list for each of these lengths.
    #[must_use]
    pub fn tokens(&self, lens: impl Iterator<Item = u32>) -> f64 {
        let of = |(list, len): (&[u32], u32)| -> f64 {
            let blocks = &list[1..=list[0] as usize];
            blocks.iter().map(|block| f64::from(self.block.min(len - block * self.block))).sum()
        };
        self.lists.chunks_exact(self.stride as usize).zip(lens).map(of).sum()
    }

    /// Returns the lists in the form that references read.
    #[must_use]
    pub fn selected(&self) -> Selected<'_> {
        Selected { lists: &self.lists, stride: self.stride as usize, block: self.block as usize }
    }
}
