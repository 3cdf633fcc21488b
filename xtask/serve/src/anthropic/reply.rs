//! Answers in Anthropic's shape.

use std::sync::Arc;

use axum::response::Response;
use pagoda::{Event, FinishReason};
use serde_json::{Value, json};

use super::error_json;
use crate::answer::{Answer, Parts, ToolCall};
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::reply::{json, value};
use crate::running::Running;
use crate::server::Server;
use crate::sse::{Frames, Out};

/// An answer as it grows.
#[derive(Debug)]
pub(super) struct MessagesReply {
    server: Arc<Server>,
    id: String,
    prompt_tokens: usize,
    cached_tokens: usize,
    output_tokens: u32,
    answer: Answer,
    pub(super) engine: EngineUse,
    end: Option<FinishReason>,
}

impl MessagesReply {
    pub(super) fn new(server: &Arc<Server>, id: String, prompt_tokens: usize, answer: Answer) -> Self {
        let server = Arc::clone(server);
        let engine = EngineUse::default();
        Self { server, id, prompt_tokens, cached_tokens: 0, output_tokens: 0, answer, engine, end: None }
    }

    fn take(&mut self, event: &Event) {
        self.engine.take(event);
        self.answer.push(event.text());
        match event {
            Event::Started(started) => self.cached_tokens = started.cached.total() as usize,
            Event::Token(_) => self.output_tokens += 1,
            Event::Finished(end) => {
                self.answer.finish();
                self.end = Some(end.reason.clone());
            }
            _ => {}
        }
    }

    /// Why the answer ended, and the stop text if it was one.
    fn stop(&self) -> (&'static str, Option<&str>) {
        match &self.end {
            Some(FinishReason::Length) => ("max_tokens", None),
            _ if self.answer.has_called() => ("tool_use", None),
            Some(FinishReason::StopText(text)) => ("stop_sequence", Some(text)),
            _ => ("end_turn", None),
        }
    }

    /// Usage, in which cached tokens are counted apart from the others.
    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens - self.cached_tokens,
            "cache_read_input_tokens": self.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.output_tokens,
            // What the API requires and nothing here has.
            "cache_creation": null,
            "inference_geo": null,
            "output_tokens_details": null,
            "server_tool_use": null,
            "service_tier": "standard",
        })
    }

    fn message(&self, content: &[Value]) -> Value {
        let (reason, text) = self.stop();
        let ended = self.end.is_some();
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.server.options.model_name,
            "content": content,
            "stop_reason": ended.then_some(reason),
            "stop_sequence": text,
            "stop_details": null,
            "container": null,
            "usage": self.usage(),
        });
        if ended {
            message["pagoda"] = value(&self.engine);
        }
        message
    }

    pub(super) async fn whole(mut self, mut running: Running) -> Result<Response, ApiError> {
        while let Some(event) = running.next().await {
            let (_, event) = event?;
            self.take(&event);
        }
        let Parts { text, thought, calls, .. } = self.answer.take();
        let mut content = Vec::new();
        if !thought.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": thought, "signature": "" }));
        }
        if !text.is_empty() || calls.is_empty() {
            content.push(json!({ "type": "text", "text": text, "citations": null }));
        }
        for ToolCall { name, arguments } in calls {
            let input: Value = serde_json::from_str(&arguments).expect("calls have arguments in JSON");
            content.push(tool_use(&name, &input));
        }
        Ok(json(&self.message(&content)))
    }
}

/// A call that the model itself makes, and no program of a server's.
fn tool_use(name: &str, input: &Value) -> Value {
    let caller = json!({ "type": "direct" });
    json!({ "type": "tool_use", "id": ToolCall::new_id("toolu"), "name": name, "input": input, "caller": caller })
}

/// An answer as a stream of named events.
pub(super) struct MessagesChunks {
    reply: MessagesReply,
    begun: bool,
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

impl MessagesChunks {
    pub(super) fn new(reply: MessagesReply) -> Self {
        Self { reply, begun: false, open: None, blocks: 0 }
    }

    /// Adds to the block of a kind, which begins with `block` if it is not the one that grows.
    fn grow(&mut self, kind: Kind, block: &Value, delta: &Value, out: &mut Out) {
        if self.open != Some(kind) || kind == Kind::ToolUse {
            self.close(out);
            let start =
                json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
            out.named("content_block_start", &start);
            self.open = Some(kind);
            self.blocks += 1;
        }
        let delta = json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta });
        out.named("content_block_delta", &delta);
    }

    fn close(&mut self, out: &mut Out) {
        if self.open.take().is_some() {
            let stop = json!({ "type": "content_block_stop", "index": self.blocks - 1 });
            out.named("content_block_stop", &stop);
        }
    }

    fn send(&mut self, parts: Parts, out: &mut Out) {
        let Parts { text, thought, calls, .. } = parts;
        if !thought.is_empty() {
            let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
            self.grow(Kind::Thinking, &block, &json!({ "type": "thinking_delta", "thinking": thought }), out);
        }
        if !text.is_empty() {
            let block = json!({ "type": "text", "text": "", "citations": null });
            self.grow(Kind::Text, &block, &json!({ "type": "text_delta", "text": text }), out);
        }
        for ToolCall { name, arguments } in calls {
            let delta = json!({ "type": "input_json_delta", "partial_json": arguments });
            self.grow(Kind::ToolUse, &tool_use(&name, &json!({})), &delta, out);
        }
    }
}

impl Frames for MessagesChunks {
    fn event(&mut self, _: usize, event: Event, out: &mut Out) -> Result<(), ApiError> {
        self.reply.take(&event);
        if !std::mem::replace(&mut self.begun, true) {
            let message = self.reply.message(&[]);
            out.named("message_start", &json!({ "type": "message_start", "message": message }));
        }
        let parts = self.reply.answer.take();
        self.send(parts, out);
        Ok(())
    }

    fn end(&mut self, out: &mut Out) {
        self.close(out);
        let (reason, text) = self.reply.stop();
        let delta = json!({ "stop_reason": reason, "stop_sequence": text });
        let engine = value(&self.reply.engine);
        let delta =
            json!({ "type": "message_delta", "delta": delta, "usage": self.reply.usage(), "pagoda": engine });
        out.named("message_delta", &delta);
        out.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.named_text("error", &error_json(error));
    }
}
