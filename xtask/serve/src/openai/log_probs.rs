//! Log-probabilities in the two forms that OpenAI has for them.

use pagoda::{LogProbs, TokenLogProb, Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// Log-probabilities of the tokens of a chat answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogProbs {
    content: Vec<Entry>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TokenLogProb")]
struct Entry {
    #[serde(flatten)]
    token: Likely,
    top_logprobs: Vec<Likely>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LikelyToken")]
struct Likely {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogProbs {
    pub(crate) fn new(tokenizer: Option<&Tokenizer>, log_probs: &[LogProbs]) -> Self {
        let likely = |token: &TokenLogProb| {
            let bytes = bytes(tokenizer, token.token);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Likely { token: text, logprob: token.log_prob, bytes }
        };
        let entry = |at: &LogProbs| Entry {
            token: likely(&at.token),
            top_logprobs: at.top.iter().map(likely).collect(),
        };
        Self { content: log_probs.iter().map(entry).collect(), refusal: None }
    }
}

/// Log-probabilities of the tokens of a completion, in columns.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct TextLogProbs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Characters before each token, including the tokens sent before.
    text_offset: Vec<usize>,
}

impl TextLogProbs {
    /// Adds a token without a log-probability: the first of a prompt.
    pub(crate) fn push_first(&mut self, tokenizer: Option<&Tokenizer>, id: u32, offset: &mut usize) {
        self.push_token(tokenizer, id, offset);
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
    }

    /// Adds a token, and adds the number of its characters to `offset`.
    pub(crate) fn push(&mut self, tokenizer: Option<&Tokenizer>, at: &LogProbs, offset: &mut usize) {
        self.push_token(tokenizer, at.token.token, offset);
        self.token_logprobs.push(Some(at.token.log_prob));
        let named = |likely: &TokenLogProb| (text(tokenizer, likely.token), likely.log_prob.into());
        self.top_logprobs.push(Some(at.top.iter().chain([&at.token]).map(named).collect()));
    }

    fn push_token(&mut self, tokenizer: Option<&Tokenizer>, id: u32, offset: &mut usize) {
        let text = text(tokenizer, id);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
        self.tokens.push(text);
    }
}

/// Text of a single token. A token may be a part of a character, which the text replaces by U+FFFD.
fn text(tokenizer: Option<&Tokenizer>, id: u32) -> String {
    String::from_utf8_lossy(&bytes(tokenizer, id)).into_owned()
}

/// Bytes of a token, or a text with its id if the tokenizer has no bytes for it.
fn bytes(tokenizer: Option<&Tokenizer>, id: u32) -> Vec<u8> {
    let named = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(id));
    named.unwrap_or_else(|| format!("token_id:{id}").into_bytes())
}
