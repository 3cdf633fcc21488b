//! Requests, and the sequences they end as.

use kvblock::{Ending, ExtraKeys, SeqId, TokenId};

/// A prompt and when to stop.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Prompt tokens.
    pub prompt: Vec<TokenId>,
    /// Maximum number of output tokens.
    pub max_tokens: u32,
    /// Minimum number of output tokens: before that, neither an end-of-sequence nor a stop token ends the
    /// sequence.
    pub min_tokens: u32,
    /// End-of-sequence tokens of the model.
    pub eos_ids: Vec<TokenId>,
    /// Continue past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Further tokens that end the sequence.
    pub stop_ids: Vec<TokenId>,
    /// Under [`Policy::Priority`](crate::Policy::Priority), lower values run first, unless age makes up for
    /// the difference.
    pub priority: i32,
    /// Number of independent continuations of the prompt, which is computed once.
    pub num_samples: u32,
    /// Keys that separate equal prompts in the prefix cache.
    pub extra_keys: ExtraKeys,
    /// Leading prompt tokens whose KV a lower tier or another engine can deliver. Those not in the prefix
    /// cache are loaded once, while the request waits ([`StepPlan::loads`](crate::StepPlan::loads)).
    pub external_tokens: u32,
    /// Compute the whole prompt, without prefix lookup or load; for example to get the log probabilities of
    /// all its tokens.
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

    /// Sets the minimum number of output tokens.
    #[must_use]
    pub fn min_tokens(self, tokens: u32) -> Self {
        Self { min_tokens: tokens, ..self }
    }

    /// Sets the end-of-sequence tokens of the model.
    #[must_use]
    pub fn eos_ids(self, ids: Vec<TokenId>) -> Self {
        Self { eos_ids: ids, ..self }
    }

    /// Continues past end-of-sequence tokens, or ends at them.
    #[must_use]
    pub fn ignore_eos(self, on: bool) -> Self {
        Self { ignore_eos: on, ..self }
    }

    /// Sets further tokens that end the sequence.
    #[must_use]
    pub fn stop_ids(self, ids: Vec<TokenId>) -> Self {
        Self { stop_ids: ids, ..self }
    }

    /// Sets the priority; lower values run first.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Sets the number of independent continuations.
    #[must_use]
    pub fn num_samples(self, samples: u32) -> Self {
        Self { num_samples: samples, ..self }
    }

    /// Sets the keys that separate equal prompts in the prefix cache.
    #[must_use]
    pub fn extra_keys(self, keys: ExtraKeys) -> Self {
        Self { extra_keys: keys, ..self }
    }

    /// Sets the number of leading prompt tokens that can be delivered.
    #[must_use]
    pub fn external_tokens(self, tokens: u32) -> Self {
        Self { external_tokens: tokens, ..self }
    }

    /// Turns the computation of the whole prompt on or off.
    #[must_use]
    pub fn skip_prefix_lookup(self, on: bool) -> Self {
        Self { skip_prefix_lookup: on, ..self }
    }
}

/// A sequence that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The sequence.
    pub seq: SeqId,
    /// Why it ended.
    pub reason: Ending,
    /// Prompt and output.
    pub tokens: Vec<TokenId>,
    /// Tokens of the prompt.
    pub prompt_len: u32,
    /// Prompt tokens that were found in the prefix cache or loaded.
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
