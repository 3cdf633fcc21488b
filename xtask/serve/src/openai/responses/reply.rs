//! Responses, as a whole and as a stream of events.

use axum::response::Response;
use pagoda::FinishReason;
use serde_json::{Map, Value, json};

use super::output::{Change, Kind, Output};
use crate::answering::{Answering, Delta, Out, Render};
use crate::error::ApiError;
use crate::reply;
use crate::server::unix_seconds;

/// Writes an answer in the form of responses: as one, or as a stream of numbered events.
#[derive(Debug)]
pub(super) struct ResponsesRender {
    id: String,
    /// Fields that repeat the request's.
    repeated: Map<String, Value>,
    output: Output,
    /// Number of events sent.
    sent: u64,
}

/// The state of a response: `in_progress`, `completed` or `incomplete`.
fn status(answering: &Answering) -> &'static str {
    match answering.end_of(0).map(|end| &end.reason) {
        None => "in_progress",
        Some(FinishReason::Length) => "incomplete",
        Some(_) => "completed",
    }
}

fn usage(answering: &Answering) -> Value {
    let used = answering.usage;
    json!({
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": { "cached_tokens": used.cached_tokens },
        "output_tokens": used.output_tokens,
        "output_tokens_details": { "reasoning_tokens": used.reasoning_tokens },
        "total_tokens": used.prompt_tokens + used.output_tokens,
    })
}

impl ResponsesRender {
    pub(super) fn new(id: String, repeated: Map<String, Value>) -> Self {
        Self { id, repeated, output: Output::default(), sent: 0 }
    }

    /// Adds to the output; returns what has changed.
    fn add(&mut self, delta: Delta) -> Vec<Change> {
        let mut changes = self.output.add(delta.pieces);
        if delta.end.is_some() {
            changes.extend(self.output.finish());
        }
        changes
    }

    fn response(&self, answering: &Answering) -> Value {
        let status = status(answering);
        let (ended, cut) = (status != "in_progress", status == "incomplete");
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": answering.created,
            "completed_at": ended.then(unix_seconds),
            "status": status,
            "incomplete_details": cut.then(|| json!({ "reason": "max_output_tokens" })),
            "error": null,
            "model": answering.server.options.model_name,
            "output": if ended { self.output.json(cut) } else { json!([]) },
            "usage": ended.then(|| usage(answering)),
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
            object.insert("pagoda".into(), reply::value(&answering.engine));
        }
        response
    }

    fn send(&mut self, kind: &str, mut event: Value, out: &mut Out) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sent.into();
        self.sent += 1;
        out.named(kind, &event);
    }

    /// Sends an event about the text of an item.
    fn send_text(&mut self, at: usize, step: &str, mut event: Value, out: &mut Out) {
        let item = self.output.item(at);
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
        let item = self.output.item(at);
        if !matches!(item.kind, Kind::Call { .. }) {
            let event = json!({ "output_index": at, "content_index": 0, "item_id": item.id, "part": part });
            self.send(&format!("response.content_part.{step}"), event, out);
        }
    }

    fn tell(&mut self, answering: &Answering, change: Change, out: &mut Out) {
        match change {
            Change::Begun(at) => {
                let item = self.output.item(at);
                let mut part = item.part();
                part["text"] = "".into();
                let event = json!({ "output_index": at, "item": item.begun() });
                self.send("response.output_item.added", event, out);
                self.send_part(at, "added", &part, out);
            }
            Change::Grown(at, delta) => self.send_text(at, "delta", json!({ "delta": delta }), out),
            Change::Ended(at) => {
                let item = self.output.item(at);
                let (part, text) = (item.part(), item.text.clone());
                let text = match &item.kind {
                    Kind::Call { name, .. } => json!({ "arguments": text, "name": name }),
                    _ => json!({ "text": text }),
                };
                self.send_text(at, "done", text, out);
                self.send_part(at, "done", &part, out);
                let cut = status(answering) == "incomplete";
                let item = self.output.item(at).json(if cut { "incomplete" } else { "completed" });
                let event = json!({ "output_index": at, "item": item });
                self.send("response.output_item.done", event, out);
            }
        }
    }
}

impl Render for ResponsesRender {
    fn begin(&mut self, answering: &Answering, out: &mut Out) {
        let mut response = self.response(answering);
        // What has come with the first event is told by the next ones.
        response["status"] = "in_progress".into();
        self.send("response.created", json!({ "response": response }), out);
        self.send("response.in_progress", json!({ "response": response }), out);
    }

    fn grow(&mut self, answering: &Answering, delta: Delta, out: &mut Out) {
        let changes = self.add(delta);
        changes.into_iter().for_each(|change| self.tell(answering, change, out));
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        let response = self.response(answering);
        let kind = format!("response.{}", status(answering));
        self.send(&kind, json!({ "response": response }), out);
    }

    fn fail(&mut self, answering: &Answering, error: &ApiError, out: &mut Out) {
        let mut response = self.response(answering);
        response["status"] = "failed".into();
        response["error"] = json!({ "code": error.code.unwrap_or(error.kind()), "message": error.message });
        self.send("response.failed", json!({ "response": response }), out);
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        deltas.into_iter().for_each(|delta| drop(self.add(delta)));
        reply::json(&self.response(answering))
    }
}
