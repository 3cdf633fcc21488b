//! Lists of selected blocks.

use attn_kernels::cpu::attention::Selected;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Lists of `[count, blocks ascending..]`; what follows a list is out of range of everything.
pub(crate) struct Lists {
    pub(crate) block: u32,
    pub(crate) stride: u32,
    pub(crate) lists: Vec<u32>,
}

impl Lists {
    /// A list for each length in tokens: of blocks that start before it, each kept with `chance`.
    pub(crate) fn random(lens: impl Iterator<Item = u32>, block: u32, chance: f64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let lists: Vec<Vec<u32>> =
            lens.map(|len| (0..len.div_ceil(block)).filter(|_| rng.random_bool(chance)).collect()).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let stride = u32::try_from(longest + 1).unwrap();
        let padded = |list: Vec<u32>| {
            let mut entries = vec![u32::try_from(list.len()).unwrap()];
            entries.extend(list);
            entries.resize(longest + 1, u32::MAX);
            entries
        };
        Self { block, stride, lists: lists.into_iter().flat_map(padded).collect() }
    }

    pub(crate) fn selected(&self) -> Selected<'_> {
        Selected { lists: &self.lists, stride: self.stride as usize, block: self.block as usize }
    }
}
