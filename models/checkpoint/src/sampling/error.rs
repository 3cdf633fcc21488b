//! Errors of sampling parameters.

/// A sampling parameter, or a mask, with which no token can be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter is out of its range.
    #[error("{name} is {value}, it must be {range}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// Value of the parameter.
        value: f32,
        /// The range, in words.
        range: &'static str,
    },
    /// A listed token is outside the vocabulary.
    #[error("{list}: token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The parameter that lists the token.
        list: &'static str,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// Too many of the likeliest tokens are requested.
    #[error("log-probabilities of {asked} tokens at each position, at most {max} are returned")]
    LogProbs {
        /// Number of tokens requested.
        asked: u32,
        /// Maximum.
        max: u32,
    },
    /// A mask has the length of another vocabulary.
    #[error("sample {sample} has a mask of {words} words, a vocabulary of {vocab} needs {expected}")]
    MaskWords {
        /// Index of the sample in the step.
        sample: usize,
        /// Number of words of its mask.
        words: usize,
        /// Number of words that are needed.
        expected: usize,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// A mask and a list of suppressed tokens leave no token of the vocabulary.
    #[error(
        "sample {sample} has no token left to draw: its mask allows {allowed} tokens, and all of these are suppressed"
    )]
    NothingAllowed {
        /// Index of the sample in the step.
        sample: usize,
        /// Number of tokens of the vocabulary that the mask allows.
        allowed: u32,
    },
}
