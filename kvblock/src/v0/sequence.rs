use super::{BlockSpaceError, LogicalTokenBlock, SeqState};
use crate::{BlockIdx, BlockSize, SeqId, TokenId};

/// One sample of a request: its tokens, divided into logical blocks, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    id: SeqId,
    state: SeqState,
    block_size: BlockSize,
    prompt_len: u32,
    num_tokens: u32,
    logical_token_blocks: Vec<LogicalTokenBlock>,
}

impl Sequence {
    /// A waiting sequence that holds `prompt`.
    ///
    /// # Panics
    /// When the prompt has more than `u32::MAX` tokens.
    #[must_use]
    pub fn new(id: SeqId, prompt: &[TokenId], block_size: BlockSize) -> Self {
        let mut sequence = Self {
            id,
            state: SeqState::Waiting,
            block_size,
            prompt_len: 0,
            num_tokens: 0,
            logical_token_blocks: Vec::new(),
        };
        sequence.append_tokens(prompt);
        sequence.prompt_len = sequence.num_tokens;
        sequence
    }

    /// Appends a sampled token; it opens a new logical block when the last one is full.
    pub fn append_token(&mut self, id: TokenId) {
        self.append_tokens(&[id]);
    }

    fn append_tokens(&mut self, mut ids: &[TokenId]) {
        let added = u32::try_from(ids.len()).expect("more tokens than a u32 counts");
        self.num_tokens = self.num_tokens.checked_add(added).expect("more tokens than a u32 counts");
        while !ids.is_empty() {
            if self.logical_token_blocks.last().is_none_or(LogicalTokenBlock::is_full) {
                let number = BlockIdx::new(self.num_logical_blocks());
                self.logical_token_blocks.push(LogicalTokenBlock::new(number, self.block_size));
            }
            let last = self.logical_token_blocks.last_mut().expect("a block with room was just ensured");
            let (fitting, rest) = ids.split_at(ids.len().min(last.num_empty_slots() as usize));
            last.append_tokens(fitting);
            ids = rest;
        }
    }

    /// A copy of the sequence under another id, for beam search and parallel sampling. Fork its block table
    /// with [`BlockSpaceManager::fork`](super::BlockSpaceManager::fork).
    #[must_use]
    pub fn fork(&self, child: SeqId) -> Self {
        Self { id: child, ..self.clone() }
    }

    /// Moves to `next`.
    ///
    /// # Errors
    /// [`BlockSpaceError::IllegalTransition`] when the diagram of [`SeqState`] has no such arrow.
    pub fn set_state(&mut self, next: SeqState) -> Result<(), BlockSpaceError> {
        if !self.state.may_become(next) {
            return Err(BlockSpaceError::IllegalTransition { seq: self.id, from: self.state, to: next });
        }
        self.state = next;
        Ok(())
    }

    /// The id.
    #[must_use]
    pub const fn id(&self) -> SeqId {
        self.id
    }

    /// The state.
    #[must_use]
    pub const fn state(&self) -> SeqState {
        self.state
    }

    /// Tokens per logical block.
    #[must_use]
    pub const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Number of prompt tokens.
    #[must_use]
    pub const fn prompt_len(&self) -> u32 {
        self.prompt_len
    }

    /// Number of tokens, prompt and output so far.
    #[must_use]
    pub const fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// The logical blocks in order; all but the last are full.
    #[must_use]
    pub fn logical_token_blocks(&self) -> &[LogicalTokenBlock] {
        &self.logical_token_blocks
    }

    /// Number of logical blocks of the sequence.
    #[must_use]
    pub fn num_logical_blocks(&self) -> u32 {
        u32::try_from(self.logical_token_blocks.len()).expect("no more blocks than tokens, a u32")
    }

    /// The tokens in order, prompt first.
    pub fn token_ids(&self) -> impl Iterator<Item = TokenId> {
        self.logical_token_blocks.iter().flat_map(|block| block.token_ids().iter().copied())
    }
}
