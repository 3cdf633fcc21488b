//! Summaries of blocks, such as digests or hashes, that a policy ranks by, where some blocks are on disk: the keys of blocks that
//! a step summarises must be on the device.
//!
//! A step summarises the blocks that it writes, earlier blocks of the units that it completes, and blocks that were written
//! outside of a step.

use rustc_hash::FxHashSet;

use crate::batch::Slice;
use crate::cast::u32_of;

/// Blocks whose summaries are out of date.
#[derive(Debug)]
pub(super) struct StaleSummaries {
    /// Number of blocks that are summarised together.
    unit: usize,
    block_size: u32,
    stale: FxHashSet<u32>,
    /// Blocks that the last step summarised but did not write.
    due: Vec<u32>,
}

impl StaleSummaries {
    /// Creates a record for units of `unit` blocks of `block_size` tokens. The unit of a sequence's last token is always
    /// selected, so a step summarises it only when the next unit begins.
    pub(super) fn new(unit: u32, block_size: u32) -> Self {
        Self { unit: unit as usize, block_size, stale: FxHashSet::default(), due: Vec::new() }
    }

    /// Marks a block that is written outside of a step.
    pub(super) fn forget(&mut self, block: u32) {
        self.stale.insert(block);
    }

    /// Marks a block that could not be read in the last step. Returns whether that step summarised it.
    pub(super) fn lose(&mut self, block: u32) -> bool {
        let summarised = self.due.binary_search(&block).is_ok();
        self.stale.extend(summarised.then_some(block));
        summarised
    }

    /// Returns the blocks that a step summarises but does not write, ascending. Blocks of unfinished units are left for later.
    pub(super) fn due(&mut self, slices: &[Slice<'_>], is_written: impl Fn(u32) -> bool) -> Vec<u32> {
        let unit_of = |token: u32| (token / self.block_size) as usize / self.unit * self.unit;
        let (mut due, mut unfinished) = (FxHashSet::default(), FxHashSet::default());
        for slice in slices {
            let (table, end) = (slice.tables[0], slice.first + u32_of(slice.tokens.len()));
            let last = unit_of(end - 1);
            due.extend(table[unit_of(slice.first.saturating_sub(1))..last].iter().map(|block| block.get()));
            unfinished
                .extend(table[last..end.div_ceil(self.block_size) as usize].iter().map(|block| block.get()));
        }
        due.extend(self.stale.difference(&unfinished));
        self.stale = unfinished;
        let mut due: Vec<u32> = due.into_iter().filter(|block| !is_written(*block)).collect();
        due.sort_unstable();
        self.due.clone_from(&due);
        due
    }
}

#[cfg(test)]
mod tests {
    use kvblock::BlockId;

    use super::*;
    use crate::batch::Phase;

    #[test]
    fn blocks_before_a_unit_ends_and_blocks_from_elsewhere_are_looked_at() {
        let mut summaries = StaleSummaries::new(2, 4);
        let table: Vec<BlockId> = (10..20).map(BlockId::new).collect();
        let mut step = |range: std::ops::Range<u32>, forgotten: Option<u32>| {
            let ids = vec![0; range.len()];
            let tables = [&table[..]];
            let slice = Slice::new(&ids, range.start, &tables, Phase::Decode);
            forgotten.into_iter().for_each(|block| summaries.forget(block));
            let written = 10 + range.start / 4..10 + range.end.div_ceil(4);
            summaries.due(&[slice], |block| written.contains(&block))
        };
        // Units of blocks 10 and 11, 12 and 13, of 8 tokens each.
        assert_eq!(step(0..7, None), [0; 0]);
        assert_eq!(step(7..8, None), [0; 0]);
        assert_eq!(step(8..9, None), [10, 11], "the next unit begins");
        assert_eq!(step(9..14, Some(30)), [30]);
        assert_eq!(step(14..18, None), [12], "13 is written in this step");
    }

    #[test]
    fn blocks_that_are_lost_are_taken_in_later() {
        let mut summaries = StaleSummaries::new(1, 4);
        let table: Vec<BlockId> = (10..20).map(BlockId::new).collect();
        let tables = [&table[..]];
        let due = |summaries: &mut StaleSummaries, first| {
            summaries.due(&[Slice::new(&[0], first, &tables, Phase::Decode)], |_| false)
        };
        assert_eq!(due(&mut summaries, 4), [10]);
        assert!(summaries.lose(10) && !summaries.lose(12));
        assert_eq!(due(&mut summaries, 5), [10]);
        assert_eq!(due(&mut summaries, 6), [0; 0]);
    }
}
