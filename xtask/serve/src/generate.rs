//! `POST /inference/v1/generate`: token ids in, token ids out.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::Event;
use serde::Serialize;

use crate::call::Call;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, StreamOptions};
use crate::openai::log_probs::ChatLogProbs;
use crate::openai::{Output, Usage};
use crate::reply::json;
use crate::running::Running;
use crate::server::Server;
use crate::sse::{self, Frames, Out};

/// Maximum number of generated tokens if the request states none, as in vLLM.
const MAX_TOKENS: u32 = 16;

/// Fields of a call.
#[derive(Debug)]
pub(crate) struct Asked {
    request_id: Option<String>,
    ids: Vec<u32>,
    generation: Generation,
    max_tokens: u32,
}

impl Asked {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let request_id = fields.take("request_id")?;
        let ids = fields.need("token_ids")?;
        fields.merge("sampling_params")?;
        let mut generation = Generation::take(&mut fields)?;
        generation.sampling.log_probs = fields.take("logprobs")?;
        fields.only("detokenize", &false, "this route returns ids")?;
        fields.refuse("prompt_logprobs", "ask /v1/completions with echo and logprobs")?;
        let max_tokens = fields.count("max_tokens")?.unwrap_or(MAX_TOKENS);
        fields.end()?;
        Ok(Self { request_id, ids, generation, max_tokens })
    }
}

/// Generates tokens.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let Asked { request_id, ids, mut generation, max_tokens } = Asked::read(&call.body)?;
    generation.settle(&server).await?;
    let mut reply = GenerateReply {
        id: request_id.unwrap_or_else(|| call.id.as_str().to_owned()),
        log_probs: generation.sampling.log_probs.is_some(),
        usage: Usage::of_prompts([ids.as_slice()]),
        engine: server.engine_use(generation.salt_for(&call.client).as_deref(), &[&ids]),
        outputs: Vec::new(),
        server: Arc::clone(&server),
    };
    let mut request = generation.request(&server, ids, Some(max_tokens));
    // Stop texts are found in the text.
    request.text &= !request.stop.is_empty();
    let running = Running::start(&server, vec![request], call, "token_ids").await?;
    // Room for the samples is made once the engine has taken as many.
    reply.outputs.resize_with(generation.samples as usize, Output::default);
    match generation.stream {
        Some(options) => {
            Ok(sse::respond(running, GenerateChunks { reply, options }, server.options.keep_alive))
        }
        None => reply.whole(running).await,
    }
}

/// An answer as it grows.
#[derive(Debug)]
struct GenerateReply {
    server: Arc<Server>,
    id: String,
    log_probs: bool,
    usage: Usage,
    engine: EngineUse,
    /// `[samples]`
    outputs: Vec<Output>,
}

#[derive(Serialize)]
struct Body<'a> {
    request_id: &'a str,
    choices: Vec<GeneratedChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Usage of the whole call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
}

#[derive(Serialize)]
struct GeneratedChoice {
    index: usize,
    token_ids: Vec<u32>,
    logprobs: Option<ChatLogProbs>,
    finish_reason: Option<&'static str>,
}

impl GenerateReply {
    fn take(&mut self, event: Event) -> Option<usize> {
        self.engine.take(&event);
        match event {
            Event::Started(started) => self.usage.start(started.cached),
            Event::Token(token) => {
                self.usage.token();
                let sample = token.sample as usize;
                self.outputs[sample].token(token);
                return Some(sample);
            }
            Event::Finished(end) => {
                let sample = end.sample as usize;
                self.outputs[sample].finish(&end.reason, "");
                return Some(sample);
            }
            _ => {}
        }
        None
    }

    fn choice(&mut self, index: usize) -> GeneratedChoice {
        let Output { ids, log_probs, end, .. } = std::mem::take(&mut self.outputs[index]);
        let tokenizer = self.server.options.model.tokenizer.as_deref();
        let logprobs = self.log_probs.then(|| ChatLogProbs::new(tokenizer, &log_probs));
        GeneratedChoice { index, token_ids: ids, logprobs, finish_reason: end.map(|end| end.reason) }
    }

    async fn whole(mut self, mut running: Running) -> Result<Response, ApiError> {
        while let Some(event) = running.next().await {
            let (_, event) = event?;
            self.take(event);
        }
        let choices = (0..self.outputs.len()).map(|index| self.choice(index)).collect();
        Ok(json(&self.last(choices)))
    }

    /// The last body, with the usage.
    fn last(&self, choices: Vec<GeneratedChoice>) -> Body<'_> {
        Body { request_id: &self.id, choices, usage: Some(self.usage), pagoda: Some(&self.engine) }
    }
}

struct GenerateChunks {
    reply: GenerateReply,
    options: StreamOptions,
}

impl Frames for GenerateChunks {
    fn event(&mut self, _: usize, event: Event, out: &mut Out) -> Result<(), ApiError> {
        let Some(index) = self.reply.take(event) else { return Ok(()) };
        let choices = vec![self.reply.choice(index)];
        let usage = self.options.continuous_usage_stats.then_some(self.reply.usage);
        out.json(&Body { request_id: &self.reply.id, choices, usage, pagoda: None });
        Ok(())
    }

    fn end(&mut self, out: &mut Out) {
        if self.options.include_usage {
            out.json(&self.reply.last(Vec::new()));
        }
        out.text("[DONE]");
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.text(&error.to_json());
        out.text("[DONE]");
    }
}
