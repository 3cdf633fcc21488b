//! Answers in Anthropic's shape.

use axum::response::Response;
use pagoda::FinishReason;
use serde_json::{Map, Value, json};

use super::error_json;
use pagoda::tools::{AnswerPart, CallPart, readable};

use crate::answering::{Answering, Delta, End, Out, Render};
use crate::error::ApiError;
use crate::ids::new_id;
use crate::reply::{self, value};

/// Writes an answer as a message, whole or as a stream of named events.
#[derive(Debug)]
pub(super) struct MessagesRender {
    id: String,
    /// The kind of the block that grows.
    open: Option<Kind>,
    /// Number of blocks that have begun.
    blocks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

/// Why the answer ended, and the stop text if it was one.
fn stop(end: Option<&End>) -> (Option<&'static str>, Option<&str>) {
    let Some(End { reason, has_called }) = end else { return (None, None) };
    match reason {
        FinishReason::Length => (Some("max_tokens"), None),
        _ if *has_called => (Some("tool_use"), None),
        FinishReason::StopText(text) => (Some("stop_sequence"), Some(text)),
        _ => (Some("end_turn"), None),
    }
}

/// Usage, in which cached tokens are counted apart from the others.
fn usage(answering: &Answering) -> Value {
    let used = answering.usage;
    json!({
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "cache_read_input_tokens": used.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": used.output_tokens,
        // The API's document requires these, and nothing here has them.
        "cache_creation": null,
        "inference_geo": null,
        "output_tokens_details": null,
        "server_tool_use": null,
        "service_tier": "standard",
    })
}

/// A call that the model itself makes, and no program of a server's.
fn tool_use(name: &str, input: Map<String, Value>) -> Value {
    let caller = json!({ "type": "direct" });
    json!({ "type": "tool_use", "id": new_id("toolu"), "name": name, "input": input, "caller": caller })
}

/// A text without citations. The API's document requires the field, and some clients take a list only.
fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text, "citations": [] })
}

impl MessagesRender {
    pub(super) fn new(id: String) -> Self {
        Self { id, open: None, blocks: 0 }
    }

    fn message(&self, answering: &Answering, content: &[Value], end: Option<&End>) -> Value {
        let (reason, text) = stop(end);
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": answering.server.options.model_name,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": text,
            "stop_details": null,
            "container": null,
            "usage": usage(answering),
        });
        if end.is_some() {
            message["pagoda"] = value(&answering.engine);
        }
        message
    }

    fn begin_block(&mut self, kind: Kind, block: &Value, out: &mut Out) {
        self.close(out);
        let start = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
        out.named("content_block_start", &start);
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn add(&self, delta: &Value, out: &mut Out) {
        let delta = json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta });
        out.named("content_block_delta", &delta);
    }

    fn close(&mut self, out: &mut Out) {
        if self.open.take().is_some() {
            let stop = json!({ "type": "content_block_stop", "index": self.blocks - 1 });
            out.named("content_block_stop", &stop);
        }
    }

    fn send(&mut self, piece: AnswerPart, out: &mut Out) {
        match piece {
            AnswerPart::Thought(thought) => {
                if self.open != Some(Kind::Thinking) {
                    let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.begin_block(Kind::Thinking, &block, out);
                }
                self.add(&json!({ "type": "thinking_delta", "thinking": thought }), out);
            }
            AnswerPart::Text(text) => {
                if self.open != Some(Kind::Text) {
                    self.begin_block(Kind::Text, &text_block(""), out);
                }
                self.add(&json!({ "type": "text_delta", "text": text }), out);
            }
            AnswerPart::Call(CallPart { name, arguments, .. }) => {
                if let Some(name) = name {
                    self.begin_block(Kind::ToolUse, &tool_use(&name, Map::new()), out);
                }
                if !arguments.is_empty() {
                    self.add(&json!({ "type": "input_json_delta", "partial_json": arguments }), out);
                }
            }
        }
    }
}

impl Render for MessagesRender {
    fn begin(&mut self, answering: &Answering, out: &mut Out) {
        let message = self.message(answering, &[], None);
        out.named("message_start", &json!({ "type": "message_start", "message": message }));
    }

    fn grow(&mut self, _: &Answering, delta: Delta, out: &mut Out) {
        delta.pieces.into_iter().for_each(|piece| self.send(piece, out));
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        self.close(out);
        let (reason, text) = stop(answering.end_of(0));
        let delta = json!({ "stop_reason": reason, "stop_sequence": text });
        let (usage, engine) = (usage(answering), value(&answering.engine));
        let delta = json!({ "type": "message_delta", "delta": delta, "usage": usage, "pagoda": engine });
        out.named("message_delta", &delta);
        out.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, _: &Answering, error: &ApiError, out: &mut Out) {
        out.named_text("error", &error_json(error));
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        let block = |piece| match piece {
            AnswerPart::Thought(thought) => {
                json!({ "type": "thinking", "thinking": thought, "signature": "" })
            }
            AnswerPart::Text(text) => text_block(&text),
            AnswerPart::Call(CallPart { name, arguments, .. }) => {
                tool_use(&name.unwrap_or_default(), readable(&arguments))
            }
        };
        let pieces = deltas.into_iter().flat_map(|delta| delta.pieces);
        let mut content: Vec<Value> = pieces.map(block).collect();
        if content.iter().all(|block| block["type"] == "thinking") {
            content.push(text_block(""));
        }
        reply::json(&self.message(answering, &content, answering.end_of(0)))
    }
}
