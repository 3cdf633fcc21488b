//! Blocks whose summaries are due: written by steps, and complete as far as a score looks at them. Decode steps that select
//! nothing leave theirs to a later step.

use attn_kernels::kernel::KvShape;
use rustc_hash::FxHashSet;

use crate::Reach;
use crate::batch::{Phase, Slice};
use crate::cast::u32_of;
use crate::decoder::attention_groups::AttentionGroup;

/// Blocks whose summaries are due.
#[derive(Debug)]
pub(super) struct DueBlocks {
    /// Number of tokens that are summarised together, a multiple of a block.
    unit: u32,
    /// Whether a step summarises the unit that it completes. Otherwise the next step does, since the unit of a sequence's last
    /// token is always selected without a score.
    completed: bool,
    /// Whether decode steps that select nothing leave summaries to later steps, so that they cost nothing. It must be
    /// false if keys leave the device.
    waits: bool,
    /// Blocks whose summaries are out of date.
    stale: FxHashSet<u32>,
}

impl DueBlocks {
    pub(super) fn new(unit: u32, completed: bool, waits: bool) -> Self {
        Self { unit, completed, waits, stale: FxHashSet::default() }
    }

    /// Marks blocks that are about to be written.
    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32>) {
        self.stale.extend(blocks);
    }

    /// Whether a step of single tokens summarises only blocks that were complete before it.
    pub(super) fn completes_before(&self) -> bool {
        !self.completed
    }

    /// Whether a step of `slices` can summarise before its keys are written, because it only summarises blocks that were
    /// complete before the step.
    pub(super) fn before_keys(&self, slices: &[Slice<'_>]) -> bool {
        self.completes_before() && slices.iter().all(|slice| slice.tokens.len() == 1)
    }

    /// Returns the length of the lists of a step. It is at least the number of the step's blocks, and the same for all
    /// steps of one token for the same number of sequences.
    pub(super) fn list_len(&self, shape: &KvShape, slices: &[Slice<'_>], blocks: usize) -> usize {
        let alike = slices.iter().all(|slice| slice.tokens.len() == 1);
        let max = slices.len() * (self.unit / shape.block_size) as usize;
        if alike { blocks.max(max) } else { blocks }
    }

    /// Whether a step summarises blocks; `selects` says whether a row of the step selects. Steps with a prompt always
    /// summarise: their work is large anyway, and a decode step would have to summarise the whole prompt later.
    pub(super) fn summarises(&self, slices: &[Slice<'_>], selects: bool) -> bool {
        selects || !self.waits || slices.iter().any(|slice| slice.phase == Phase::Prefill)
    }

    /// Marks the blocks of a step that summarises nothing as stale.
    pub(super) fn put_off(&mut self, shape: &KvShape, attn_groups: &[AttentionGroup], slices: &[Slice<'_>]) {
        let Written { finished, unfinished } = self.written(shape, attn_groups, slices);
        self.stale.extend(finished.into_iter().flatten().chain(unfinished));
    }

    /// Returns the blocks that a step summarises, ascending, for the layers of each attention group. Most decode steps have none.
    pub(super) fn due(
        &mut self,
        shape: &KvShape,
        attn_groups: &[AttentionGroup],
        slices: &[Slice<'_>],
    ) -> Vec<Vec<u32>> {
        let Written { finished, unfinished } = self.written(shape, attn_groups, slices);
        let due = attn_groups.iter().zip(finished).map(|(attn_group, mut due)| {
            if attn_group.reach == Reach::Full {
                due.extend(self.stale.difference(&unfinished));
            }
            let mut due: Vec<u32> = due.into_iter().collect();
            due.sort_unstable();
            due
        });
        let due = due.collect();
        // Blocks of sequences that leave stay due, for others with the same prefix.
        self.stale = unfinished;
        due
    }

    fn written(&self, shape: &KvShape, attn_groups: &[AttentionGroup], slices: &[Slice<'_>]) -> Written {
        let block_of = |token: u32| (token / self.unit * (self.unit / shape.block_size)) as usize;
        let before = u32::from(!self.completed);
        let mut written = Written {
            finished: vec![FxHashSet::default(); attn_groups.len()],
            unfinished: FxHashSet::default(),
        };
        let of_groups = attn_groups.iter().zip(&mut written.finished);
        for (attn_group, finished) in of_groups.filter(|(attn_group, _)| attn_group.reach == Reach::Full) {
            for slice in slices {
                let (table, end) =
                    (slice.tables[attn_group.kv_group], slice.first + u32_of(slice.tokens.len()));
                let last = block_of(end - before);
                // The unit before the slice was unfinished until now.
                let behind = &table[block_of(slice.first.saturating_sub(before))..last];
                finished.extend(behind.iter().map(|block| block.get()));
                let blocks = &table[last..end.div_ceil(shape.block_size) as usize];
                written.unfinished.extend(blocks.iter().map(|block| block.get()));
            }
        }
        written
    }
}

/// Blocks that a step writes, or that were unfinished before the step. Blocks of whole units are listed by attention
/// group, all others together.
struct Written {
    finished: Vec<FxHashSet<u32>>,
    unfinished: FxHashSet<u32>,
}

#[cfg(test)]
mod tests {
    use attn_kernels::kernel::KvDtype;
    use kvblock::BlockId;
    use proptest::prelude::*;

    use super::*;

    const SEQUENCES: usize = 3;
    const BLOCK: u32 = 4;

    /// A step: tokens that each sequence adds, 0 for one that is not of it, and whether a row selects.
    type Added = ([u32; SEQUENCES], bool);

    proptest! {
        #[test]
        fn steps_that_select_know_every_finished_page_as_it_is(
            completed in any::<bool>(),
            waits in any::<bool>(),
            unit_blocks in 1..3_u32,
            steps in prop::collection::vec((prop::array::uniform3(0..20_u32), any::<bool>()), 1..30),
        ) {
            let shape =
                KvShape { block_size: BLOCK, head_dim: 64, num_kv_heads: 1, dtype: KvDtype::F32, layout: attn_kernels::kernel::KvLayout::Native };
            let attn_groups = [AttentionGroup { kv_group: 0, reach: Reach::Full, block_size: BLOCK }];
            let mut blocks = DueBlocks::new(unit_blocks * BLOCK, completed, waits);
            // Sequences follow each other in the pool.
            let table = |sequence: usize| (0..200).map(|block| BlockId::new(u32_of(sequence) * 200 + block)).collect();
            let tables: [Vec<BlockId>; SEQUENCES] = std::array::from_fn(table);
            let mut lengths = [0; SEQUENCES];
            // Tokens that each block has, and had when it was summarised.
            let (mut has, mut known) = (vec![0; 200 * SEQUENCES], vec![0; 200 * SEQUENCES]);
            for (added, selects) in steps as Vec<Added> {
                let ids = [0; 20];
                let firsts = lengths;
                let of = |(sequence, added): (usize, &u32)| (sequence, firsts[sequence], *added);
                let parts: Vec<(usize, u32, u32)> = added.iter().enumerate().map(of).filter(|part| part.2 > 0).collect();
                let lists: Vec<[&[BlockId]; 1]> = parts.iter().map(|(sequence, ..)| [&tables[*sequence][..]]).collect();
                let slices: Vec<Slice<'_>> = parts.iter().zip(&lists)
                    .map(|((_, first, added), tables)| Slice::new(&ids[..*added as usize], *first, tables, Phase::Decode))
                    .collect();
                for (sequence, first, added) in &parts {
                    for token in *first..first + added {
                        has[*sequence * 200 + (token / BLOCK) as usize] += 1;
                    }
                    lengths[*sequence] += added;
                }
                if !blocks.summarises(&slices, selects) {
                    blocks.put_off(&shape, &attn_groups, &slices);
                    continue;
                }
                for block in &blocks.due(&shape, &attn_groups, &slices)[0] {
                    known[*block as usize] = has[*block as usize];
                }
                for (sequence, first, added) in &parts {
                    // The unit of the last token is always selected, unless all units are scored.
                    let scored = first + added - u32::from(!completed);
                    for block in 0..(scored / (unit_blocks * BLOCK) * unit_blocks) as usize {
                        prop_assert_eq!(known[sequence * 200 + block], BLOCK, "block {} of sequence {}", block, sequence);
                    }
                }
            }
        }
    }
}
