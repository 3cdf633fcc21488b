//! OpenAI's API: common parts of its calls.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod log_probs;
pub(crate) mod messages;
mod parts;
pub(crate) mod responses;

use pagoda::{CachedTokens, FinishReason, LogProbs, Token};
use serde::Serialize;

/// Tokens that a call used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

impl Usage {
    /// Usage of prompts before anything was generated.
    pub(crate) fn of_prompts<'a>(prompts: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let tokens = prompts.into_iter().map(|prompt| prompt.len() as u64).sum();
        Self { prompt_tokens: tokens, total_tokens: tokens, ..Self::default() }
    }

    pub(crate) fn start(&mut self, cached: CachedTokens) {
        self.prompt_tokens_details.cached_tokens += u64::from(cached.total());
    }

    pub(crate) fn token(&mut self) {
        self.completion_tokens += 1;
        self.total_tokens += 1;
    }
}

/// The output of one sample, as far as it has not been sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) log_probs: Vec<LogProbs>,
    pub(crate) end: Option<End>,
}

/// Why a sample ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) reason: &'static str,
    pub(crate) stop: Option<Stop>,
}

/// The stop text or stop token that ended a sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    Token(u32),
    Text(String),
}

impl Output {
    pub(crate) fn token(&mut self, token: Token) {
        self.text.push_str(&token.text);
        self.ids.push(token.id);
        self.log_probs.extend(token.log_probs);
    }

    pub(crate) fn finish(&mut self, reason: &FinishReason, text: &str) {
        self.text.push_str(text);
        let stop = match reason {
            FinishReason::StopToken(id) => Some(Stop::Token(*id)),
            FinishReason::StopText(text) => Some(Stop::Text(text.clone())),
            _ => None,
        };
        self.end = Some(End { reason: reason.word(), stop });
    }
}
