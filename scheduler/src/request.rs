//! Requests, and the results of their sequences.

use derive_setters::Setters;
use kvblock::{Ending, ExtraKeys, SeqId, TokenId};

/// A prompt and when to stop.
#[derive(Clone, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct Request {
    /// Prompt tokens.
    #[setters(skip)]
    pub prompt: Vec<TokenId>,
    /// Maximum number of output tokens; with 0, the prompt is computed and nothing is sampled.
    #[setters(skip)]
    pub max_tokens: u32,
    /// Minimum number of output tokens: before that, neither an end-of-sequence nor a stop token ends the
    /// sequence.
    pub min_tokens: u32,
    /// End-of-sequence tokens of the model.
    pub eos_ids: Vec<TokenId>,
    /// Whether the sequence continues past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Further tokens that end the sequence.
    pub stop_ids: Vec<TokenId>,
    /// Priority under [`Policy::Priority`](crate::Policy::Priority): lower values run first, unless age makes up for
    /// the difference.
    pub priority: i32,
    /// Number of independent continuations of the prompt, which is computed once.
    pub num_samples: u32,
    /// Keys that separate equal prompts in the prefix cache.
    pub extra_keys: ExtraKeys,
    /// Number of leading prompt tokens whose KV a lower tier or another engine can deliver. Tokens that are not in
    /// the prefix cache are loaded once, while the request waits ([`StepPlan::loads`](crate::StepPlan::loads)).
    pub external_tokens: u32,
    /// Whether the whole prompt is computed, without prefix lookup or load; for example to get the log probabilities
    /// of all its tokens.
    pub skip_prefix_lookup: bool,
}

impl Request {
    /// One sample of at most `max_tokens` tokens, with no other stop rule.
    #[must_use]
    pub fn new(prompt: Vec<TokenId>, max_tokens: u32) -> Self {
        Self {
            prompt,
            max_tokens,
            min_tokens: 0,
            eos_ids: Vec::new(),
            ignore_eos: false,
            stop_ids: Vec::new(),
            priority: 0,
            num_samples: 1,
            extra_keys: ExtraKeys::default(),
            external_tokens: 0,
            skip_prefix_lookup: false,
        }
    }
}

/// A sequence that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The sequence.
    pub seq: SeqId,
    /// Reason why the sequence ended.
    pub reason: Ending,
    /// Prompt and output.
    pub tokens: Vec<TokenId>,
    /// Number of tokens of the prompt.
    pub prompt_len: u32,
    /// Number of prompt tokens that were found in the prefix cache or loaded.
    pub cached_tokens: u32,
    /// Number of times the sequence was preempted.
    pub preemptions: u32,
}

impl Finished {
    /// The generated tokens, the one that stopped the sequence included.
    #[must_use]
    pub fn output(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len as usize..]
    }
}
