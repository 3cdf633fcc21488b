//! Errors of the scheduler.

use thiserror::Error;

/// Why a scheduler cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No token or no sequence would ever run.
    #[error("{max_num_batched_tokens} tokens and {max_num_seqs} sequences a step, both must be positive")]
    NoRoom {
        /// Token budget of a step.
        max_num_batched_tokens: u32,
        /// Sequence limit.
        max_num_seqs: u32,
    },
    /// Without chunks, the longest sequence must fit in one step: it may have to be recomputed whole.
    #[error(
        "chunked prefill is off, a step has {max_num_batched_tokens} tokens, sequences up to {max_model_len}"
    )]
    UnchunkedBudget {
        /// Token budget of a step.
        max_num_batched_tokens: u32,
        /// Longest sequence.
        max_model_len: u32,
    },
    /// The cache configuration is wrong.
    #[error("kv cache configuration")]
    Cache(#[from] kvblock::ConfigError),
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// An empty prompt has no position to compute logits for.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A request without any sample.
    #[error("0 samples, at least 1 is needed")]
    NoSamples,
    /// The minimum output length exceeds the maximum.
    #[error("at least {min_tokens} tokens asked for, at most {max_tokens}")]
    MinAboveMax {
        /// Minimum number of output tokens.
        min_tokens: u32,
        /// Maximum number of output tokens.
        max_tokens: u32,
    },
    /// The prompt leaves no room for an output token.
    #[error("a prompt of {prompt_tokens} tokens, the context length is {context_len}")]
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Longest sequence, prompt and output together.
        context_len: u32,
    },
    /// The request could not finish even alone, with all others preempted.
    #[error(
        "{needed_blocks} blocks needed for {num_tokens} tokens, the pool has {pool_blocks}; \
         context length {context_len}"
    )]
    NeverFits {
        /// Blocks of the sequence at its greatest possible length.
        needed_blocks: u32,
        /// Blocks of the pool.
        pool_blocks: u32,
        /// Maximum length of the sequence in tokens.
        num_tokens: u32,
        /// Longest sequence, prompt and output together.
        context_len: u32,
    },
    /// The samples of a request run at the same time, so they must all fit.
    #[error("{num_samples} samples of one prompt, at most {max_num_seqs} sequences run at a time")]
    TooManySamples {
        /// Requested number of samples.
        num_samples: u32,
        /// Sequence limit.
        max_num_seqs: u32,
    },
}
