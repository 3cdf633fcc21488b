//! What goes in and what comes out.

use kvblock::{ExtraKeys, SeqId, TokenId};

/// A prompt and when to stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Tokens to continue.
    pub prompt: Vec<TokenId>,
    /// Most output tokens.
    pub max_tokens: u32,
    /// Output tokens before which neither the end of sequence nor a stop token ends the sequence.
    pub min_tokens: u32,
    /// End-of-sequence tokens of the model.
    pub eos_ids: Vec<TokenId>,
    /// Generate past the end of sequence.
    pub ignore_eos: bool,
    /// Further tokens that end the sequence.
    pub stop_ids: Vec<TokenId>,
    /// Lower runs first, under [`Policy::Priority`](crate::Policy::Priority), until age makes up for it.
    pub priority: i32,
    /// Independent continuations of the prompt, which is computed once.
    pub num_samples: u32,
    /// What separates equal prompts in the prefix cache.
    pub extra_keys: ExtraKeys,
    /// Leading prompt tokens whose KV a lower tier or another engine can deliver. What of them is not in the
    /// prefix cache is loaded once, while the request waits ([`StepPlan::loads`](crate::StepPlan::loads)).
    pub external_tokens: u32,
    /// Compute the whole prompt, without lookup or load, for example because log probabilities of all its
    /// tokens are wanted.
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

/// Why a sequence ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FinishReason {
    /// By an end-of-sequence or stop token, or because the caller found a stop text.
    Stopped,
    /// By its own limit or the context length.
    LengthCapped,
    /// By the caller, who lost interest.
    Aborted,
    /// By the caller, who cannot go on.
    Failed,
}

/// A sequence that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The sequence.
    pub seq: SeqId,
    /// Why it ended.
    pub reason: FinishReason,
    /// Prompt and output.
    pub tokens: Vec<TokenId>,
    /// Tokens of the prompt.
    pub prompt_len: u32,
    /// Prompt tokens that were found in the prefix cache, or loaded.
    pub cached_tokens: u32,
    /// Times the sequence was preempted.
    pub preemptions: u32,
}

impl Finished {
    /// The generated tokens, the one that stopped the sequence included.
    #[must_use]
    pub fn output(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len as usize..]
    }
}
