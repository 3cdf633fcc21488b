//! Responses, as a whole and as a stream of events.

use std::sync::Arc;

use axum::response::Response;
use pagoda::{Event, FinishReason};
use serde_json::{Map, Value, json};

use super::output::{Change, Kind, Output};
use crate::answer::{Answer, Calls};
use crate::call::Call;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::reply;
use crate::running::Running;
use crate::server::{Server, unix_seconds};
use crate::sse::{Frames, Out};

/// A response as it grows.
#[derive(Debug)]
pub(super) struct ResponsesReply {
    server: Arc<Server>,
    id: String,
    created: u64,
    /// Fields that repeat the request's.
    repeated: Map<String, Value>,
    prompt_tokens: u32,
    cached_tokens: u32,
    output_tokens: u32,
    reasoning_tokens: u32,
    pub(super) answer: Answer,
    pub(super) engine: EngineUse,
    output: Output,
    end: Option<FinishReason>,
}

impl ResponsesReply {
    pub(super) fn new(
        server: &Arc<Server>,
        call: &Call,
        generation: &Generation,
        mut repeated: Map<String, Value>,
    ) -> Self {
        let sampling = &generation.sampling;
        repeated.insert("temperature".into(), sampling.temperature.into());
        repeated.insert("top_p".into(), sampling.top_p.into());
        repeated.insert("presence_penalty".into(), sampling.penalties.presence.into());
        repeated.insert("frequency_penalty".into(), sampling.penalties.frequency.into());
        Self {
            server: Arc::clone(server),
            id: call.id.prefixed("resp"),
            created: unix_seconds(),
            repeated,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            reasoning_tokens: 0,
            answer: Answer::new(Calls::Never, false),
            engine: EngineUse::default(),
            output: Output::default(),
            end: None,
        }
    }

    fn take(&mut self, event: &Event) -> Vec<Change> {
        self.engine.take(event);
        if matches!(event, Event::Token(_)) {
            self.output_tokens += 1;
            self.reasoning_tokens += u32::from(self.answer.is_thinking());
        }
        self.answer.push(event.text());
        if let Event::Started(started) = event {
            self.cached_tokens = started.cached.total();
        }
        if let Event::Finished(end) = event {
            self.prompt_tokens = end.usage.prompt_tokens;
            self.end = Some(end.reason.clone());
            self.answer.finish();
        }
        let mut changes = self.output.add(self.answer.take());
        if self.end.is_some() {
            changes.extend(self.output.finish());
        }
        changes
    }

    /// The state of the response: `in_progress`, `completed` or `incomplete`.
    fn status(&self) -> &'static str {
        match self.end {
            None => "in_progress",
            Some(FinishReason::Length) => "incomplete",
            Some(_) => "completed",
        }
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": { "cached_tokens": self.cached_tokens },
            "output_tokens": self.output_tokens,
            "output_tokens_details": { "reasoning_tokens": self.reasoning_tokens },
            "total_tokens": self.prompt_tokens + self.output_tokens,
        })
    }

    fn response(&self) -> Value {
        let ended = self.end.is_some();
        let cut = self.status() == "incomplete";
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": ended.then(unix_seconds),
            "status": self.status(),
            "incomplete_details": cut.then(|| json!({ "reason": "max_output_tokens" })),
            "error": null,
            "model": self.server.options.model_name,
            "output": if ended { self.output.json(cut) } else { json!([]) },
            "usage": ended.then(|| self.usage()),
            "previous_response_id": null,
            "parallel_tool_calls": true,
            "tool_choice": "auto",
            "tools": [],
            "text": { "format": { "type": "text" } },
            "reasoning": { "effort": null, "summary": null },
            "truncation": "disabled",
            "store": false,
            "background": false,
            "service_tier": "default",
            "top_logprobs": 0,
        });
        let object = response.as_object_mut().expect("is one");
        object.extend(self.repeated.clone());
        if ended {
            object.insert("pagoda".into(), reply::value(&self.engine));
        }
        response
    }

    pub(super) async fn whole(mut self, mut running: Running) -> Result<Response, ApiError> {
        while let Some(event) = running.next().await {
            let (_, event) = event?;
            self.take(&event);
        }
        Ok(reply::json(&self.response()))
    }
}

/// A response as a stream of numbered events.
pub(super) struct ResponsesChunks {
    reply: ResponsesReply,
    /// Number of events sent.
    sent: u64,
}

impl ResponsesChunks {
    pub(super) fn new(reply: ResponsesReply) -> Self {
        Self { reply, sent: 0 }
    }

    fn send(&mut self, kind: &str, mut event: Value, out: &mut Out) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sent.into();
        self.sent += 1;
        out.named(kind, &event);
    }

    /// Sends an event about the text of an item.
    fn send_text(&mut self, at: usize, step: &str, mut event: Value, out: &mut Out) {
        let item = self.reply.output.item(at);
        event["output_index"] = at.into();
        event["item_id"] = item.id.as_str().into();
        if !matches!(item.kind, Kind::Call { .. }) {
            event["content_index"] = 0.into();
        }
        if item.kind == Kind::Message && step != "added" {
            event["logprobs"] = json!([]);
        }
        let kind = format!("{}.{step}", item.event());
        self.send(&kind, event, out);
    }

    /// Sends the begin or the end of the part that contains the text of an item, if it has one.
    fn send_part(&mut self, at: usize, step: &str, part: &Value, out: &mut Out) {
        let item = self.reply.output.item(at);
        if !matches!(item.kind, Kind::Call { .. }) {
            let event = json!({ "output_index": at, "content_index": 0, "item_id": item.id, "part": part });
            self.send(&format!("response.content_part.{step}"), event, out);
        }
    }

    fn tell(&mut self, change: Change, out: &mut Out) {
        match change {
            Change::Begun(at) => {
                let item = self.reply.output.item(at);
                let mut part = item.part();
                part["text"] = "".into();
                let event = json!({ "output_index": at, "item": item.begun() });
                self.send("response.output_item.added", event, out);
                self.send_part(at, "added", &part, out);
            }
            Change::Grown(at, delta) => self.send_text(at, "delta", json!({ "delta": delta }), out),
            Change::Ended(at) => {
                let item = self.reply.output.item(at);
                let (part, text) = (item.part(), item.text.clone());
                let text = match &item.kind {
                    Kind::Call { name, .. } => json!({ "arguments": text, "name": name }),
                    _ => json!({ "text": text }),
                };
                self.send_text(at, "done", text, out);
                self.send_part(at, "done", &part, out);
                let cut = self.reply.status() == "incomplete";
                let item = self.reply.output.item(at).json(if cut { "incomplete" } else { "completed" });
                let event = json!({ "output_index": at, "item": item });
                self.send("response.output_item.done", event, out);
            }
        }
    }
}

impl Frames for ResponsesChunks {
    fn event(&mut self, _: usize, event: Event, out: &mut Out) -> Result<(), ApiError> {
        if self.sent == 0 {
            let response = self.reply.response();
            self.send("response.created", json!({ "response": response }), out);
            self.send("response.in_progress", json!({ "response": response }), out);
        }
        let changes = self.reply.take(&event);
        changes.into_iter().for_each(|change| self.tell(change, out));
        Ok(())
    }

    fn end(&mut self, out: &mut Out) {
        let response = self.reply.response();
        let kind = format!("response.{}", self.reply.status());
        self.send(&kind, json!({ "response": response }), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        let mut response = self.reply.response();
        response["status"] = "failed".into();
        response["error"] = json!({ "code": error.code.unwrap_or(error.kind()), "message": error.message });
        self.send("response.failed", json!({ "response": response }), out);
    }
}
