//! The host blocks that preempted sequences are swapped out to.

use crate::plan::HostBlockId;

/// Host blocks of one sequence, `[groups][blocks]`; `None` for null blocks of the table.
pub(crate) type SavedTables = Vec<Vec<Option<HostBlockId>>>;

/// The free host blocks; the block freed last is used first.
#[derive(Clone, Debug)]
pub(crate) struct HostPool {
    free: Vec<HostBlockId>,
}

impl HostPool {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self { free: (0..num_blocks).rev().map(HostBlockId::new).collect() }
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Returns the next `count` blocks, without taking them.
    ///
    /// # Panics
    /// If fewer are free.
    pub(crate) fn next(&self, count: usize) -> impl Iterator<Item = HostBlockId> {
        self.free[self.free.len() - count..].iter().rev().copied()
    }

    /// Takes the next `count` blocks.
    pub(crate) fn take(&mut self, count: usize) {
        self.free.truncate(self.free.len() - count);
    }

    pub(crate) fn release(&mut self, saved: &SavedTables) {
        self.free.extend(saved.iter().flatten().flatten().rev());
    }
}
