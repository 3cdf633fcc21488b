//! Native sparse attention (NSA, arXiv 2502.11089) in models that were trained with it.

use super::ConfigError;

/// Attention with three gated branches per head: to the means of blocks, to the blocks with the largest weights, and to a window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct NsaConfig {
    /// Number of tokens of a block. Attention reads the means of each block's keys and values, and selects whole
    /// blocks.
    pub block_size: u32,
    /// Maximum number of blocks that a query attends in full, including the [always selected](Self::FORCED) ones.
    pub block_counts: u32,
    /// Number of tokens of the window, including the query's own.
    pub window_size: u32,
}

impl NsaConfig {
    /// Number of gated branches per head.
    pub const BRANCHES: u32 = 3;
    /// Number of blocks at the start of the sequence that every query selects.
    pub const INIT_BLOCKS: u32 = 1;
    /// Number of last blocks that every query selects: its own and the one before.
    pub const LOCAL_BLOCKS: u32 = 2;
    /// Number of blocks that every query selects, if the sequence has as many.
    pub const FORCED: u32 = Self::INIT_BLOCKS + Self::LOCAL_BLOCKS;

    /// Attention to `block_counts` selected blocks of `block_size` tokens, and to a window of `window_size` tokens.
    #[must_use]
    pub const fn new(block_size: u32, block_counts: u32, window_size: u32) -> Self {
        Self { block_size, block_counts, window_size }
    }

    /// Returns the maximum number of tokens that a query attends in selected blocks.
    #[must_use]
    pub const fn selected_tokens(&self) -> u32 {
        self.block_counts * self.block_size
    }

    /// Returns the number of tokens per block of the KV cache: the largest power of two, at most `wanted`, that
    /// divides the attention's block size.
    #[must_use]
    pub fn cache_block(&self, wanted: u32) -> u32 {
        wanted.min(1 << self.block_size.trailing_zeros())
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        super::latent::check("block_size", self.block_size, 1 << 12, 4, "a multiple of 4 up to 4096")?;
        if !(Self::FORCED..=1 << 12).contains(&self.block_counts) {
            let (field, value) = ("block_counts", self.block_counts.to_string());
            let rule = "from 3, the blocks that every query selects, to 4096";
            return Err(ConfigError::Invalid { field, value, rule });
        }
        super::latent::check("window_size", self.window_size, u32::MAX, 1, "at least 1")
    }
}
