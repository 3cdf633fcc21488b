//! Numbers and token ranges of the blocks of a history.

use kvblock::BlockSize;

use crate::selection::count_u32;

/// Number of blocks for `tokens` tokens; the last one may be partial.
#[must_use]
pub fn num_blocks(tokens: usize, block_size: BlockSize) -> u32 {
    block_size.blocks_for(count_u32(tokens))
}

/// The tokens of a block: `block * block_size .. min((block + 1) * block_size, kv_len)`.
#[must_use]
pub fn block_tokens(block: u32, block_size: BlockSize, kv_len: usize) -> core::ops::Range<usize> {
    let first = block as usize * block_size.get() as usize;
    first..kv_len.min(first + block_size.get() as usize)
}
