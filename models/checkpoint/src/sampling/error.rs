//! Why a draw is refused.

/// A sampling parameter, or a mask, that no token can be drawn with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter out of its range.
    #[error("{name} is {value}, it must be {range}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// The range, in words.
        range: &'static str,
    },
    /// A listed token outside the vocabulary.
    #[error("{list}: token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The parameter that lists it.
        list: &'static str,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// Too many of the likeliest tokens.
    #[error("log-probabilities of {asked} tokens at each position, at most {max} are returned")]
    LogProbs {
        /// Tokens asked for.
        asked: u32,
        /// Maximum.
        max: u32,
    },
    /// A mask of another vocabulary.
    #[error("sample {sample} has a mask of {words} words, a vocabulary of {vocab} needs {expected}")]
    MaskWords {
        /// The sample's place in the step.
        sample: usize,
        /// Words of its mask.
        words: usize,
        /// Words that are needed.
        expected: usize,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// A mask and a list of suppressed tokens that leave no token of the vocabulary.
    #[error(
        "sample {sample} has no token left to draw: its mask allows {allowed} tokens, and all of these are suppressed"
    )]
    NothingAllowed {
        /// The sample's place in the step.
        sample: usize,
        /// Tokens of the vocabulary that the mask allows.
        allowed: u32,
    },
}
