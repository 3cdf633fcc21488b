//! Requests of Anthropic's API as conversations.

use std::borrow::Cow;

use pagoda::Conversation;
use pagoda::tools::{ToolMode, Tools};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Int, Reader, length};
use crate::generation::{Generation, GenerationFields};
use crate::output_format::{FormatFields, OutputFormat, ResponseFormat};
use crate::tools::{checked_tools, format_of};

/// First words of a system block that Claude Code changes at every request. The server leaves the block out.
/// Otherwise every prompt would differ from the previous one near its first token, and no part of it would be cached.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Fields of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesFields")]
pub(crate) struct MessagesFields {
    messages: Vec<AnthropicMessage>,
    /// The system prompt.
    system: Option<Content>,
    /// Maximum number of tokens of the answer. Counts of tokens need none.
    #[schemars(range(min = 1))]
    max_tokens: Option<Int<i64>>,
    /// Texts that end the answer.
    stop_sequences: Option<Vec<String>>,
    thinking: Option<Thinking>,
    /// Functions that the answer may call. Tools of other types run elsewhere, and are left out.
    #[schemars(with = "Option<Vec<Tool>>")]
    tools: Option<Vec<Value>>,
    tool_choice: Option<ToolChoice>,
    output_config: Option<OutputConfig>,
    /// Older name of `output_config.format`.
    output_format: Option<ResponseFormat>,
    /// Id of a stored conversation, which is refused since conversations are not stored: clients then send all messages.
    #[schemars(skip)]
    thread: Option<Value>,
}

/// Types that together have all fields of the body of a request.
pub(crate) type MessagesBody = (MessagesFields, FormatFields, GenerationFields);

/// A request, checked.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(super) conversation: Conversation,
    pub(super) generation: Generation,
    /// Maximum number of tokens of the answer; `None` for as many as there is room for.
    pub(super) max_tokens: Option<u32>,
    pub(super) tools: Tools,
    pub(super) constraint: Option<OutputFormat>,
}

/// A message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicMessage")]
struct AnthropicMessage {
    role: Role,
    content: Content,
    /// Settings from this message on. The last ones are those of the answer.
    output_config: Option<TurnConfig>,
}

/// Changes of `output_config` from a message on.
#[derive(Debug, Deserialize, JsonSchema)]
struct TurnConfig {
    /// Effort of the model in its thoughts.
    effort: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AnthropicRole")]
enum Role {
    System,
    User,
    Assistant,
}

/// A text, or blocks.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a text or a list of blocks")]
enum Content {
    Text(String),
    Blocks(Vec<Value>),
}

impl JsonSchema for Content {
    fn schema_name() -> Cow<'static, str> {
        "AnthropicContent".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let blocks = generator.subschema_for::<Vec<Block>>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, blocks] })
    }
}

/// A part of a content.
#[derive(Debug, Deserialize, JsonSchema)]
struct Block {
    r#type: BlockType,
    /// Text of a block of type `text`.
    text: Option<String>,
    /// Thought of a block of type `thinking`.
    thinking: Option<String>,
    /// Id of the call, in a block of type `tool_use`.
    id: Option<String>,
    /// Name of the tool, in a block of type `tool_use`.
    name: Option<String>,
    /// Arguments of the call, in a block of type `tool_use`.
    input: Option<Map<String, Value>>,
    /// Id of the call that a block of type `tool_result` answers.
    tool_use_id: Option<String>,
    /// Content of a block of type `tool_result`: a text, or blocks of type `text`.
    #[schemars(with = "Option<Value>")]
    content: Option<Content>,
    // Parts of earlier answers that clients send back, and the mark of a tool's failure, which its content states.
    #[serde(rename = "citations")]
    #[schemars(skip)]
    _citations: Option<Value>,
    #[serde(rename = "signature")]
    #[schemars(skip)]
    _signature: Option<Value>,
    #[serde(rename = "data")]
    #[schemars(skip)]
    _data: Option<Value>,
    #[serde(rename = "caller")]
    #[schemars(skip)]
    _caller: Option<Value>,
    /// Whether the tool of a `tool_result` failed. Not used: the content says so.
    #[serde(rename = "is_error")]
    _is_error: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BlockType {
    Text,
    Thinking,
    RedactedThinking,
    ToolUse,
    ToolResult,
}

/// Whether the model thinks. Thoughts are returned in full.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicThinking")]
struct Thinking {
    r#type: ThinkingType,
    /// Not used: `max_tokens` counts thoughts, too.
    #[serde(rename = "budget_tokens")]
    _budget_tokens: Option<Int<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AnthropicThinkingType")]
enum ThinkingType {
    Enabled,
    Adaptive,
    Disabled,
}

/// Form and effort of the answer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
struct OutputConfig {
    format: Option<ResponseFormat>,
    /// Effort of the model in its thoughts.
    effort: Option<String>,
}

impl Messages {
    /// Reads a body; `generates` is true if an answer is requested, for which `max_tokens` must be given.
    pub(crate) fn read(body: &[u8], generates: bool, reader: &mut Reader) -> Result<Self, ApiError> {
        let (fields, forms, generation): MessagesBody = reader.body(body)?;
        if fields.thread.is_some() {
            let error = ApiError::field("thread", "conversations are not stored here: send all messages");
            return Err(error.with_code("thread_unsupported_request"));
        }
        let mut stops = fields.stop_sequences.unwrap_or_default();
        stops.retain(|stop| !stop.trim().is_empty());
        let mut variables = Map::new();
        if let Some(thinking) = fields.thinking {
            let thinks = thinking.r#type != ThinkingType::Disabled;
            variables.insert("enable_thinking".into(), thinks.into());
        }
        let output = fields.output_config.unwrap_or_default();
        let changed = |message: &AnthropicMessage| message.output_config.as_ref()?.effort.clone();
        if let Some(effort) = fields.messages.iter().rev().find_map(changed).or(output.effort) {
            variables.insert("reasoning_effort".into(), effort.into());
        }
        let (format, field) = match output.format {
            Some(format) => (Some(format), "output_config.format"),
            None => (fields.output_format, "output_format"),
        };
        let constraint = format.map(|format| format.form(field)).transpose()?.flatten().or(forms.check()?);
        let tools = tools(fields.tools.as_deref().unwrap_or_default(), fields.tool_choice, reader)?;
        let constraint = format_of(&tools, constraint)?;
        let messages = messages(fields.messages, fields.system, reader)?;
        let continues = messages.last().is_some_and(|last| last["role"] == "assistant");
        if generates && fields.max_tokens.is_none() {
            return Err(ApiError::field("max_tokens", "this field is required"));
        }
        let max_tokens = length("max_tokens", fields.max_tokens)?;
        let mut generation = generation.check(reader)?;
        generation.stop.extend(stops.into_iter().chain(tools.stop().map(str::to_owned)));
        let tools_seen = tools.for_template();
        let conversation =
            Conversation { messages, tools: tools_seen, variables, continues, ..Conversation::default() };
        Ok(Self { conversation, generation, max_tokens, tools, constraint })
    }
}

/// A tool in Anthropic's form.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicTool")]
struct Tool {
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    input_schema: Value,
    /// `custom`.
    #[serde(rename = "type")]
    _type: Option<String>,
}

/// Anthropic's `tool_choice`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicToolChoice")]
struct ToolChoice {
    r#type: Kind,
    /// The tool, if the type is `tool`.
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Auto,
    Any,
    Tool,
    None,
}

/// Reads the tools. Those of other types than `custom` run on Anthropic's servers, so they are left out.
fn tools(given: &[Value], choice: Option<ToolChoice>, reader: &mut Reader) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (index, tool) in given.iter().enumerate() {
        let at = format!("tools[{index}]");
        match tool["type"].as_str() {
            Some(kind) if kind != "custom" => reader.ignore(format!("{at} ({kind})"))?,
            _ => {
                let Tool { name, description, input_schema, .. } = reader.part(&at, tool)?;
                list.push(pagoda::tools::Tool { name, description, parameters: Some(input_schema) });
            }
        }
    }
    let Some(ToolChoice { r#type, name, disable_parallel_tool_use }) = choice else {
        return checked_tools(list, ToolMode::Auto, None);
    };
    let choice = match (r#type, name) {
        (Kind::Auto, None) => ToolMode::Auto,
        (Kind::Any, None) => ToolMode::Required,
        (Kind::None, None) => ToolMode::None,
        (Kind::Tool, Some(name)) => ToolMode::Named(name),
        _ => return Err(ApiError::field("tool_choice.name", "belongs to type tool, which needs it")),
    };
    checked_tools(list, choice, disable_parallel_tool_use.map(|disabled| !disabled))
}

fn messages(
    given: Vec<AnthropicMessage>,
    system: Option<Content>,
    reader: &mut Reader,
) -> Result<Vec<Value>, ApiError> {
    if given.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one message"));
    }
    let mut messages = Vec::new();
    if let Some(system) = system {
        let texts = system.texts("system", reader)?;
        let kept: Vec<String> = texts.into_iter().filter(|text| !text.starts_with(BILLING_HEADER)).collect();
        if !kept.is_empty() {
            messages.push(json!({ "role": "system", "content": kept.join("\n") }));
        }
    }
    for (index, AnthropicMessage { role, content, .. }) in given.into_iter().enumerate() {
        let at = format!("messages[{index}].content");
        match role {
            Role::System => {
                let texts = content.texts(&at, reader)?;
                messages.push(json!({ "role": "system", "content": texts.join("\n") }));
            }
            Role::User => messages.extend(user(content, &at, reader)?),
            Role::Assistant => messages.push(assistant(content, &at, reader)?),
        }
    }
    Ok(messages)
}

impl Content {
    /// The blocks, each with its path.
    fn blocks(self, at: &str, reader: &mut Reader) -> Result<Vec<(String, Block)>, ApiError> {
        let mut parse = |(index, block): (usize, Value)| {
            let at = format!("{at}[{index}]");
            let kind = block["type"].as_str().filter(|kind| matches!(*kind, "image" | "document"));
            if let Some(kind) = kind {
                return Err(ApiError::field(
                    format!("{at}.type"),
                    format!("{kind}: models here read text alone"),
                ));
            }
            let block = reader.part(&at, &block)?;
            Ok((at, block))
        };
        match self {
            Self::Text(text) => Ok(vec![(at.to_owned(), Block::of_text(text))]),
            Self::Blocks(blocks) => blocks.into_iter().enumerate().map(&mut parse).collect(),
        }
    }

    /// The texts of a content, or an error if the content has a block that is not text.
    fn texts(self, at: &str, reader: &mut Reader) -> Result<Vec<String>, ApiError> {
        let text = |(at, block): (String, Block)| match block.r#type {
            BlockType::Text => needed(&at, "text", block.text),
            _ => Err(ApiError::field(at, "only text is possible here")),
        };
        self.blocks(at, reader)?.into_iter().map(text).collect()
    }
}

/// Returns a field that a block of its type must have, or an error if it is missing.
fn needed<T>(at: &str, name: &str, field: Option<T>) -> Result<T, ApiError> {
    field.ok_or_else(|| ApiError::field(format!("{at}.{name}"), "this field is required"))
}

impl Block {
    fn of_text(text: String) -> Self {
        Self {
            r#type: BlockType::Text,
            text: Some(text),
            thinking: None,
            id: None,
            name: None,
            input: None,
            tool_use_id: None,
            content: None,
            _citations: None,
            _signature: None,
            _data: None,
            _caller: None,
            _is_error: None,
        }
    }
}

/// Converts a message of the user for templates: results of tools become messages of their own, before the user's text.
fn user(content: Content, at: &str, reader: &mut Reader) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    let mut texts = Vec::new();
    for (at, block) in content.blocks(at, reader)? {
        match block.r#type {
            BlockType::Text => texts.push(needed(&at, "text", block.text)?),
            BlockType::ToolResult => {
                let id = needed(&at, "tool_use_id", block.tool_use_id)?;
                let inner = format!("{at}.content");
                let texts = block.content.map(|content| content.texts(&inner, reader)).transpose()?;
                let text = texts.unwrap_or_default().join("\n");
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
            }
            _ => return Err(ApiError::field(at, "only the assistant thinks and uses tools")),
        }
    }
    if !texts.is_empty() {
        messages.push(json!({ "role": "user", "content": texts.join("\n") }));
    }
    Ok(messages)
}

fn assistant(content: Content, at: &str, reader: &mut Reader) -> Result<Value, ApiError> {
    let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (at, block) in content.blocks(at, reader)? {
        match block.r#type {
            BlockType::Text => texts.push(needed(&at, "text", block.text)?),
            BlockType::Thinking => thoughts.push(needed(&at, "thinking", block.thinking)?),
            BlockType::RedactedThinking => {}
            BlockType::ToolUse => {
                let (id, name) = (needed(&at, "id", block.id)?, needed(&at, "name", block.name)?);
                let input = needed(&at, "input", block.input)?;
                calls.push(
                    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input } }),
                );
            }
            BlockType::ToolResult => {
                return Err(ApiError::field(at, "results of tools come from the user"));
            }
        }
    }
    message.insert("content".into(), texts.join("\n").into());
    if !thoughts.is_empty() {
        message.insert("reasoning_content".into(), thoughts.join("\n").into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    Ok(message.into())
}
