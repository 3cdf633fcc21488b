//! Content of a sequence, as the prefix cache sees it.

use crate::extra_keys::ExtraKeys;
use crate::hash::BlockHash;
use crate::id::TokenId;

/// Tokens of a sequence as the prefix cache sees them: confirmed ones only, never speculative
/// ones.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SeqContent<'a> {
    /// All tokens of the sequence from position 0.
    pub tokens: &'a [TokenId],
    /// One hash for each full hash block of `tokens`; may be empty when nothing is cached.
    pub hashes: &'a [BlockHash],
    /// Keys that the hashes depend on in addition to the tokens, for events.
    pub extra_keys: Option<&'a ExtraKeys>,
}

impl<'a> SeqContent<'a> {
    /// All tokens of a sequence without extra keys, with one hash for each full hash block.
    #[must_use]
    pub const fn new(tokens: &'a [TokenId], hashes: &'a [BlockHash]) -> Self {
        Self { tokens, hashes, extra_keys: None }
    }

    /// Sets the keys that [`StoredBlocks`](crate::StoredBlocks) names.
    #[must_use]
    pub const fn extra_keys(self, keys: Option<&'a ExtraKeys>) -> Self {
        Self { extra_keys: keys, ..self }
    }
}
