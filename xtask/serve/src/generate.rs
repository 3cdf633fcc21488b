//! `POST /inference/v1/generate`: token ids in, token ids out.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answering::{Answering, Delta, Job, Out, Render, respond};
use crate::call::Call;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::{Int, Reader, length, merged};
use crate::generation::{Generation, GenerationFields, StreamOptions};
use crate::hand_over::Transferred;
use crate::openai::log_probs::ChatLogProbs;
use crate::openai::{Usage, fail, reasons};
use crate::reply::json;
use crate::server::Server;

/// Maximum number of generated tokens if the request states none, as in vLLM.
const MAX_TOKENS: u32 = 16;

/// Name of an object in the body whose fields may also stand in the body itself.
pub(crate) const PARAMS: &str = "sampling_params";

/// Fields of a call, which may also be in `sampling_params`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GenerateFields {
    /// Id of the reply; without it, that of the call.
    request_id: Option<String>,
    /// Ids of the prompt.
    token_ids: Vec<u32>,
    /// Maximum number of tokens of the answer, 16 without it; -1 is as many as there is room for.
    #[schemars(range(min = -1))]
    max_tokens: Option<Int<i64>>,
    /// Return the log-probability of each token, and as many of the likeliest at its position.
    #[schemars(range(min = 0, max = 20))]
    logprobs: Option<Int<u32>>,
    /// Must be false: this route returns ids.
    detokenize: Option<bool>,
}

/// Types that together have all fields of a call's body.
pub(crate) type GenerateBody = (GenerateFields, GenerationFields);

/// A call whose fields were checked.
#[derive(Debug)]
pub(crate) struct Generate {
    request_id: Option<String>,
    ids: Vec<u32>,
    generation: Generation,
    max_tokens: Option<u32>,
}

impl Generate {
    pub(crate) fn read(body: &[u8], reader: &mut Reader) -> Result<Self, ApiError> {
        let (fields, generation): GenerateBody = reader.body(&merged(body, PARAMS)?)?;
        let mut generation = generation.check(reader)?;
        generation.sampling.log_probs = fields.logprobs.map(|Int(top)| top);
        if fields.detokenize.unwrap_or(false) {
            return Err(ApiError::field("detokenize", "this route returns ids"));
        }
        let max_tokens = match fields.max_tokens {
            None => Some(MAX_TOKENS),
            tokens => length("max_tokens", tokens)?,
        };
        Ok(Self { request_id: fields.request_id, ids: fields.token_ids, generation, max_tokens })
    }
}

/// Generates tokens.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let Generate { request_id, ids, mut generation, max_tokens } = Generate::read(&call.body, &mut reader)?;
    generation.settle(&server, &mut reader).await?;
    let render = GenerateRender {
        id: request_id.unwrap_or_else(|| call.id.as_str().to_owned()),
        log_probs: generation.sampling.log_probs.is_some(),
        options: generation.stream.unwrap_or_default(),
    };
    let mut request = generation.request(&server, ids, max_tokens);
    // Stop texts are found in the text.
    request.text &= !request.stop.is_empty();
    let (requests, ignored) = (vec![request], reader.ignored());
    let job = Job { generation, requests, input: "token_ids", answer: None, ignored };
    respond(&server, call, job, render).await
}

/// Writes the ids of answers.
#[derive(Debug)]
struct GenerateRender {
    id: String,
    log_probs: bool,
    options: StreamOptions,
}

/// Whole answers, or parts of them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Generated<'a> {
    request_id: &'a str,
    choices: Vec<GeneratedChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Work of the engine for the whole call, in the last body only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
    /// Parameters for the server that goes on, if the blocks of the prompt are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Transferred>,
}

#[derive(Serialize, JsonSchema)]
struct GeneratedChoice {
    index: usize,
    token_ids: Vec<u32>,
    logprobs: Option<ChatLogProbs>,
    /// `stop`, `length`, `tool_calls`, or null before the end.
    finish_reason: Option<&'static str>,
}

impl GenerateRender {
    fn choice(&self, answering: &Answering, delta: Delta) -> GeneratedChoice {
        let Delta { index, ids, log_probs, end, .. } = delta;
        let tokenizer = answering.server.options.model.tokenizer.as_deref();
        let logprobs = self.log_probs.then(|| ChatLogProbs::new(tokenizer, &log_probs));
        GeneratedChoice { index, token_ids: ids, logprobs, finish_reason: reasons(end).0 }
    }

    /// The last body, with the usage.
    fn last<'a>(&'a self, answering: &'a Answering, choices: Vec<GeneratedChoice>) -> Generated<'a> {
        let usage = Some(answering.usage.into());
        let (pagoda, kv_transfer_params) = (Some(&answering.engine), answering.transferred);
        Generated { request_id: &self.id, choices, usage, pagoda, kv_transfer_params }
    }
}

impl Render for GenerateRender {
    fn is_due(&self, delta: &Delta) -> bool {
        !delta.ids.is_empty() || delta.end.is_some()
    }

    fn grow(&mut self, answering: &Answering, delta: Delta, out: &mut Out) {
        let choices = vec![self.choice(answering, delta)];
        let usage = self.options.states_usage().then(|| answering.usage.into());
        out.json(&Generated { request_id: &self.id, choices, usage, pagoda: None, kv_transfer_params: None });
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        if self.options.ends_with_usage() {
            out.json(&self.last(answering, Vec::new()));
        }
        out.text("[DONE]");
    }

    fn fail(&mut self, _: &Answering, error: &ApiError, out: &mut Out) {
        fail(error, out);
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        let choices = deltas.into_iter().map(|delta| self.choice(answering, delta)).collect();
        json(&self.last(answering, choices))
    }
}
