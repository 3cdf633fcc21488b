//! Requests: a prompt, and the way to continue it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use derive_setters::Setters;
use kvblock::{ExtraKeys, SeqId};
use serde::{Serialize, Serializer};

use models::Pooling;
use models::sampling::Sampling;

use crate::mask::TokenMask;

/// Id of a request in events, snapshots, notes and errors: any text of the caller's, such as the `x-request-id` of a call. Clones
/// share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The id of a request whose caller names none.
    pub(crate) fn of(first: SeqId) -> Self {
        Self(format!("request-{}", first.get()).into())
    }

    /// The text of the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for RequestId {
    fn from(id: T) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A prompt, and the way to continue it.
#[derive(Debug, Clone, Setters)]
#[non_exhaustive]
pub struct Request {
    /// Token ids.
    #[setters(skip)]
    pub prompt: Vec<u32>,
    /// Name of the request in events, snapshots, notes and errors; `None` for `request-N`, with a number that each
    /// engine counts up.
    #[setters(strip_option, into)]
    pub id: Option<RequestId>,
    /// Maximum number of tokens to generate; with 0, the prompt is computed and nothing is drawn.
    pub max_tokens: u32,
    /// Number of continuations, which share the prompt's blocks.
    pub samples: u32,
    /// Sampling of tokens, stop tokens other than the end of sequence, and the minimum number of tokens before a stop. The
    /// samples of a request draw with seeds of their own.
    pub sampling: Sampling,
    /// Mask that restricts the tokens of each sample.
    #[setters(strip_option)]
    pub mask: Option<Box<dyn TokenMask>>,
    /// Number of most likely tokens to return at each prompt position but the first, together with the
    /// log-probability of the prompt token. The whole prompt is then computed, whatever is cached.
    #[setters(strip_option)]
    pub prompt_log_probs: Option<u32>,
    /// Way to pool the prompt's embedding; `None` to return no embedding:
    /// [`Finished::embedding`](crate::Finished::embedding). For a mean, the whole prompt is computed, whatever is
    /// cached.
    #[setters(strip_option)]
    pub pooling: Option<Pooling>,
    /// Texts that end the output. The output contains neither a stop text nor the text after it.
    #[setters(skip)]
    pub stop: Vec<String>,
    /// Continue past the end of sequence: measurements need a known number of tokens.
    #[setters(bool)]
    pub ignore_eos: bool,
    /// Return text in addition to token ids, if the model has a tokenizer. Stop texts need it.
    #[setters(skip)]
    pub text: bool,
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// Salt that separates prefix-cache entries: only requests with the same salt share blocks.
    #[setters(strip_option, into)]
    pub salt: Option<String>,
    /// Priority: lower values run first, if the engine's [order](crate::EngineOptions::order) is by priority.
    pub priority: i32,
    /// Time at which the request ends, finished or not.
    #[setters(strip_option)]
    pub deadline: Option<Instant>,
    /// Certify the attention mass that the sparse policy keeps: [`SparseUse::bound`](crate::usage::SparseUse::bound). Engines
    /// without a policy, or with one that has no bound, refuse it.
    pub certify: bool,
}

impl Request {
    /// One greedy continuation of up to 256 tokens, with its text.
    #[must_use]
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            id: None,
            max_tokens: 256,
            samples: 1,
            sampling: Sampling::default(),
            mask: None,
            prompt_log_probs: None,
            pooling: None,
            stop: Vec::new(),
            ignore_eos: false,
            text: true,
            skip_special: true,
            salt: None,
            priority: 0,
            deadline: None,
            certify: false,
        }
    }

    /// A request for the embedding of a prompt, without a continuation.
    #[must_use]
    pub fn embedding(prompt: Vec<u32>, pooling: Pooling) -> Self {
        Self::new(prompt).max_tokens(0).pooling(pooling).without_text()
    }

    /// Adds a text that ends the output.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }

    /// Returns token ids only.
    #[must_use]
    pub fn without_text(mut self) -> Self {
        self.text = false;
        self
    }

    /// The keys that separate the blocks of this prompt from those of an equal prompt with another salt.
    pub(crate) fn extra_keys(&self) -> ExtraKeys {
        ExtraKeys { salt: self.salt.clone(), ..ExtraKeys::default() }
    }

    /// The part of the request that the scheduler needs. The prompt moves into it.
    pub(crate) fn take_for_scheduler(&mut self, eos_ids: &[u32]) -> scheduler::Request {
        let mut request = scheduler::Request::new(std::mem::take(&mut self.prompt), self.max_tokens);
        request.min_tokens = self.sampling.min_tokens;
        request.eos_ids = eos_ids.to_vec();
        request.ignore_eos = self.ignore_eos;
        request.stop_ids.clone_from(&self.sampling.stop_ids);
        request.priority = self.priority;
        request.num_samples = self.samples;
        request.extra_keys = self.extra_keys();
        request.skip_prefix_lookup = self.prompt_log_probs.is_some() || self.pooling == Some(Pooling::Mean);
        request
    }
}
