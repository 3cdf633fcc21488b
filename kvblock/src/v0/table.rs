use core::num::NonZeroU32;

use super::Device;
use crate::{BlockId, BlockIdx, BlockSize, SlotId, TokenIdx};

/// The physical blocks of one sequence, all on one device.
///
/// Under a sliding window the table repeats itself: logical block `i` reuses the physical block of
/// `i - window_blocks`. The table stores each physical block once and computes the repetitions, so that
/// reference counting, swapping and copy on write meet each block once, and all its repetitions follow when
/// it is replaced.
///
/// ```text
///  logical     i0  i1  i2  i3  i4         window_blocks = 3
///  table       b9  b8  b7  b9  b8
///  stored      b9  b8  b7
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTable {
    device: Device,
    /// Physical blocks without repetitions; at most `window_blocks`.
    blocks: Vec<BlockId>,
    /// Number of logical blocks, repetitions included.
    len: u32,
    window_blocks: Option<NonZeroU32>,
}

impl BlockTable {
    pub(super) const fn new(device: Device, window_blocks: Option<NonZeroU32>) -> Self {
        Self { device, blocks: Vec::new(), len: 0, window_blocks }
    }

    /// Returns the table with each block replaced by a block of another device, as `to` maps them.
    pub(super) fn relocated(&self, device: Device, mut to: impl FnMut(BlockId) -> BlockId) -> Self {
        let blocks = self.blocks.iter().map(|&block| to(block)).collect();
        Self { device, blocks, ..*self }
    }

    /// The block that the next logical block overwrites, or `None` when it gets a block of its own.
    pub(super) fn reused_next(&self) -> Option<BlockId> {
        let window = self.window_blocks?.get();
        (self.len >= window).then(|| self.blocks[(self.len % window) as usize])
    }

    /// Adds a logical block with a physical block of its own.
    pub(super) fn push(&mut self, block: BlockId) {
        assert!(
            self.reused_next().is_none(),
            "{} blocks fill the window of {:?}",
            self.len,
            self.window_blocks
        );
        self.blocks.push(block);
        self.len += 1;
    }

    /// Adds a logical block that overwrites the one leaving the window.
    pub(super) fn push_reuse(&mut self) {
        assert!(self.reused_next().is_some(), "{} blocks leave room in {:?}", self.len, self.window_blocks);
        self.len += 1;
    }

    /// Replaces the newest block.
    pub(super) fn replace_last(&mut self, block: BlockId) {
        let last = self.len.checked_sub(1).expect("an empty table has no last block");
        let at = self.stored_index(last);
        self.blocks[at] = block;
    }

    fn stored_index(&self, logical: u32) -> usize {
        self.window_blocks.map_or(logical, |window| logical % window) as usize
    }

    /// The device of all blocks of the table.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Number of logical blocks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the table has no block.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The physical block of logical block `index`, or `None` past the end.
    #[must_use]
    pub fn physical(&self, index: BlockIdx) -> Option<BlockId> {
        (index.get() < self.len).then(|| self.blocks[self.stored_index(index.get())])
    }

    /// The newest physical block.
    #[must_use]
    pub fn last(&self) -> Option<BlockId> {
        self.physical(BlockIdx::new(self.len.checked_sub(1)?))
    }

    /// The physical blocks in logical order, repetitions included: the row that kernels read.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> {
        (0..self.len).map(|i| self.blocks[self.stored_index(i)])
    }

    /// Each physical block once, in logical order.
    #[must_use]
    pub fn distinct(&self) -> &[BlockId] {
        &self.blocks
    }

    /// The slot of token `token`, or `None` past the end. Under a sliding window the slot of a token that has
    /// left the window belongs to a newer token.
    #[must_use]
    pub fn slot(&self, token: TokenIdx, block_size: BlockSize) -> Option<SlotId> {
        let block = self.physical(block_size.block_of(token))?;
        Some(block_size.slot(block, block_size.offset_of(token)))
    }
}
