//! Errors of the scheduler.

use thiserror::Error;

/// Why a scheduler cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The token budget or the sequence limit is 0, so that no sequence would ever run.
    #[error("{max_num_batched_tokens} tokens and {max_num_seqs} sequences a step, both must be positive")]
    NoRoom {
        /// Token budget of a step.
        max_num_batched_tokens: u32,
        /// Sequence limit.
        max_num_seqs: u32,
    },
    /// The token budget is smaller than the longest sequence, although prompts are not chunked. A preempted sequence
    /// may have to be recomputed in one step.
    #[error(
        "chunked prefill is off, a step has {max_num_batched_tokens} tokens, sequences up to {max_model_len}"
    )]
    UnchunkedBudget {
        /// Token budget of a step.
        max_num_batched_tokens: u32,
        /// Maximum length of a sequence, in tokens.
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
    /// The prompt is empty, so that there is no position to compute logits for.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The request has no sample.
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
        /// Number of tokens of the prompt.
        prompt_tokens: usize,
        /// Maximum length of a sequence, prompt and output together, in tokens.
        context_len: u32,
    },
    /// The request could not finish even alone, with all others preempted.
    #[error(
        "{needed_blocks} blocks needed for {num_tokens} tokens, the pool has {pool_blocks}; \
         context length {context_len}"
    )]
    NeverFits {
        /// Number of blocks of the sequence at its greatest possible length.
        needed_blocks: u32,
        /// Number of blocks of the pool.
        pool_blocks: u32,
        /// Maximum length of the sequence in tokens.
        num_tokens: u32,
        /// Maximum length of a sequence, prompt and output together, in tokens.
        context_len: u32,
    },
    /// The request has more samples than sequences may run at the same time.
    #[error("{num_samples} samples of one prompt, at most {max_num_seqs} sequences run at a time")]
    TooManySamples {
        /// Number of samples that was requested.
        num_samples: u32,
        /// Sequence limit.
        max_num_seqs: u32,
    },
}
