//! `POST /v1/responses` and its count of tokens.

mod items;
mod output;
mod reply;
mod tools;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::Conversation;
use pagoda::tools::Tools;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::messages::{Reasoning, set_effort};
use crate::answering::{Job, respond};
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{Int, Reader, length};
use crate::generation::{Generation, GenerationFields};
use crate::output_format::{OutputFormat, ResponseFormat};
use crate::reply as replies;
use crate::server::{Prompted, Server};
use crate::tools::{ToolChoice, format_of, read_tools};
use items::Input;
use reply::{Repeated, ResponsesRender};
pub(crate) use reply::{ResponseBody, ResponseEvent};
use tools::Tool;

/// Fields of a response.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseFields")]
pub(crate) struct ResponsesFields {
    input: Input,
    /// The system prompt.
    instructions: Option<String>,
    /// Maximum number of tokens of the answer. Without it, as many as there is room for.
    #[schemars(range(min = -1))]
    max_output_tokens: Option<Int<i64>>,
    reasoning: Option<Reasoning>,
    /// Format of the answer.
    #[schemars(with = "Option<Text>")]
    text: Option<Value>,
    /// Functions that the answer may call. Tools of other types run elsewhere, and are left out.
    #[schemars(with = "Option<Vec<Tool>>")]
    tools: Option<Vec<Value>>,
    /// Whether the answer may call a tool, must, or must call the one of this name.
    #[schemars(with = "Option<ToolChoice>")]
    tool_choice: Option<Value>,
    /// Whether the answer may have several calls.
    parallel_tool_calls: Option<bool>,
    /// Extra parts of the response. They belong to other tools and models and are ignored, except that
    /// log-probabilities are refused: only chats have them.
    include: Option<Vec<String>>,
    /// Must be 0: chats have log-probabilities.
    #[schemars(range(min = 0, max = 0))]
    top_logprobs: Option<Int<u32>>,
    /// Metadata of the caller, returned unchanged.
    metadata: Option<Map<String, Value>>,
    /// Key of the caller for prompt caches, returned unchanged.
    prompt_cache_key: Option<Value>,
    /// Identifier of the caller's user, returned unchanged.
    safety_identifier: Option<Value>,
}

/// Types that together have all fields of a response's body.
pub(crate) type ResponsesBody = (ResponsesFields, GenerationFields);

/// The field `text` of a request.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ResponseText")]
struct Text {
    format: Option<ResponseFormat>,
}

/// A request for a response, checked.
#[derive(Debug)]
struct Responses {
    conversation: Conversation,
    generation: Generation,
    constraint: Option<OutputFormat>,
    tools: Tools,
    max_tokens: Option<u32>,
    repeated: Repeated,
}

impl Responses {
    fn read(body: &[u8], reader: &mut Reader) -> Result<Self, ApiError> {
        let (mut fields, generation): ResponsesBody = reader.body(body)?;
        fields.refuse_log_probs()?;
        let max_tokens = length("max_output_tokens", fields.max_output_tokens)?;
        let mut generation = generation.check(reader)?;
        if generation.samples != 1 {
            return Err(ApiError::field("n", "a response is one sample"));
        }
        let repeated = fields.repeated(max_tokens, &generation);
        let given = fields.tool_choice.as_ref();
        let choice: Option<ToolChoice> =
            given.map(|choice| reader.part("tool_choice", choice)).transpose()?;
        let tools = read_tools::<Tool>(fields.tools.take(), choice, fields.parallel_tool_calls, reader)?;
        let text: Option<Text> = fields.text.as_ref().map(|text| reader.part("text", text)).transpose()?;
        let format = text.and_then(|text| text.format);
        let constraint = format.map(|format| format.form("text.format")).transpose()?.flatten();
        let constraint = format_of(&tools, constraint)?;
        generation.stop.extend(tools.stop().map(str::to_owned));
        let mut messages = fields.input.messages(reader)?;
        if let Some(text) = &fields.instructions {
            messages.insert(0, json!({ "role": "system", "content": text }));
        }
        let mut variables = Map::new();
        if let Some(effort) = fields.reasoning.and_then(|reasoning| reasoning.effort) {
            set_effort(effort, &mut variables);
        }
        let seen = tools.for_template();
        let conversation = Conversation { messages, tools: seen, variables, ..Conversation::default() };
        Ok(Self { conversation, generation, constraint, tools, max_tokens, repeated })
    }
}

impl ResponsesFields {
    fn refuse_log_probs(&self) -> Result<(), ApiError> {
        const WHY: &str = "not supported here; chats have log-probabilities";
        if self.top_logprobs.is_some_and(|Int(top)| top > 0) {
            return Err(ApiError::field("top_logprobs", WHY));
        }
        match self.include.iter().flatten().position(|part| part.ends_with(".logprobs")) {
            Some(index) => Err(ApiError::field(format!("include[{index}]"), WHY)),
            None => Ok(()),
        }
    }

    /// Fields that the response repeats.
    fn repeated(&self, max_tokens: Option<u32>, generation: &Generation) -> Repeated {
        let sampling = &generation.sampling;
        // As the call states it: 0.7, and not 0.699999988.
        let exact = |value: f32| value.to_string().parse::<f64>().unwrap_or_else(|_| value.into());
        let tools = self.tools.as_ref().map(|tools| tools.iter().map(tools::repeated).collect());
        Repeated {
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            tool_choice: self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            tools: tools.unwrap_or_default(),
            text: self.text.clone().unwrap_or_else(|| json!({ "format": { "type": "text" } })),
            metadata: self.metadata.clone().unwrap_or_default(),
            prompt_cache_key: self.prompt_cache_key.clone(),
            safety_identifier: self.safety_identifier.clone(),
            max_tool_calls: None,
            instructions: self.instructions.clone(),
            max_output_tokens: max_tokens,
            temperature: exact(sampling.temperature),
            top_p: exact(sampling.top_p),
            presence_penalty: exact(sampling.penalties.presence),
            frequency_penalty: exact(sampling.penalties.frequency),
        }
    }
}

/// Number of tokens of an input.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponseInputTokens")]
pub(crate) struct ResponseTokens {
    #[schemars(extend("const" = "response.input_tokens"))]
    object: &'static str,
    input_tokens: usize,
}

/// `POST /v1/responses/input_tokens`: the tokens that the input of a response has.
pub(crate) async fn input_tokens(
    State(server): State<Arc<Server>>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let Responses { conversation, generation, .. } = Responses::read(&call.body, &mut reader)?;
    server.check_model(generation.model.as_deref())?;
    let ids = server.compute(move |model| Ok(model.conversation_ids(conversation)?)).await?;
    Ok(replies::json(&ResponseTokens { object: "response.input_tokens", input_tokens: ids.len() }))
}

/// Answers a request for a response.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let Responses { conversation, mut generation, constraint, tools, max_tokens, repeated } =
        Responses::read(&call.body, &mut reader)?;
    server.need_model(generation.model.as_deref())?;
    generation.settle(&server, &mut reader).await?;
    let Prompted { ids: prompt, thinks } = server.prompt(conversation).await?;
    let (mask, answer) = server.answer_form(thinks, &tools, constraint).await?;
    let render = ResponsesRender::new(call.id.prefixed("resp"), repeated);
    let mut request = generation.request(&server, prompt, max_tokens);
    request.mask = mask;
    let (requests, ignored) = (vec![request], reader.ignored());
    let job = Job { generation, requests, input: "input", answer: Some(answer), ignored };
    respond(&server, call, job, render).await
}
