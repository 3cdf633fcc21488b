//! OpenAI's API: common parts of its calls.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod log_probs;
pub(crate) mod messages;
mod parts;
pub(crate) mod responses;

use pagoda::FinishReason;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answering::{self, End, Out};
use crate::error::ApiError;
use crate::generation::StreamOptions;

/// Tokens that a call used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct PromptDetails {
    /// Number of prompt tokens that were not computed.
    cached_tokens: u64,
}

impl From<answering::Usage> for Usage {
    fn from(used: answering::Usage) -> Self {
        Self {
            prompt_tokens: used.prompt_tokens,
            completion_tokens: used.output_tokens,
            total_tokens: used.prompt_tokens + used.output_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: used.cached_tokens },
        }
    }
}

/// Value of the field `usage` in chunks before the last: `None` for no field, `Some(None)` for null.
fn usage_of_chunk(options: StreamOptions, used: answering::Usage) -> Option<Option<Usage>> {
    let running = options.states_usage().then(|| used.into());
    (options.ends_with_usage() || running.is_some()).then_some(running)
}

/// The stop text or stop token that ended an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(crate) enum Stop {
    Token(u32),
    Text(String),
}

/// OpenAI's `finish_reason`, and vLLM's `stop_reason`.
pub(crate) fn reasons(end: Option<End>) -> (Option<&'static str>, Option<Stop>) {
    match end {
        None => (None, None),
        Some(End { reason, has_called: true }) if reason.word() == "stop" => (Some("tool_calls"), None),
        Some(End { reason, .. }) => {
            let word = reason.word();
            let stop = match reason {
                FinishReason::StopToken(id) => Some(Stop::Token(id)),
                FinishReason::StopText(text) => Some(Stop::Text(text)),
                _ => None,
            };
            (Some(word), stop)
        }
    }
}

/// Ends a stream that failed.
pub(crate) fn fail(error: &ApiError, out: &mut Out) {
    out.text(&error.to_json());
    out.text("[DONE]");
}
