//! Native sparse attention (NSA, arXiv 2502.11089) in models that were trained with it.

use super::ConfigError;

/// Attention of three branches, each behind a gate a head: to the means of blocks, to the blocks that weigh most among these, and
/// to a window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct NsaConfig {
    /// Tokens of a block, of which keys and values have a mean, and which is selected as a whole.
    pub block_size: u32,
    /// Blocks that a query attends at most in full, the [always selected](Self::FORCED) ones among them.
    pub block_counts: u32,
    /// Tokens of the window, the query's own among them.
    pub window_size: u32,
}

impl NsaConfig {
    /// Branches of the attention, each behind a gate a head.
    pub const BRANCHES: u32 = 3;
    /// First blocks that every query selects.
    pub const INIT_BLOCKS: u32 = 1;
    /// Last blocks that every query selects: its own and the one before.
    pub const LOCAL_BLOCKS: u32 = 2;
    /// Blocks that every query selects, if there are as many.
    pub const FORCED: u32 = Self::INIT_BLOCKS + Self::LOCAL_BLOCKS;

    /// Blocks of `block_size` tokens of which `block_counts` are attended, and a window of `window_size` tokens.
    #[must_use]
    pub const fn new(block_size: u32, block_counts: u32, window_size: u32) -> Self {
        Self { block_size, block_counts, window_size }
    }

    /// Tokens that a query attends at most in selected blocks.
    #[must_use]
    pub const fn selected_tokens(&self) -> u32 {
        self.block_counts * self.block_size
    }

    /// Tokens a block of the KV cache, if `wanted` are asked for: the largest power of two up to it whose blocks fill those of
    /// the attention.
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
