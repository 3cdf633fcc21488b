//! `POST /v1/chat/completions`.

mod message;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::tools::{AnswerPart, Tools};
use pagoda::{Conversation, MAX_TOP};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::log_probs::ChatLogProbs;
use super::messages::ConversationFields;
use super::{Stop, Usage, reasons, usage_of_chunk};
use crate::answering::{Answering, Delta, Job, Out, Render, respond};
use crate::call::Call;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::{Int, Reader, length};
use crate::generation::{Generation, GenerationFields, StreamOptions};
use crate::hand_over::Transferred;
use crate::output_format::{FormatFields, OutputFormat};
use crate::reply::json;
use crate::server::{Prompted, Server};
use crate::tools::{ChatTool, ToolChoice, format_of, read_tools};
use message::{ChoiceMessage, DeltaMessage, WholeMessage};

/// Fields of a chat.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatFields {
    /// Maximum number of tokens of the answer. Without it, or with -1, as many as there is room for.
    #[schemars(range(min = -1))]
    max_tokens: Option<Int<i64>>,
    /// The newer name of `max_tokens`, which prevails.
    #[schemars(range(min = -1))]
    max_completion_tokens: Option<Int<i64>>,
    /// Return the log-probability of each token.
    logprobs: Option<bool>,
    /// Return as many of the likeliest tokens at each position.
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<Int<u32>>,
    /// Functions that the answer may call. Tools of other types run elsewhere, and are left out.
    #[schemars(with = "Option<Vec<ChatTool>>")]
    tools: Option<Vec<Value>>,
    /// Whether the answer may call a tool, must, or must call the one of this name.
    tool_choice: Option<ToolChoice>,
    /// Whether the answer may have several calls.
    parallel_tool_calls: Option<bool>,
    /// Kinds of output: only text can be generated.
    modalities: Option<Vec<String>>,
    /// Return thoughts as `reasoning_content`.
    include_reasoning: Option<bool>,
}

/// Types that together have all fields of a chat's body.
pub(crate) type ChatBody = (ConversationFields, ChatFields, FormatFields, GenerationFields);

/// A chat, checked.
#[derive(Debug)]
pub(crate) struct Chat {
    pub(crate) conversation: Conversation,
    pub(crate) generation: Generation,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) constraint: Option<OutputFormat>,
    pub(crate) tools: Tools,
    includes_reasoning: bool,
}

impl Chat {
    pub(crate) fn read(body: &[u8], reader: &mut Reader) -> Result<Self, ApiError> {
        let (conversation, fields, format, generation): ChatBody = reader.body(body)?;
        let mut generation = generation.check(reader)?;
        generation.sampling.log_probs = fields.log_probs()?;
        let mut conversation = conversation.check(reader)?;
        let newer = length("max_completion_tokens", fields.max_completion_tokens)?;
        let max_tokens = newer.or(length("max_tokens", fields.max_tokens)?);
        let constraint = format.check()?;
        let tools =
            read_tools::<ChatTool>(fields.tools, fields.tool_choice, fields.parallel_tool_calls, reader)?;
        conversation.tools = tools.for_template();
        let constraint = format_of(&tools, constraint)?;
        if fields.modalities.is_some_and(|kinds| kinds != ["text"]) {
            return Err(ApiError::field("modalities", "only text can be generated"));
        }
        generation.stop.extend(tools.stop().map(str::to_owned));
        let includes_reasoning = fields.include_reasoning.unwrap_or(true);
        Ok(Self { conversation, generation, max_tokens, constraint, tools, includes_reasoning })
    }
}

impl ChatFields {
    /// Number of likeliest tokens to return with each token; `None` for no log-probabilities.
    fn log_probs(&self) -> Result<Option<u32>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, Some(Int(top))) if top > MAX_TOP => {
                Err(ApiError::field("top_logprobs", format!("{top}, at most {MAX_TOP} are returned")))
            }
            (true, top) => Ok(Some(top.map_or(0, |Int(top)| top))),
            (false, None | Some(Int(0))) => Ok(None),
            (false, Some(_)) => Err(ApiError::field("top_logprobs", "only possible if logprobs is true")),
        }
    }
}

/// Answers a chat.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let chat = Chat::read(&call.body, &mut reader)?;
    let Chat { conversation, mut generation, max_tokens, constraint, tools, includes_reasoning } = chat;
    server.need_model(generation.model.as_deref())?;
    generation.settle(&server, &mut reader).await?;
    let Prompted { ids: prompt, thinks } = server.prompt(conversation).await?;
    let (mask, answer) = server.answer_form(thinks, &tools, constraint).await?;
    let render = ChatRender {
        id: call.id.prefixed("chatcmpl"),
        log_probs: generation.sampling.log_probs.is_some(),
        includes_reasoning,
        prompt_ids: generation.return_ids.then(|| prompt.clone()),
        has_begun: false,
        options: generation.stream.unwrap_or_default(),
    };
    let mut request = generation.request(&server, prompt, max_tokens);
    request.mask = mask;
    let (requests, ignored) = (vec![request], reader.ignored());
    let job = Job { generation, requests, input: "messages", answer: Some(answer), ignored };
    respond(&server, call, job, render).await
}

/// Writes answers in the form of chats.
struct ChatRender {
    id: String,
    /// Whether log-probabilities were requested.
    log_probs: bool,
    includes_reasoning: bool,
    /// The prompt's ids, if they are to be returned.
    prompt_ids: Option<Vec<u32>>,
    /// Whether the first chunk was sent, which has the prompt's ids.
    has_begun: bool,
    options: StreamOptions,
}

/// A whole answer to a chat.
pub(crate) type Whole<'a> = Completion<'a, WholeObject, ChatChoice<ChoiceMessage>>;

/// A chunk of an answer to a chat.
pub(crate) type Chunk<'a> = Completion<'a, ChunkObject, ChatChoice<DeltaMessage>>;

/// A whole answer, or a chunk of one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{O}")]
pub(crate) struct Completion<'a, O, C> {
    id: &'a str,
    object: O,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    /// Usage of the call; null in chunks before the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    /// Work of the engine for the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagoda: Option<&'a EngineUse>,
    /// Parameters for the server that goes on, if the blocks of the prompt are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Transferred>,
}

/// Name of a whole answer.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline, rename = "ChatCompletion")]
pub(crate) enum WholeObject {
    #[default]
    #[serde(rename = "chat.completion")]
    Only,
}

/// Name of a chunk.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline, rename = "ChatCompletionChunk")]
pub(crate) enum ChunkObject {
    #[default]
    #[serde(rename = "chat.completion.chunk")]
    Only,
}

/// One answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{M}Choice")]
pub(crate) struct ChatChoice<M> {
    index: usize,
    #[serde(flatten)]
    message: M,
    logprobs: Option<ChatLogProbs>,
    /// `stop`, `length`, `tool_calls`, or null before the end.
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Stop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl ChatRender {
    fn completion<'a, O: Default, C>(
        &'a self,
        answering: &'a Answering,
        choices: Vec<C>,
    ) -> Completion<'a, O, C> {
        Completion {
            id: &self.id,
            object: O::default(),
            created: answering.created,
            model: &answering.server.options.model_name,
            choices,
            usage: None,
            prompt_token_ids: None,
            pagoda: None,
            kv_transfer_params: answering.transferred,
        }
    }

    fn choice<M>(
        &self,
        answering: &Answering,
        delta: Delta,
        message: impl FnOnce(Vec<AnswerPart>) -> M,
    ) -> ChatChoice<M> {
        let Delta { index, mut pieces, ids, log_probs, end, .. } = delta;
        pieces.retain(|piece| self.includes_reasoning || !matches!(piece, AnswerPart::Thought(_)));
        let tokenizer = answering.server.options.model.tokenizer.as_deref();
        let (finish_reason, stop_reason) = reasons(end);
        ChatChoice {
            index,
            message: message(pieces),
            logprobs: self.log_probs.then(|| ChatLogProbs::new(tokenizer, &log_probs)),
            finish_reason,
            stop_reason,
            token_ids: self.prompt_ids.is_some().then_some(ids),
        }
    }

    fn send(&mut self, answering: &Answering, choice: ChatChoice<DeltaMessage>, out: &mut Out) {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        let prompt_token_ids = self.prompt_ids.as_deref().filter(|_| !has_begun);
        let usage = usage_of_chunk(self.options, answering.usage);
        out.json(&Chunk { usage, prompt_token_ids, ..self.completion(answering, vec![choice]) });
    }
}

impl Render for ChatRender {
    fn grow(&mut self, answering: &Answering, mut delta: Delta, out: &mut Out) {
        let index = delta.index;
        let empty = || Delta { index, ..Delta::default() };
        if delta.begins {
            let mut first = self.choice(answering, empty(), |_| DeltaMessage::first());
            (first.logprobs, first.token_ids) = (None, None);
            self.send(answering, first, out);
        }
        // OpenAI's client ends calls at the chunk with the reason, so that one must add nothing to the answer.
        let end = if delta.pieces.is_empty() { None } else { delta.end.take() };
        let choice = self.choice(answering, delta, DeltaMessage::new);
        self.send(answering, choice, out);
        if end.is_some() {
            let last = self.choice(answering, Delta { end, ..empty() }, DeltaMessage::new);
            self.send(answering, last, out);
        }
    }

    fn end(&mut self, answering: &Answering, out: &mut Out) {
        if self.options.ends_with_usage() {
            let usage = Some(Some(answering.usage.into()));
            let pagoda = Some(&answering.engine);
            out.json(&Chunk { usage, pagoda, ..self.completion(answering, Vec::new()) });
        }
        out.text("[DONE]");
    }

    fn fail(&mut self, _: &Answering, error: &ApiError, out: &mut Out) {
        super::fail(error, out);
    }

    fn whole(&mut self, answering: &Answering, deltas: Vec<Delta>) -> Response {
        let message = |pieces| ChoiceMessage { message: WholeMessage::new(pieces) };
        let choices = deltas.into_iter().map(|delta| self.choice(answering, delta, message)).collect();
        json(&Whole {
            usage: Some(Some(answering.usage.into())),
            pagoda: Some(&answering.engine),
            prompt_token_ids: self.prompt_ids.as_deref(),
            ..self.completion(answering, choices)
        })
    }
}
