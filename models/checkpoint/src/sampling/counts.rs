//! Counts of the tokens that occurred.

use bytemuck::{Pod, Zeroable};
use rustc_hash::FxHashMap;

/// A token and its occurrences, in the device's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TokenCount {
    /// The token.
    pub token: u32,
    /// Number of occurrences in the output; 0 for a token of the prompt only.
    pub count: u32,
}

/// The distinct tokens of one sequence, with their occurrences in its output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    entries: Vec<TokenCount>,
    /// Entry of each token.
    index: FxHashMap<u32, u32>,
}

impl TokenCounts {
    /// Lists the tokens of a prompt, without occurrences in the output.
    pub fn add_prompt(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.entry(*token);
        }
    }

    /// Counts a token of the output. O(1).
    pub fn add_output(&mut self, token: u32) {
        self.entry(token).count += 1;
    }

    /// The entries, in the order of first occurrences.
    #[must_use]
    pub fn as_slice(&self) -> &[TokenCount] {
        &self.entries
    }

    fn entry(&mut self, token: u32) -> &mut TokenCount {
        let new = u32::try_from(self.entries.len()).expect("there are at most 2^32 tokens");
        let at = *self.index.entry(token).or_insert(new);
        if at == new {
            self.entries.push(TokenCount { token, count: 0 });
        }
        &mut self.entries[at as usize]
    }
}
