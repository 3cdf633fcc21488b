//! Block tables: from the positions of a sequence to physical blocks and slots.

use crate::id::{BlockId, BlockIdx, BlockSize, SlotId, TokenIdx};

/// The block table of one sequence in one group. Entries are only appended, or replaced by the null block
/// once no query can reach them, or by a private copy before a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    block_size: BlockSize,
}

impl BlockTable {
    /// An empty table.
    #[must_use]
    pub const fn new(block_size: BlockSize) -> Self {
        Self { blocks: Vec::new(), block_size }
    }

    /// The physical blocks, by logical position: the row that kernels read.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The physical block at a logical position.
    ///
    /// # Panics
    /// When the position is beyond the end of the table.
    #[must_use]
    pub fn physical(&self, index: BlockIdx) -> BlockId {
        let found = self.blocks.get(index.get() as usize);
        *found.unwrap_or_else(|| panic!("{index:?} in a table of {} blocks", self.blocks.len()))
    }

    /// The slot where a token's key and value live.
    ///
    /// # Panics
    /// When the token is beyond the end of the table, or its block was freed.
    #[must_use]
    pub fn slot(&self, token: TokenIdx) -> SlotId {
        let block = self.physical(self.block_size.block_of(token));
        assert!(!block.is_null(), "{token:?} lies in the null block");
        self.block_size.slot(block, self.block_size.offset_of(token))
    }

    /// Number of blocks, null blocks included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the table has no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn extend(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        self.blocks.extend(blocks);
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut Vec<BlockId> {
        &mut self.blocks
    }
}
