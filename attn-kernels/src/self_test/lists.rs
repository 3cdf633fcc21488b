//! Lists of selected blocks.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{module, size};
use crate::Variant;
use crate::cpu::attention::Selected;

/// Lists of `[count, blocks ascending..]`; what follows a list is out of range of everything.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Tokens a block.
    pub block: u32,
    /// Entries from one list to the next.
    pub stride: u32,
    /// The lists.
    pub lists: Vec<u32>,
}

impl Lists {
    /// A list for each length in tokens: of blocks that start before it, each kept with `chance`.
    #[must_use]
    pub fn random(lens: impl Iterator<Item = u32>, block: u32, chance: f64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let lists: Vec<Vec<u32>> =
            lens.map(|len| (0..len.div_ceil(block)).filter(|_| rng.random_bool(chance)).collect()).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |list: Vec<u32>| {
            let mut entries = vec![super::count(&list)];
            entries.extend(list);
            entries.resize(longest + 1, u32::MAX);
            entries
        };
        let stride = u32::try_from(longest + 1).expect("lists are short");
        Self { block, stride, lists: lists.into_iter().flat_map(padded).collect() }
    }

    /// Lists for a variant that attends listed blocks, two a row of these lengths; none for one that attends all.
    pub(super) fn of(variant: &Variant, lens: &[u32]) -> Option<Self> {
        let listed = module(variant, "context") == Some("context_blocks");
        let twice = lens.iter().flat_map(|len| [*len; 2]);
        listed.then(|| Self::random(twice, size(variant, "SELECT_BLOCK"), 0.6, 9))
    }

    /// The lists as references read them.
    #[must_use]
    pub fn selected(&self) -> Selected<'_> {
        Selected { lists: &self.lists, stride: self.stride as usize, block: self.block as usize }
    }
}
