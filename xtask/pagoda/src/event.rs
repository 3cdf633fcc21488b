//! Events: what comes of requests.

use std::fmt;
use std::time::{Duration, Instant};

use kvblock::SeqId;
use serde::{Serialize, Serializer};

use crate::usage::SparseUse;

/// Something that happened to a sequence. The samples of a request are sequences with consecutive ids.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A sequence got its next token.
    Token(Token),
    /// A sequence ended. It has no further events.
    Finished(Box<Finished>),
}

/// A token of a sequence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// The sequence.
    pub seq: SeqId,
    /// Its id.
    pub id: u32,
    /// Text that has become certain: whole characters, and nothing that may still become a stop text. Often
    /// empty; the pieces, joined, are the text of the output.
    pub text: String,
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Finished {
    /// The sequence.
    pub seq: SeqId,
    /// Why it ended.
    pub reason: FinishReason,
    /// The last piece of its text: what was held back.
    pub text: String,
    /// All generated tokens, including the one that stopped the sequence.
    pub output: Vec<u32>,
    /// What it used.
    pub usage: Usage,
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// An end-of-sequence token.
    EndOfSequence,
    /// One of the request's stop tokens.
    StopToken(u32),
    /// One of the request's stop texts.
    StopText(String),
    /// The request's maximum number of tokens, or the model's context length.
    Length,
    /// The caller no longer wanted it.
    Cancelled,
    /// The request's deadline.
    Deadline,
    /// KV that the request depended on could not be read, or its tokens could not be decoded.
    Failed,
}

impl FinishReason {
    /// The reason in one word: `stop`, `length`, `abort` or `error`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::EndOfSequence | Self::StopToken(_) | Self::StopText(_) => "stop",
            Self::Length => "length",
            Self::Cancelled | Self::Deadline => "abort",
            Self::Failed => "error",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Serialize for FinishReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// What a sequence used.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Leading prompt tokens that were found in the prefix cache or loaded from a tier.
    pub cached_tokens: u32,
    /// Generated tokens.
    pub generated_tokens: u32,
    /// Number of times that the sequence lost its KV blocks and was resumed.
    pub preemptions: u32,
    /// When it was submitted, started and got its tokens.
    pub clock: Clock,
    /// What the sparse-attention policy did.
    pub sparse: SparseUse,
}

/// When a sequence was submitted, first scheduled, and got its first and last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Submission.
    pub submitted: Instant,
    /// First schedule.
    pub started: Option<Instant>,
    /// First token.
    pub first: Option<Instant>,
    /// Last token so far.
    pub last: Option<Instant>,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { submitted: Instant::now(), started: None, first: None, last: None }
    }

    /// Time from the submission to the first token.
    #[must_use]
    pub fn to_first_token(&self) -> Option<Duration> {
        Some(self.first? - self.submitted)
    }
}
