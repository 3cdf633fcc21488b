//! Pages that are taken in: those that a step wrote, once nothing is missing of what a score looks at.

use attn_kernels::kernel::KvShape;
use rustc_hash::FxHashSet;

use crate::Reach;
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::views::View;

/// Pages that are due.
#[derive(Debug)]
pub(super) struct Pages {
    /// Tokens that are taken in together, a multiple of a page.
    unit: u32,
    /// Whether a step takes in the unit that it completes; else the next one does, as the unit of a sequence's last token
    /// is always selected and nobody asks what is in it.
    completed: bool,
    /// Pages that are not as they were taken in.
    stale: FxHashSet<u32>,
}

impl Pages {
    pub(super) fn new(unit: u32, completed: bool) -> Self {
        Self { unit, completed, stale: FxHashSet::default() }
    }

    /// Pages that are about to be written.
    pub(super) fn forget(&mut self, pages: impl Iterator<Item = u32>) {
        self.stale.extend(pages);
    }

    /// Whether a step of these slices takes in only pages that were complete before it: it may do so before its own keys are
    /// there.
    pub(super) fn before_keys(&self, slices: &[Slice<'_>]) -> bool {
        !self.completed && slices.iter().all(|slice| slice.tokens.len() == 1)
    }

    /// Returns the length of the lists of a step: at least the number of its pages, and the same for all steps of one token for
    /// each of as many sequences.
    pub(super) fn room(&self, shape: &KvShape, slices: &[Slice<'_>], pages: usize) -> usize {
        let alike = slices.iter().all(|slice| slice.tokens.len() == 1);
        let most = slices.len() * (self.unit / shape.block_size) as usize;
        if alike { pages.max(most) } else { pages }
    }

    /// Pages that a step takes in, ascending, for the layers of each view. Most steps of decode have none.
    pub(super) fn due(&mut self, shape: &KvShape, views: &[View], slices: &[Slice<'_>]) -> Vec<Vec<u32>> {
        let page_of = |token: u32| (token / self.unit * (self.unit / shape.block_size)) as usize;
        let before = u32::from(!self.completed);
        let mut due = vec![FxHashSet::default(); views.len()];
        let mut unfinished = FxHashSet::default();
        let full = |view: &View| view.reach == Reach::Full;
        for (view, due) in views.iter().zip(&mut due).filter(|(view, _)| full(view)) {
            for slice in slices {
                let (table, end) = (slice.tables[view.group], slice.first + u32_of(slice.tokens.len()));
                let last = page_of(end - before);
                // The unit before the slice was unfinished until now.
                let behind = &table[page_of(slice.first.saturating_sub(before))..last];
                due.extend(behind.iter().map(|page| page.get()));
                let pages = &table[last..end.div_ceil(shape.block_size) as usize];
                unfinished.extend(pages.iter().map(|page| page.get()));
            }
        }
        let due = views.iter().zip(due).map(|(view, mut due)| {
            if full(view) {
                due.extend(self.stale.difference(&unfinished));
            }
            let mut due: Vec<u32> = due.into_iter().collect();
            due.sort_unstable();
            due
        });
        let due = due.collect();
        // Sequences that are not of the next step leave theirs behind, for others with the same prefix.
        self.stale = unfinished;
        due
    }
}
