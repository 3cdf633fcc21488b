use crate::{BlockIdx, BlockSize, TokenId};

/// A position without a token: `-1` in the `i32` tensors that kernels read.
pub const BLANK: TokenId = TokenId::MAX;

/// Up to `block_size` consecutive tokens of one sequence; only the last block of a sequence may have room
/// left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalTokenBlock {
    block_number: BlockIdx,
    /// `[block_size]`, [`BLANK`] from `num_tokens` on.
    positions: Box<[TokenId]>,
    num_tokens: u32,
}

impl LogicalTokenBlock {
    /// An empty block at `block_number` of its sequence.
    #[must_use]
    pub fn new(block_number: BlockIdx, block_size: BlockSize) -> Self {
        Self { block_number, positions: vec![BLANK; block_size.get() as usize].into(), num_tokens: 0 }
    }

    /// Appends `ids` to the tokens of the block.
    ///
    /// # Panics
    /// When there are more ids than [empty slots](Self::num_empty_slots).
    pub fn append_tokens(&mut self, ids: &[TokenId]) {
        let room = self.num_empty_slots() as usize;
        assert!(ids.len() <= room, "{} tokens appended to a block with room for {room}", ids.len());
        let start = self.num_tokens as usize;
        self.positions[start..start + ids.len()].copy_from_slice(ids);
        self.num_tokens += u32::try_from(ids.len()).expect("no more ids than the room, a u32");
    }

    /// The position of the block in its sequence.
    #[must_use]
    pub const fn block_number(&self) -> BlockIdx {
        self.block_number
    }

    /// Number of tokens the block can hold.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        u32::try_from(self.positions.len()).expect("made from a u32")
    }

    /// Number of tokens in the block.
    #[must_use]
    pub const fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// Number of tokens that the block has room for.
    #[must_use]
    pub fn num_empty_slots(&self) -> u32 {
        self.block_size() - self.num_tokens
    }

    /// Whether the block holds no token.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.num_tokens == 0
    }

    /// Whether the block has no room left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.num_empty_slots() == 0
    }

    /// The tokens of the block: the first `num_tokens` positions.
    #[must_use]
    pub fn token_ids(&self) -> &[TokenId] {
        &self.positions[..self.num_tokens as usize]
    }

    /// All positions, `[block_size]`, [`BLANK`] if there is no token yet.
    #[must_use]
    pub fn positions(&self) -> &[TokenId] {
        &self.positions
    }

    /// The newest token, or `None` for an empty block.
    #[must_use]
    pub fn last_token_id(&self) -> Option<TokenId> {
        self.token_ids().last().copied()
    }
}
