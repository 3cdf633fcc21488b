//! `POST /v1/chat/completions`.

mod message;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::{Conversation, Event, MAX_TOP};
use serde::Serialize;

use super::log_probs::ChatLogProbs;
use super::messages::conversation;
use super::{End, Output, Stop, Usage};
use crate::answer::{Answer, Calls, Parts};
use crate::call::Call;
use crate::constraint::Constraint;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::reply::json;
use crate::running::Running;
use crate::server::{Prompted, Server, unix_seconds};
use crate::sse::{self, Frames, Out};
use crate::tools::{ChatTool, Tools};
use message::{Delta, Message};

/// Fields of a chat.
#[derive(Debug)]
pub(crate) struct Chat {
    pub(crate) conversation: Conversation,
    pub(crate) generation: Generation,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) tools: Tools,
}

impl Chat {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let mut generation = Generation::take(&mut fields)?;
        generation.sampling.log_probs = log_probs(&mut fields)?;
        let mut conversation = conversation(&mut fields)?;
        let older = fields.count("max_tokens")?;
        let max_tokens = fields.count("max_completion_tokens")?.or(older);
        let mut constraint = Constraint::take(&mut fields)?;
        let tools = Tools::take::<ChatTool>(&mut fields)?;
        conversation.tools = tools.for_template();
        if tools.calls() == Calls::Always && constraint.is_some() {
            return Err(ApiError::field("tool_choice", "the output has another form already"));
        }
        constraint = constraint.or_else(|| tools.constraint());
        generation.stop.extend(tools.stop().map(str::to_owned));
        refuse_others(&mut fields)?;
        fields.end()?;
        Ok(Self { conversation, generation, max_tokens, constraint, tools })
    }
}

/// Reads how many of the likeliest tokens to return with each token; `None` for no log-probabilities.
fn log_probs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<u32> = fields.take("top_logprobs")?;
    match (wanted, top) {
        (true, Some(top)) if top > MAX_TOP => {
            Err(ApiError::field("top_logprobs", format!("{top}, at most {MAX_TOP} are returned")))
        }
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "only possible if logprobs is true")),
    }
}

/// Fields of the API that change the answer in ways that this server does not know.
fn refuse_others(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.skip(&["metadata"]);
    fields.only("store", &false, "answers are not stored")?;
    fields.only("modalities", &vec!["text".to_owned()], "only text can be generated")?;
    if let Some(tier) = fields.take::<String>("service_tier")?
        && !matches!(tier.as_str(), "auto" | "default")
    {
        return Err(ApiError::field("service_tier", "there is one tier; order requests by priority"));
    }
    for name in ["functions", "function_call", "audio", "prediction", "web_search_options", "verbosity"] {
        fields.refuse(name, "not supported")?;
    }
    Ok(())
}

/// Answers a chat.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let chat = Chat::read(&call.body)?;
    server.need_model(chat.generation.model.as_deref())?;
    let Chat { conversation, mut generation, max_tokens, constraint, tools } = chat;
    generation.settle(&server).await?;
    let Prompted { ids: prompt, thinks } = server.prompt(conversation).await?;
    let mask = server.mask(constraint).await?;
    let mut reply = ChatReply::new(&server, &call, &generation, &prompt);
    let mut request = generation.request(&server, prompt, max_tokens);
    request.mask = mask;
    let running = Running::start(&server, vec![request], call, "messages").await?;
    // Room for the samples is made once the engine has taken as many.
    let samples = generation.samples as usize;
    reply.outputs.resize_with(samples, Output::default);
    reply.answers = vec![Answer::new(tools.calls(), thinks); samples];
    match generation.stream {
        Some(options) => {
            let stream = ChatChunks { reply, options, begun: vec![false; samples] };
            Ok(sse::respond(running, stream, server.options.keep_alive))
        }
        None => reply.whole(running).await,
    }
}

/// An answer as it grows.
#[derive(Debug)]
struct ChatReply {
    server: Arc<Server>,
    id: String,
    created: u64,
    /// Whether log-probabilities were requested.
    log_probs: bool,
    /// The prompt's ids, if they are to be returned.
    prompt_ids: Option<Vec<u32>>,
    usage: Usage,
    engine: EngineUse,
    /// `[samples]`
    outputs: Vec<Output>,
    /// Answers of the samples, parsed. `[samples]`
    answers: Vec<Answer>,
}

#[derive(Serialize)]
struct Completion<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    /// Usage, in Pagoda's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
}

#[derive(Serialize)]
struct ChatChoice<M> {
    index: usize,
    #[serde(flatten)]
    message: M,
    logprobs: Option<ChatLogProbs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Stop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl ChatReply {
    fn new(server: &Arc<Server>, call: &Call, generation: &Generation, prompt: &[u32]) -> Self {
        Self {
            server: Arc::clone(server),
            id: call.id.prefixed("chatcmpl"),
            created: unix_seconds(),
            log_probs: generation.sampling.log_probs.is_some(),
            prompt_ids: generation.return_ids.then(|| prompt.to_vec()),
            usage: Usage::of_prompts([prompt]),
            engine: server.engine_use(generation.salt_for(&call.client).as_deref(), &[prompt]),
            outputs: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Takes an event; returns the sample that it adds to.
    fn take(&mut self, event: Event) -> Option<usize> {
        self.engine.take(&event);
        match event {
            Event::Started(started) => self.usage.start(started.cached),
            Event::Token(token) => {
                self.usage.token();
                let sample = token.sample as usize;
                self.outputs[sample].token(token);
                self.parse(sample);
                return Some(sample);
            }
            Event::Finished(end) => {
                let sample = end.sample as usize;
                self.outputs[sample].finish(&end.reason, &end.text);
                self.parse(sample);
                return Some(sample);
            }
            _ => {}
        }
        None
    }

    /// Takes the text that a sample has got apart.
    fn parse(&mut self, sample: usize) {
        let Output { text, end, .. } = &mut self.outputs[sample];
        self.answers[sample].push(&std::mem::take(text));
        if let Some(end) = end {
            self.answers[sample].finish();
            if self.answers[sample].has_called() && end.reason == "stop" {
                *end = End { reason: "tool_calls", stop: None };
            }
        }
    }

    /// Takes the tokens of a sample that were generated and not yet sent.
    fn choice(&mut self, index: usize, message: impl FnOnce(Parts) -> Message) -> ChatChoice<Message> {
        let Output { ids, log_probs, end, .. } = std::mem::take(&mut self.outputs[index]);
        let tokenizer = self.server.options.model.tokenizer.as_deref();
        let (finish_reason, stop_reason) = end.map_or((None, None), |end| (Some(end.reason), end.stop));
        ChatChoice {
            index,
            message: message(self.answers[index].take()),
            logprobs: self.log_probs.then(|| ChatLogProbs::new(tokenizer, &log_probs)),
            finish_reason,
            stop_reason,
            token_ids: self.prompt_ids.is_some().then_some(ids),
        }
    }

    fn completion<C>(&self, object: &'static str, choices: Vec<C>) -> Completion<'_, C> {
        let (created, model) = (self.created, self.server.options.model_name.as_str());
        Completion {
            id: &self.id,
            object,
            created,
            model,
            choices,
            usage: None,
            prompt_token_ids: None,
            pagoda: None,
        }
    }

    /// Waits for the end and answers at once.
    async fn whole(mut self, mut running: Running) -> Result<Response, ApiError> {
        while let Some(event) = running.next().await {
            let (_, event) = event?;
            self.take(event);
        }
        let message = |parts: Parts| Message::Message(parts.into());
        let choices = (0..self.outputs.len()).map(|index| self.choice(index, message)).collect();
        let completion = Completion {
            usage: Some(Some(self.usage)),
            pagoda: Some(&self.engine),
            prompt_token_ids: self.prompt_ids.as_deref(),
            ..self.completion("chat.completion", choices)
        };
        Ok(json(&completion))
    }
}

/// An answer in chunks.
struct ChatChunks {
    reply: ChatReply,
    options: crate::generation::StreamOptions,
    /// Samples that have had their first chunk.
    begun: Vec<bool>,
}

impl ChatChunks {
    fn send(&mut self, choices: Vec<ChatChoice<Message>>, usage: Option<Option<Usage>>, out: &mut Out) {
        let ids = self.reply.prompt_ids.as_deref().filter(|_| self.begun.iter().all(|begun| !begun));
        let completion = self.reply.completion("chat.completion.chunk", choices);
        let pagoda = completion.choices.is_empty().then_some(&self.reply.engine);
        out.json(&Completion { usage, prompt_token_ids: ids, pagoda, ..completion });
    }

    fn send_choice(&mut self, sample: usize, out: &mut Out) {
        let choice = self.reply.choice(sample, |parts| Message::Delta(parts.into()));
        self.send(vec![choice], self.usage(), out);
    }

    /// Usage in a chunk before the last.
    fn usage(&self) -> Option<Option<Usage>> {
        let running = self.options.continuous_usage_stats.then_some(self.reply.usage);
        (self.options.include_usage || running.is_some()).then_some(running)
    }
}

impl Frames for ChatChunks {
    fn event(&mut self, _: usize, event: Event, out: &mut Out) -> Result<(), ApiError> {
        let Some(sample) = self.reply.take(event) else { return Ok(()) };
        if !self.begun[sample] {
            let first = ChatChoice {
                index: sample,
                message: Message::Delta(Delta::first()),
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            };
            self.send(vec![first], self.usage(), out);
            self.begun[sample] = true;
        }
        if self.reply.answers[sample].is_empty() && self.reply.outputs[sample].end.is_none() {
            return Ok(());
        }
        // OpenAI's client ends calls at the chunk with the reason, so that one must add nothing to the answer.
        let adds = !self.reply.answers[sample].is_empty();
        let end = if adds { self.reply.outputs[sample].end.take() } else { None };
        self.send_choice(sample, out);
        if end.is_some() {
            self.reply.outputs[sample].end = end;
            self.send_choice(sample, out);
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Out) {
        if self.options.include_usage {
            self.send(Vec::new(), Some(Some(self.reply.usage)), out);
        }
        out.text("[DONE]");
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.text(&error.to_json());
        out.text("[DONE]");
    }
}
