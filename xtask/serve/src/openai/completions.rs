//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::{Event, LogProbs, Request};
use serde::Serialize;

use super::log_probs::TextLogProbs;
use super::{Output, Stop, Usage};
use crate::call::Call;
use crate::constraint::Constraint;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, StreamOptions};
use crate::prompt::{Prompt, Prompts, Reading};
use crate::reply::json;
use crate::running::Running;
use crate::server::{Server, unix_seconds};
use crate::sse::{self, Frames, Out};

/// Maximum number of tokens of an answer if the request states none, as in OpenAI's API.
const MAX_TOKENS: u32 = 16;

/// Fields of a completion.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) prompts: Prompts,
    pub(crate) reading: Reading,
    pub(crate) generation: Generation,
    pub(crate) max_tokens: u32,
    pub(crate) constraint: Option<Constraint>,
}

impl Completion {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let mut generation = Generation::take(&mut fields)?;
        generation.sampling.log_probs = fields.take("logprobs")?;
        let echo = fields.take("echo")?.unwrap_or(false);
        let add_special = fields.take("add_special_tokens")?.unwrap_or(true);
        fields.only("best_of", &generation.samples, "must be n: all samples are returned")?;
        let constraint = Constraint::take(&mut fields)?;
        fields.only("suffix", &String::new(), "text between two others cannot be generated")?;
        let max_tokens = fields.take("max_tokens")?.unwrap_or(MAX_TOKENS);
        let prompts = fields.need("prompt")?;
        fields.end()?;
        Ok(Self { prompts, reading: Reading { add_special, echo }, generation, max_tokens, constraint })
    }

    /// The request for one prompt. The engine generates at least one token, which is dropped if none was requested.
    fn request(&self, server: &Server, prompt: &Prompt) -> Request {
        let tokens = Some(self.max_tokens.max(1));
        let mut request = self.generation.request(server, prompt.ids.clone(), tokens);
        request.prompt_log_probs = self.generation.sampling.log_probs.filter(|_| self.reading.echo);
        request
    }
}

/// Completes texts.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut completion = Completion::read(&call.body)?;
    completion.generation.settle(&server).await?;
    let prompts = std::mem::replace(&mut completion.prompts, Prompts::Ids(Vec::new()));
    let reading = completion.reading;
    let prompts = server.compute(move |model| prompts.read(model, reading)).await?;
    let max = server.handle.options().max_waiting;
    if prompts.len() > max {
        let message = format!("{} prompts, at most {max} requests wait", prompts.len());
        return Err(ApiError::field("prompt", message));
    }
    let mask = server.mask(completion.constraint.take()).await?;
    let mut requests: Vec<Request> =
        prompts.iter().map(|prompt| completion.request(&server, prompt)).collect();
    requests.iter_mut().for_each(|request| request.mask.clone_from(&mask));
    let mut reply = CompletionReply::new(&server, &call, &completion, prompts);
    let running = Running::start(&server, requests, call, "prompt").await?;
    // Room for the samples is made once the engine has taken as many.
    reply.choices.resize_with(reply.prompts.len() * reply.samples, Sample::default);
    match completion.generation.stream {
        Some(options) => {
            Ok(sse::respond(running, CompletionChunks { reply, options }, server.options.keep_alive))
        }
        None => reply.whole(running).await,
    }
}

/// An answer as it grows.
#[derive(Debug)]
struct CompletionReply {
    server: Arc<Server>,
    id: String,
    created: u64,
    samples: usize,
    /// Whether the call requests log-probabilities, the prompt itself, ids, and tokens at all.
    log_probs: bool,
    echo: bool,
    return_ids: bool,
    generates: bool,
    prompts: Vec<Prompt>,
    /// Log-probabilities of all tokens of each prompt but the first.
    prompt_log_probs: Vec<Vec<LogProbs>>,
    usage: Usage,
    engine: EngineUse,
    /// `[prompts * samples]`
    choices: Vec<Sample>,
}

/// One choice as it grows.
#[derive(Debug, Default)]
struct Sample {
    output: Output,
    /// Characters of the tokens whose log-probabilities were sent.
    offset: usize,
    /// Whether its first text was sent, with which the prompt is repeated.
    begun: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<TextChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    /// Usage of the whole call, in Pagoda's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
}

#[derive(Serialize)]
struct TextChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogProbs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Stop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl CompletionReply {
    fn new(server: &Arc<Server>, call: &Call, completion: &Completion, prompts: Vec<Prompt>) -> Self {
        let Completion { generation, reading, max_tokens, .. } = completion;
        let samples = generation.samples as usize;
        let ids: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
        Self {
            usage: Usage::of_prompts(ids.iter().copied()),
            engine: server.engine_use(generation.salt_for(&call.client).as_deref(), &ids),
            server: Arc::clone(server),
            id: call.id.prefixed("cmpl"),
            created: unix_seconds(),
            samples,
            log_probs: generation.sampling.log_probs.is_some(),
            echo: reading.echo,
            return_ids: generation.return_ids,
            generates: *max_tokens > 0,
            prompt_log_probs: vec![Vec::new(); prompts.len()],
            choices: Vec::new(),
            prompts,
        }
    }

    /// Takes an event of a prompt; returns the choice that it adds to.
    fn take(&mut self, prompt: usize, event: Event) -> Option<usize> {
        self.engine.take(&event);
        match event {
            Event::Started(started) => self.usage.start(started.cached),
            Event::Prompt(scored) => self.prompt_log_probs[prompt].extend(scored.log_probs),
            Event::Token(token) => {
                let index = prompt * self.samples + token.sample as usize;
                if self.generates {
                    self.usage.token();
                    self.choices[index].output.token(token);
                }
                return Some(index);
            }
            Event::Finished(end) => {
                let index = prompt * self.samples + end.sample as usize;
                let text = if self.generates { end.text.as_str() } else { "" };
                self.choices[index].output.finish(&end.reason, text);
                return Some(index);
            }
            _ => {}
        }
        None
    }

    /// Takes the tokens of a choice that were generated and not yet sent.
    fn choice(&mut self, index: usize) -> TextChoice {
        let begins = !std::mem::replace(&mut self.choices[index].begun, true);
        let prompt = &self.prompts[index / self.samples];
        let Output { text, ids, log_probs, end } = std::mem::take(&mut self.choices[index].output);
        let repeated = if begins && self.echo { prompt.text.as_str() } else { "" };
        let (finish_reason, stop_reason) = end.map_or((None, None), |end| (Some(end.reason), end.stop));
        TextChoice {
            index,
            text: format!("{repeated}{text}"),
            finish_reason,
            stop_reason,
            prompt_token_ids: (self.return_ids && begins).then(|| prompt.ids.clone()),
            token_ids: self.return_ids.then_some(ids),
            logprobs: self.log_probs.then(|| self.columns(index, begins, &log_probs)),
        }
    }

    fn columns(&mut self, index: usize, begins: bool, log_probs: &[LogProbs]) -> TextLogProbs {
        let tokenizer = self.server.options.model.tokenizer.as_deref();
        let (at, offset) = (index / self.samples, &mut self.choices[index].offset);
        let mut columns = TextLogProbs::default();
        if begins && self.echo {
            columns.push_first(tokenizer, self.prompts[at].ids[0], offset);
            self.prompt_log_probs[at].iter().for_each(|scored| columns.push(tokenizer, scored, offset));
        }
        log_probs.iter().for_each(|drawn| columns.push(tokenizer, drawn, offset));
        columns
    }

    fn body(&self, choices: Vec<TextChoice>, usage: Option<Option<Usage>>) -> Body<'_> {
        let (created, model) = (self.created, self.server.options.model_name.as_str());
        Body { id: &self.id, object: "text_completion", created, model, choices, usage, pagoda: None }
    }

    /// The last body, with the usage.
    fn last(&self, choices: Vec<TextChoice>) -> Body<'_> {
        Body { pagoda: Some(&self.engine), ..self.body(choices, Some(Some(self.usage))) }
    }

    /// Waits for the end and answers at once.
    async fn whole(mut self, mut running: Running) -> Result<Response, ApiError> {
        while let Some(event) = running.next().await {
            let (prompt, event) = event?;
            self.take(prompt, event);
        }
        let choices = (0..self.choices.len()).map(|index| self.choice(index)).collect();
        Ok(json(&self.last(choices)))
    }
}

/// An answer in chunks.
struct CompletionChunks {
    reply: CompletionReply,
    options: StreamOptions,
}

impl Frames for CompletionChunks {
    fn event(&mut self, prompt: usize, event: Event, out: &mut Out) -> Result<(), ApiError> {
        let Some(index) = self.reply.take(prompt, event) else { return Ok(()) };
        let Sample { output, begun, .. } = &self.reply.choices[index];
        let echoes = self.reply.echo && !begun;
        // Text may be held back until a character or a stop text is complete; ids are not.
        let has_ids = self.reply.return_ids && !output.ids.is_empty();
        if output.text.is_empty() && !has_ids && output.end.is_none() && !echoes {
            return Ok(());
        }
        let choice = self.reply.choice(index);
        let running = self.options.continuous_usage_stats.then_some(self.reply.usage);
        let usage = (self.options.include_usage || running.is_some()).then_some(running);
        out.json(&self.reply.body(vec![choice], usage));
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
