//! Errors of reading a model, or of using it for a request.

use crate::sampling::SamplingError;
use crate::{ChatError, ConfigError, RandomError, TokenizerError, WeightError};

/// Any error of this crate. Functions return the specific ones.
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
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be read, or fails on a conversation.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A text names no model of random weights.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A sampling parameter is out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
