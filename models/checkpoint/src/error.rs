//! Errors of reading a model, or of using it for a request.

#[cfg(feature = "chat")]
use crate::ChatError;
#[cfg(feature = "tokenizer")]
use crate::TokenizerError;
use crate::sampling::SamplingError;
use crate::{ConfigError, RandomError, WeightError};

/// Any error of this crate. Functions return more specific error types.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The configuration is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tokenizer cannot be read, or refuses a text.
    #[cfg(feature = "tokenizer")]
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be read, or fails on a conversation.
    #[cfg(feature = "chat")]
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A text does not name a model of random weights.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A sampling parameter is out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
