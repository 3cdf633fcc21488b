//! `POST /v1/responses`.

mod items;
mod output;
mod reply;
mod tools;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::Conversation;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Calls};
use crate::call::Call;
use crate::constraint::{Constraint, NamedSchema};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::running::Running;
use crate::server::{Prompted, Server};
use crate::sse;
use crate::tools::Tools;
use reply::{ResponsesChunks, ResponsesReply};

/// Fields of a response.
#[derive(Debug)]
pub(crate) struct Asked {
    conversation: Conversation,
    generation: Generation,
    constraint: Option<Constraint>,
    tools: Tools,
    max_tokens: Option<u32>,
    /// Fields that the response repeats.
    repeated: Map<String, Value>,
}

/// The field `text` of a request: the format of the answer.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Text {
    format: Option<Format>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format {
    Text {},
    JsonObject {},
    JsonSchema(NamedSchema),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Reasoning {
    effort: Option<String>,
    /// Form of summaries. This server has none: thoughts are returned in full.
    #[serde(rename = "summary")]
    _summary: Option<String>,
}

impl Asked {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let repeated = repeated(&mut fields)?;
        let tools = Tools::take::<tools::Tool>(&mut fields)?;
        let mut constraint = constraint(&mut fields)?;
        if tools.calls() == Calls::Always && constraint.is_some() {
            return Err(ApiError::field("tool_choice", "the output has another form already"));
        }
        constraint = constraint.or_else(|| tools.constraint());
        let mut messages = items::messages(&mut fields)?;
        let instructions: Option<String> = fields.take("instructions")?;
        if let Some(text) = &instructions {
            messages.insert(0, json!({ "role": "system", "content": text }));
        }
        let mut variables = Map::new();
        if let Some(effort) = fields.take::<Reasoning>("reasoning")?.and_then(|reasoning| reasoning.effort) {
            variables.insert("enable_thinking".into(), (effort != "none").into());
            variables.insert("reasoning_effort".into(), effort.into());
        }
        let max_tokens = fields.count("max_output_tokens")?;
        refuse_others(&mut fields)?;
        let mut generation = Generation::take(&mut fields)?;
        generation.stop.extend(tools.stop().map(str::to_owned));
        if generation.samples != 1 {
            return Err(ApiError::field("n", "a response is one sample"));
        }
        fields.end()?;
        let mut repeated = repeated;
        repeated.insert("instructions".into(), instructions.into());
        repeated.insert("max_output_tokens".into(), max_tokens.into());
        let seen = tools.for_template();
        let conversation = Conversation { messages, tools: seen, variables, ..Conversation::default() };
        Ok(Self { conversation, generation, constraint, tools, max_tokens, repeated })
    }
}

/// Fields that the response repeats.
fn repeated(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let metadata: Option<Map<String, Value>> = fields.take("metadata")?;
    let mut repeated = Map::from_iter([("metadata".to_owned(), metadata.unwrap_or_default().into())]);
    if let Some(tools) = fields.look::<Vec<tools::Tool>>("tools")? {
        repeated.insert("tools".into(), tools.iter().map(tools::Tool::to_json).collect());
    }
    for name in ["tool_choice", "parallel_tool_calls", "text"] {
        let given = fields.look(name)?.filter(|given: &Value| !given.is_null());
        repeated.extend(given.map(|given| (name.to_owned(), given)));
    }
    for name in ["prompt_cache_key", "safety_identifier", "max_tool_calls"] {
        repeated.insert(name.to_owned(), fields.look(name)?.unwrap_or(Value::Null));
    }
    Ok(repeated)
}

fn constraint(fields: &mut Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let object = || json!({ "type": "object" });
    let schema = match fields.take::<Text>("text")?.and_then(|text| text.format) {
        None | Some(Format::Text {}) => return Ok(None),
        Some(Format::JsonObject {}) => object(),
        Some(Format::JsonSchema(named)) => named.schema().unwrap_or_else(object),
    };
    Ok(Some(Constraint::schema(schema, "text.format")))
}

fn refuse_others(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.only("store", &false, "responses are not stored")?;
    fields.only("background", &false, "responses are not stored")?;
    fields.only("truncation", &"disabled".to_owned(), "inputs are never cut")?;
    fields.only("include", &Vec::<String>::new(), "there is nothing more to include")?;
    fields.only("top_logprobs", &0, "not supported here; chats have log-probabilities")?;
    if let Some(tier) = fields.take::<String>("service_tier")?
        && !matches!(tier.as_str(), "auto" | "default")
    {
        return Err(ApiError::field("service_tier", "there is one tier; order requests by priority"));
    }
    for name in ["previous_response_id", "conversation", "prompt", "max_tool_calls"] {
        fields.refuse(name, "not supported: responses are not stored, and tools run at the caller's")?;
    }
    Ok(())
}

/// Answers.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let Asked { conversation, mut generation, constraint, tools, max_tokens, repeated } =
        Asked::read(&call.body)?;
    server.need_model(generation.model.as_deref())?;
    generation.settle(&server).await?;
    let Prompted { ids: prompt, thinks } = server.prompt(conversation).await?;
    let mask = server.mask(constraint).await?;
    let mut reply = ResponsesReply::new(&server, &call, &generation, repeated);
    reply.answer = Answer::new(tools.calls(), thinks);
    reply.engine = server.engine_use(generation.salt_for(&call.client).as_deref(), &[&prompt]);
    let mut request = generation.request(&server, prompt, max_tokens);
    request.mask = mask;
    let running = Running::start(&server, vec![request], call, "input").await?;
    match generation.stream {
        Some(_) => Ok(sse::respond(running, ResponsesChunks::new(reply), server.options.keep_alive)),
        None => reply.whole(running).await,
    }
}
