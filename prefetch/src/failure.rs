//! Recovery of a request when blocks that it relies on cannot be loaded.

use kvblock::{BlockHash, BlockIdx, BlockSize};

/// Response to blocks that cannot be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum FailurePolicy {
    /// The request ends in an error.
    Fail,
    /// The request continues from the first bad block and recomputes the rest.
    #[default]
    Recompute,
}

/// Action of the scheduler on the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// No block was bad.
    Unaffected,
    /// End the request with an error, and drop the hashes `unhash` from the prefix cache.
    Fail {
        /// The first bad block and every loaded block after it, by position.
        unhash: Vec<BlockHash>,
    },
    /// Schedule the request again with `computed_tokens` computed tokens, and drop the hashes `unhash` from the prefix
    /// cache.
    Recompute {
        /// Number of tokens before the first bad block.
        computed_tokens: u32,
        /// Blocks to remove from the prefix cache, as in [`Recovery::Fail`].
        unhash: Vec<BlockHash>,
    },
}

impl FailurePolicy {
    /// Decides how to continue a request whose blocks `hashes` were to be loaded, starting at block `first` of the
    /// sequence. `bad` holds positions in `hashes`, in any order; `computed_tokens` includes the tokens of all these
    /// blocks.
    ///
    /// # Panics
    /// When a bad position lies outside of `hashes`.
    #[must_use]
    pub fn recover(
        self,
        hashes: &[BlockHash],
        first: BlockIdx,
        bad: &[u32],
        computed_tokens: u32,
        block_size: BlockSize,
    ) -> Recovery {
        let Some(&first_bad) = bad.iter().min() else { return Recovery::Unaffected };
        assert!(
            (first_bad as usize) < hashes.len(),
            "bad block {first_bad} of {} loaded blocks",
            hashes.len()
        );
        let unhash = hashes[first_bad as usize..].to_vec();
        match self {
            Self::Fail => Recovery::Fail { unhash },
            Self::Recompute => {
                let good_tokens = (first.get() + first_bad).saturating_mul(block_size.get());
                Recovery::Recompute { computed_tokens: computed_tokens.min(good_tokens), unhash }
            }
        }
    }
}
