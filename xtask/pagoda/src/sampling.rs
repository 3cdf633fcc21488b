//! How the next token is chosen from the logits.

use models::kernel::sample::Spec;

/// How the next token is chosen from the logits. The default is greedy: always the most likely token.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens whose probability is below this share of that of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Seed of the noise: the same seed, prompt and options give the same tokens. The samples of a request
    /// differ.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Always the most likely token.
    #[must_use]
    pub fn greedy() -> Self {
        Self::default()
    }

    /// Tokens by their probability after the logits are divided by `temperature`.
    #[must_use]
    pub fn at(temperature: f32) -> Self {
        Self { temperature, ..Self::default() }
    }

    /// Sets how many of the most likely tokens are kept; 0 keeps all.
    #[must_use]
    pub fn top_k(mut self, tokens: u32) -> Self {
        self.top_k = tokens;
        self
    }

    /// Sets the probability mass of the tokens that are kept; 1 keeps all.
    #[must_use]
    pub fn top_p(mut self, mass: f32) -> Self {
        self.top_p = mass;
        self
    }

    /// Sets the least probability of a token, as a share of that of the most likely one; 0 keeps all.
    #[must_use]
    pub fn min_p(mut self, share: f32) -> Self {
        self.min_p = share;
        self
    }

    /// Sets the seed of the noise.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same in the form that the sampling kernel reads, for the token at `position`.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a seed")]
    pub(crate) fn spec(&self, seed: u64, position: u32) -> Spec {
        Spec {
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            top_k: self.top_k,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            position,
            pad0: 0,
        }
    }
}
