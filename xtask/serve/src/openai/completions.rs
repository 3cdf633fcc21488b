//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::tools::AnswerPart;
use pagoda::{LogProbs, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::log_probs::TextLogProbs;
use super::{Stop, Usage, reasons, usage_of_chunk};
use crate::answering::{Answering, Delta, Job, Out, Render, respond};
use crate::call::Call;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::{Int, Reader, length};
use crate::generation::{Generation, GenerationFields, StreamOptions};
use crate::hand_over::Transferred;
use crate::output_format::{FormatFields, OutputFormat};
use crate::prompt::{Prompt, Prompts, Reading};
use crate::reply::json;
use crate::server::Server;

/// Maximum number of tokens of an answer if the request states none, as in OpenAI's API.
const MAX_TOKENS: u32 = 16;

/// Fields of a completion.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CompletionFields {
    prompt: Prompts,
    /// Maximum number of tokens of the answer, 16 without it. -1 is as many as there is room for, 0 none, for prompts that are
    /// only scored.
    #[schemars(range(min = -1))]
    max_tokens: Option<Int<i64>>,
    /// Return the log-probability of each token, and as many of the likeliest at its position.
    #[schemars(range(min = 0, max = 20))]
    logprobs: Option<Int<u32>>,
    /// Begin the text with the prompt.
    echo: Option<bool>,
    /// Add the special tokens that the tokenizer puts around a text.
    add_special_tokens: Option<bool>,
    /// Must be n: all samples are returned.
    best_of: Option<Int<u32>>,
    /// Must be empty: text between two others cannot be generated.
    suffix: Option<String>,
}

/// Types that together have all fields of a completion's body.
pub(crate) type CompletionBody = (CompletionFields, FormatFields, GenerationFields);

/// A completion, checked.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) prompts: Prompts,
    pub(crate) reading: Reading,
    pub(crate) generation: Generation,
    /// Maximum number of tokens of the answer; `None` for as many as there is room for.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) constraint: Option<OutputFormat>,
}

impl Completion {
    pub(crate) fn read(body: &[u8], reader: &mut Reader) -> Result<Self, ApiError> {
        let (fields, format, generation): CompletionBody = reader.body(body)?;
        let mut generation = generation.check(reader)?;
        generation.sampling.log_probs = fields.logprobs.map(|Int(top)| top);
        if fields.best_of.is_some_and(|Int(best)| best != generation.samples) {
            return Err(ApiError::field("best_of", "must be n: all samples are returned"));
        }
        if fields.suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::field("suffix", "text between two others cannot be generated"));
        }
        let max_tokens = match fields.max_tokens {
            None => Some(MAX_TOKENS),
            Some(Int(0)) => Some(0),
            tokens => length("max_tokens", tokens)?,
        };
        let reading = Reading {
            field: "prompt",
            add_special: fields.add_special_tokens.unwrap_or(true),
            echo: fields.echo.unwrap_or(false),
        };
        Ok(Self { prompts: fields.prompt, reading, generation, max_tokens, constraint: format.check()? })
    }

    /// The request for one prompt.
    fn request(&self, server: &Server, prompt: &Prompt) -> Request {
        let mut request = self.generation.request(server, prompt.ids.clone(), self.max_tokens);
        request.prompt_log_probs = self.generation.sampling.log_probs.filter(|_| self.reading.echo);
        request
    }
}

/// Completes texts.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let mut completion = Completion::read(&call.body, &mut reader)?;
    completion.generation.settle(&server, &mut reader).await?;
    let prompts = std::mem::replace(&mut completion.prompts, Prompts::Ids(Vec::new()));
    let max = server.engines.options().max_waiting;
    if prompts.count() > max {
        let message = format!("{} prompts, at most {max} requests wait", prompts.count());
        return Err(ApiError::field("prompt", message));
    }
    let reading = completion.reading;
    let prompts = server.compute(move |model| prompts.read(model, reading)).await?;
    let mask = server.mask(completion.constraint.take()).await?;
    let mut requests: Vec<Request> =
        prompts.iter().map(|prompt| completion.request(&server, prompt)).collect();
    requests.iter_mut().for_each(|request| request.mask.clone_from(&mask));
    let Completion { generation, reading, .. } = completion;
    let render = CompletionRender {
        id: call.id.prefixed("cmpl"),
        log_probs: generation.sampling.log_probs.is_some(),
        echo: reading.echo,
        return_ids: generation.return_ids,
        offsets: Vec::new(),
        prompts,
        options: generation.stream.unwrap_or_default(),
    };
    let job = Job { generation, requests, input: "prompt", answer: None, ignored: reader.ignored() };
    respond(&server, call, job, render).await
}

/// Writes answers in the form of completions.
#[derive(Debug)]
struct CompletionRender {
    id: String,
    /// Whether the call requests log-probabilities; the next fields are whether the text begins with the prompt, and
    /// whether the ids of tokens are returned.
    log_probs: bool,
    echo: bool,
    return_ids: bool,
    prompts: Vec<Prompt>,
    /// Number of characters of the tokens whose log-probabilities were sent, for each answer.
    offsets: Vec<usize>,
    options: StreamOptions,
}

/// Whole answers, or parts of them.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Completion")]
pub(crate) struct TextCompletion<'a> {
    id: &'a str,
    #[schemars(extend("const" = "text_completion"))]
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<TextChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    /// Usage of the whole call, in Pagoda's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
    /// Parameters for the server that goes on, if the blocks of the prompts are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Transferred>,
}

#[derive(Serialize, JsonSchema)]
struct TextChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogProbs>,
    /// `stop`, `length`, `tool_calls`, or null before the end.
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Stop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl CompletionRender {
    fn choice(&mut self, answering: &Answering, delta: Delta) -> TextChoice {
        let Delta { index, begins, pieces, ids, log_probs, end } = delta;
        let prompt = &self.prompts[index / answering.samples];
        let mut text = if begins && self.echo { prompt.text.clone() } else { String::new() };
        for piece in pieces {
            if let AnswerPart::Text(piece) = piece {
                text.push_str(&piece);
            }
        }
        let (finish_reason, stop_reason) = reasons(end);
        TextChoice {
            index,
            text,
            finish_reason,
            stop_reason,
            prompt_token_ids: (self.return_ids && begins).then(|| prompt.ids.clone()),
            token_ids: self.return_ids.then_some(ids),
            logprobs: self.log_probs.then(|| self.columns(answering, index, begins, &log_probs)),
        }
    }

    fn columns(
        &mut self,
        answering: &Answering,
        index: usize,
        begins: bool,
        drawn: &[LogProbs],
    ) -> TextLogProbs {
        let tokenizer = answering.server.options.model.tokenizer.as_deref();
        if self.offsets.len() <= index {
            self.offsets.resize(index + 1, 0);
        }
        let (at, offset) = (index / answering.samples, &mut self.offsets[index]);
        let mut columns = TextLogProbs::default();
        if begins && self.echo {
            columns.push_first(tokenizer, self.prompts[at].ids[0], offset);
            let scored = &answering.prompt_log_probs[at];
            scored.iter().for_each(|scored| columns.push(tokenizer, scored, offset));
        }
        drawn.iter().for_each(|drawn| columns.push(tokenizer, drawn, offset));
        columns
    }

    fn body<'a>(&'a self, answering: &'a Answering, choices: Vec<TextChoice>) -> TextCompletion<'a> {
        let (created, model) = (answering.created, answering.server.options.model_name.as_str());
        TextCompletion {
            id: &self.id,
            object: "text_completion",
            created,
            model,
            choices,
            usage: None,
            pagoda: None,
            kv_transfer_params: answering.transferred,
        }
    }

    /// The last body, with the usage.
    fn last<'a>(&'a self, answering: &'a Answering, choices: Vec<TextChoice>) -> TextCompletion<'a> {
        let usage = Some(Some(answering.usage.into()));
        TextCompletion { usage, pagoda: Some(&answering.engine), ..self.body(answering, choices) }
    }
}

impl Render for CompletionRender {
    /// Whether an addition has anything to send. Text may be held back until a character or a stop text is complete; ids
    /// are sent at once.
    fn is_due(&self, delta: &Delta) -> bool {
        let has_ids = self.return_ids && !delta.ids.is_empty();
        !delta.pieces.is_empty() || has_ids || delta.end.is_some() || (self.echo && delta.begins)
    }

    fn grow(&mut self, answering: &Answering, delta: Delta, out: &mut Out) {
        let choices = vec![self.choice(answering, delta)];
        let usage = usage_of_chunk(self.options, answering.usage);
        out.json(&TextCompletion { usage, ..self.body(answering, choices) });
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        if self.options.ends_with_usage() {
            out.json(&self.last(answering, Vec::new()));
        }
        out.text("[DONE]");
    }

    fn fail(&mut self, _: &Answering, error: &ApiError, out: &mut Out) {
        super::fail(error, out);
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        let choices = deltas.into_iter().map(|delta| self.choice(answering, delta)).collect();
        json(&self.last(answering, choices))
    }
}
