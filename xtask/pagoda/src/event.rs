//! Events: the results of requests.

use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use kvblock::SeqId;
use models::sampling::LogProbs;
use serde::{Serialize, Serializer};

use crate::request::RequestId;
use crate::saves::Saves;
use crate::usage::SparseUse;

/// Something that happened to a sequence. The samples of a request are sequences with consecutive ids.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A sequence started: it was scheduled for its first step.
    Started(Started),
    /// Prompt tokens were scored for a request that wants their log-probabilities.
    Prompt(PromptLogProbs),
    /// A sequence got its next token.
    Token(Token),
    /// A sequence ended. It has no further events.
    Finished(Box<Finished>),
}

impl Event {
    /// Returns the first sequence of the request that the event belongs to.
    #[must_use]
    pub fn request(&self) -> SeqId {
        let (seq, sample) = match self {
            Self::Started(started) => (started.seq, 0),
            Self::Prompt(prompt) => (prompt.seq, 0),
            Self::Token(token) => (token.seq, token.sample),
            Self::Finished(finished) => (finished.seq, finished.sample),
        };
        SeqId::new(seq.get() - u64::from(sample))
    }

    /// The text that the event adds to its sequence, often none. The texts of all events of a sequence, joined, are
    /// the text of its output.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Token(token) => &token.text,
            Self::Finished(finished) => &finished.text,
            Self::Started(_) | Self::Prompt(_) => "",
        }
    }
}

/// The start of a sequence. The further samples of a request start with its first one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// The request.
    pub id: RequestId,
    /// The sequence.
    pub seq: SeqId,
    /// Time at which the sequence was scheduled: [`Clock::started`].
    pub at: Instant,
    /// Number of tokens of its prompt.
    pub prompt_tokens: u32,
    /// Number of leading prompt tokens that need not be computed, by tier.
    pub cached: CachedTokens,
}

/// A token of a sequence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// The sequence.
    pub seq: SeqId,
    /// Index of the sample in its request.
    pub sample: u32,
    /// Time at which the results of the token's step arrived. It is independent of when the event is read, so
    /// latencies can be computed from it.
    pub at: Instant,
    /// Id of the token.
    pub id: u32,
    /// Text that can no longer change: whole characters, without a possible beginning of a stop text. Often empty;
    /// the pieces, joined, are the text of the output.
    pub text: String,
    /// Log-probabilities at the position of the token, if the request asks for log-probabilities.
    pub log_probs: Option<LogProbs>,
}

/// Log-probabilities of consecutive prompt tokens. The first token has none; the others are returned in order, a chunk at a
/// time.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PromptLogProbs {
    /// First sequence of the request.
    pub seq: SeqId,
    /// Position of the first token in the prompt.
    pub first: u32,
    /// Log-probabilities of each token.
    pub log_probs: Vec<LogProbs>,
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Finished {
    /// The request.
    pub id: RequestId,
    /// The sequence.
    pub seq: SeqId,
    /// Index of the sample in its request.
    pub sample: u32,
    /// Reason why the sequence ended.
    pub reason: FinishReason,
    /// The last piece of its text, which was held back as a possible stop text.
    pub text: String,
    /// All generated tokens, including the one that stopped the sequence.
    pub output: Vec<u32>,
    /// Embedding of the prompt, if the request pools it and its prompt was computed, `[hidden]`: final hidden states, after the
    /// model's last norm, pooled to one vector that is not normalised.
    pub embedding: Option<Vec<f32>>,
    /// Resources that the sequence used.
    pub usage: Usage,
    /// The saves of the blocks that the sequence filled; `None` without KV tiers. Once these saves have ended, other
    /// engines with the same store find the prompt.
    pub saves: Option<Saves>,
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
    /// The request's mask found the output complete.
    Complete,
    /// The request's mask left no token to draw.
    NothingAllowed,
    /// The request's maximum number of tokens, or the model's context length.
    Length,
    /// The caller cancelled the request.
    Cancelled,
    /// The request's deadline.
    Deadline,
    /// KV that the request depended on could not be read, or its tokens could not be decoded.
    Failed,
    /// Some logits of the next token are infinite or not a number.
    NonFinite {
        /// Number of the step.
        step: u64,
    },
}

impl FinishReason {
    /// The reason in one word: `stop`, `length`, `abort` or `error`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::EndOfSequence | Self::StopToken(_) | Self::StopText(_) | Self::Complete => "stop",
            Self::Length => "length",
            Self::Cancelled | Self::Deadline => "abort",
            Self::NothingAllowed | Self::Failed | Self::NonFinite { .. } => "error",
        }
    }

    /// The error that ended the sequence; `None` if it was finished or cancelled.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        match self {
            Self::NothingAllowed => Some("the constraint on the output leaves no token".to_owned()),
            Self::Failed => Some("KV could not be read, or tokens not decoded".to_owned()),
            Self::NonFinite { step } => Some(format!("non-finite logits in step {step}")),
            _ => None,
        }
    }
}

impl FinishReason {
    /// Whether the sequence ended by a failure, so that its text is not the requested one.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.word(), "abort" | "error")
    }

    /// Returns the reason of the sequence's failure, as a message.
    pub(crate) fn of_failure(&self) -> String {
        match self {
            Self::Cancelled => "cancelled".to_owned(),
            Self::Deadline => "its deadline has passed".to_owned(),
            reason => reason.error().unwrap_or_default(),
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

/// Resources used by a sequence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of leading prompt tokens that were not computed, by tier.
    pub cached: CachedTokens,
    /// Number of generated tokens.
    pub generated_tokens: u32,
    /// Number of times that the sequence lost its KV blocks and was resumed.
    pub preemptions: u32,
    /// Times at which the sequence was submitted, started and got its tokens.
    pub clock: Clock,
    /// Density and bound of sparse attention.
    pub sparse: SparseUse,
}

/// Number of leading prompt tokens that need not be computed, by the tier that held their KV.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CachedTokens {
    /// Number of tokens found in the prefix cache on the device.
    pub device: u32,
    /// Number of tokens found in host memory.
    pub host: u32,
    /// Number of tokens found on the local disk.
    pub disk: u32,
    /// Number of tokens found in the remote store.
    pub remote: u32,
}

impl CachedTokens {
    /// The tokens of all tiers.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.device + self.host + self.disk + self.remote
    }
}

impl AddAssign for CachedTokens {
    fn add_assign(&mut self, other: Self) {
        self.device += other.device;
        self.host += other.host;
        self.disk += other.disk;
        self.remote += other.remote;
    }
}

/// Times at which a sequence was submitted, first scheduled, and got its first and last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Clock {
    /// Time of the submission.
    pub submitted: Instant,
    /// Time of the first schedule.
    pub started: Option<Instant>,
    /// Time of the first token.
    pub first: Option<Instant>,
    /// Time of the last token so far.
    pub last: Option<Instant>,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { submitted: Instant::now(), started: None, first: None, last: None }
    }

    /// Time from the submission to the first schedule.
    #[must_use]
    pub fn queue(&self) -> Option<Duration> {
        Some(self.started? - self.submitted)
    }

    /// Time from the submission to the first token.
    #[must_use]
    pub fn to_first_token(&self) -> Option<Duration> {
        Some(self.first? - self.submitted)
    }

    /// Time from the first schedule to the first token.
    #[must_use]
    pub fn prefill(&self) -> Option<Duration> {
        Some(self.first? - self.started?)
    }

    /// Time from the first token to the last one so far.
    #[must_use]
    pub fn decode(&self) -> Option<Duration> {
        Some(self.last? - self.first?)
    }
}
