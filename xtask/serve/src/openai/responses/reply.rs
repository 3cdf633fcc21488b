//! Responses, as a whole and as a stream of events.

use axum::response::Response;
use pagoda::FinishReason;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::output::{Change, Kind, Output};
use crate::answering::{self, Answering, Delta, Out, Render};
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::hand_over::Transferred;
use crate::reply;
use crate::server::unix_seconds;

/// Writes an answer in the form of responses: as one, or as a stream of numbered events.
#[derive(Debug)]
pub(super) struct ResponsesRender {
    id: String,
    repeated: Repeated,
    output: Output,
    /// Number of events sent.
    sent: u64,
}

/// Fields of a response that repeat the request's.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Repeated {
    pub(super) parallel_tool_calls: bool,
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<Value>,
    pub(super) text: Value,
    pub(super) metadata: Map<String, Value>,
    pub(super) prompt_cache_key: Option<Value>,
    pub(super) safety_identifier: Option<Value>,
    pub(super) max_tool_calls: Option<()>,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
    pub(super) presence_penalty: f64,
    pub(super) frequency_penalty: f64,
}

/// A response, with the output generated so far.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub(crate) struct ResponseBody<'a> {
    id: &'a str,
    #[schemars(extend("const" = "response"))]
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: Status,
    incomplete_details: Option<Incomplete>,
    error: Option<Failure<'a>>,
    model: &'a str,
    /// Items of type `reasoning`, `message` and `function_call`.
    output: Vec<Value>,
    usage: Option<Usage>,
    previous_response_id: Option<()>,
    reasoning: Reasoning,
    truncation: &'static str,
    store: bool,
    background: bool,
    service_tier: &'static str,
    top_logprobs: u32,
    #[serde(flatten)]
    repeated: &'a Repeated,
    /// Work of the engine for the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
    /// Parameters for the server that goes on, if the blocks of the prompt are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Transferred>,
}

/// The state of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseStatus")]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Why a response is incomplete.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "IncompleteDetails")]
struct Incomplete {
    #[schemars(extend("const" = "max_output_tokens"))]
    reason: &'static str,
}

/// Why a response failed.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponseError")]
struct Failure<'a> {
    code: &'a str,
    message: &'a str,
}

/// Settings of thoughts, which the chat template has.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "ResponseReasoning")]
struct Reasoning {
    effort: Option<()>,
    summary: Option<()>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponseInputDetails")]
struct InputDetails {
    /// Number of tokens that were not computed.
    cached_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponseOutputDetails")]
struct OutputDetails {
    reasoning_tokens: u64,
}

/// An event of a stream.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ResponseEvent<'a> {
    #[serde(flatten)]
    fields: Map<String, Value>,
    r#type: &'a str,
    sequence_number: u64,
}

impl From<answering::Usage> for Usage {
    fn from(used: answering::Usage) -> Self {
        Self {
            input_tokens: used.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: used.cached_tokens },
            output_tokens: used.output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: used.reasoning_tokens },
            total_tokens: used.prompt_tokens + used.output_tokens,
        }
    }
}

impl Status {
    /// The state of the response so far.
    fn of(answering: &Answering) -> Self {
        match answering.end_of(0).map(|end| &end.reason) {
            None => Self::InProgress,
            Some(FinishReason::Length) => Self::Incomplete,
            Some(_) => Self::Completed,
        }
    }

    /// Name of the event that tells this state of a response.
    fn event(self) -> &'static str {
        match self {
            Self::InProgress => "response.in_progress",
            Self::Completed => "response.completed",
            Self::Incomplete => "response.incomplete",
            Self::Failed => "response.failed",
        }
    }
}

impl ResponsesRender {
    pub(super) fn new(id: String, repeated: Repeated) -> Self {
        Self { id, repeated, output: Output::default(), sent: 0 }
    }

    /// Adds an addition of the answer to the output; returns the changes.
    fn add(&mut self, delta: Delta) -> Vec<Change> {
        let mut changes = self.output.add(delta.pieces);
        if delta.end.is_some() {
            changes.extend(self.output.finish());
        }
        changes
    }

    fn response<'a>(&'a self, answering: &'a Answering, status: Status) -> ResponseBody<'a> {
        let cut = status == Status::Incomplete;
        let ended = cut || status == Status::Completed;
        ResponseBody {
            id: &self.id,
            object: "response",
            created_at: answering.created,
            completed_at: ended.then(unix_seconds),
            status,
            incomplete_details: cut.then_some(Incomplete { reason: "max_output_tokens" }),
            error: None,
            model: &answering.server.options.model_name,
            output: if ended { self.output.json(cut) } else { Vec::new() },
            usage: ended.then(|| answering.usage.into()),
            previous_response_id: None,
            reasoning: Reasoning::default(),
            truncation: "disabled",
            store: false,
            background: false,
            service_tier: "default",
            top_logprobs: 0,
            repeated: &self.repeated,
            pagoda: ended.then_some(&answering.engine),
            kv_transfer_params: answering.transferred,
        }
    }

    fn send(&mut self, kind: &str, fields: Value, out: &mut Out) {
        let Value::Object(fields) = fields else { unreachable!("events are objects") };
        out.named(kind, &ResponseEvent { fields, r#type: kind, sequence_number: self.sent });
        self.sent += 1;
    }

    /// Sends an event about the whole response.
    fn send_response(&mut self, kind: &str, response: &Value, out: &mut Out) {
        self.send(kind, json!({ "response": response }), out);
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
                let cut = Status::of(answering) == Status::Incomplete;
                let item = self.output.item(at).json(if cut { "incomplete" } else { "completed" });
                let event = json!({ "output_index": at, "item": item });
                self.send("response.output_item.done", event, out);
            }
        }
    }
}

impl Render for ResponsesRender {
    fn begin(&mut self, answering: &Answering, out: &mut Out) {
        // What has come with the first event is told by the next ones.
        let response = reply::value(&self.response(answering, Status::InProgress));
        self.send_response("response.created", &response, out);
        self.send_response("response.in_progress", &response, out);
    }

    fn grow(&mut self, answering: &Answering, delta: Delta, out: &mut Out) {
        let changes = self.add(delta);
        changes.into_iter().for_each(|change| self.tell(answering, change, out));
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        let status = Status::of(answering);
        let response = reply::value(&self.response(answering, status));
        self.send_response(status.event(), &response, out);
    }

    fn fail(&mut self, answering: &Answering, error: &ApiError, out: &mut Out) {
        let failure = Failure { code: error.code.unwrap_or(error.kind()), message: &error.message };
        let response = ResponseBody { error: Some(failure), ..self.response(answering, Status::Failed) };
        let response = reply::value(&response);
        self.send_response(Status::Failed.event(), &response, out);
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        deltas.into_iter().for_each(|delta| drop(self.add(delta)));
        reply::json(&self.response(answering, Status::of(answering)))
    }
}
