//! Requests of Anthropic's API as conversations.

use pagoda::Conversation;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::tools::{Function, ToolMode, Tools};

/// Begins a system block that Claude Code changes at every request. Left in, it would make every prompt differ
/// from the one before near its first token, so that nothing of it were cached.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// A request.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(super) conversation: Conversation,
    pub(super) generation: Generation,
    pub(super) max_tokens: u32,
    pub(super) tools: Tools,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: Role,
    content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    System,
    User,
    Assistant,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Value>),
}

/// A part of a content.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Block {
    Text { text: String },
    Thinking { thinking: String },
    RedactedThinking {},
    ToolUse { id: String, name: String, input: Map<String, Value> },
    ToolResult { tool_use_id: String, content: Option<Content> },
}

/// Fields of blocks that templates have no place for: cache control, since caching is automatic; parts of earlier answers
/// that clients send back; and the mark of a tool's failure, which its content states.
const UNSEEN: [&str; 6] = ["cache_control", "citations", "signature", "data", "caller", "is_error"];

/// Form of thoughts in the answer. This server has no summaries: thoughts are returned in full.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Display {
    Summarized,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Thinking {
    Enabled {
        #[serde(rename = "budget_tokens")]
        _budget_tokens: u32,
        #[serde(rename = "display")]
        _display: Option<Display>,
    },
    Adaptive {},
    Disabled {},
}

impl Messages {
    /// Reads a body; `generates` is true if an answer is requested, for which `max_tokens` must be given.
    pub(crate) fn read(body: &[u8], generates: bool) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        fields.skip(&["metadata", "cache_control"]);
        let mut stops: Vec<String> = fields.take("stop_sequences")?.unwrap_or_default();
        stops.retain(|stop| !stop.trim().is_empty());
        let mut variables = Map::new();
        if let Some(thinking) = fields.take("thinking")? {
            let thinks = !matches!(thinking, Thinking::Disabled {});
            variables.insert("enable_thinking".into(), thinks.into());
        }
        if let Some(tier) = fields.take::<String>("service_tier")?
            && !matches!(tier.as_str(), "auto" | "standard_only")
        {
            return Err(ApiError::field("service_tier", "there is one tier"));
        }
        let tools = tools(&mut fields)?;
        let messages = messages(&mut fields)?;
        let continues = messages.last().is_some_and(|last| last["role"] == "assistant");
        let max_tokens = fields.count("max_tokens")?;
        let mut generation = Generation::take(&mut fields)?;
        generation.stop.extend(stops.into_iter().chain(tools.stop().map(str::to_owned)));
        fields.end()?;
        let max_tokens = match max_tokens {
            None if generates => return Err(ApiError::field("max_tokens", "this field is required")),
            max_tokens => max_tokens.unwrap_or(1),
        };
        let tools_seen = tools.for_template();
        let conversation =
            Conversation { messages, tools: tools_seen, variables, continues, ..Conversation::default() };
        Ok(Self { conversation, generation, max_tokens, tools })
    }
}

/// A tool in Anthropic's form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    description: Option<String>,
    input_schema: Value,
    #[serde(rename = "type")]
    _type: Option<Custom>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<Value>,
}

/// Tools of other types run on Anthropic's servers.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Custom {
    Custom,
}

/// Anthropic's `tool_choice`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolChoice {
    r#type: Kind,
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Auto,
    Any,
    Tool,
    None,
}

fn tools(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let list: Vec<Tool> = fields.take("tools")?.unwrap_or_default();
    let function = |tool: Tool| Function {
        name: tool.name,
        description: tool.description,
        parameters: Some(tool.input_schema),
        strict: None,
    };
    let list = list.into_iter().map(function).collect();
    let Some(ToolChoice { r#type, name, disable_parallel_tool_use }) = fields.take("tool_choice")? else {
        return Tools::new(list, ToolMode::Auto, true);
    };
    let choice = match (r#type, name) {
        (Kind::Auto, None) => ToolMode::Auto,
        (Kind::Any, None) => ToolMode::Required,
        (Kind::None, None) => ToolMode::None,
        (Kind::Tool, Some(name)) => ToolMode::Named(name),
        _ => return Err(ApiError::field("tool_choice.name", "belongs to type tool, which needs it")),
    };
    Tools::new(list, choice, !disable_parallel_tool_use)
}

fn messages(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let given: Vec<Message> = fields.need("messages")?;
    if given.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one message"));
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Content>("system")? {
        let texts = system.texts("system")?;
        let kept: Vec<String> = texts.into_iter().filter(|text| !text.starts_with(BILLING_HEADER)).collect();
        if !kept.is_empty() {
            messages.push(json!({ "role": "system", "content": kept.join("\n") }));
        }
    }
    for (index, Message { role, content }) in given.into_iter().enumerate() {
        let at = format!("messages[{index}].content");
        match role {
            Role::System => {
                messages.push(json!({ "role": "system", "content": content.texts(&at)?.join("\n") }))
            }
            Role::User => messages.extend(user(content, &at)?),
            Role::Assistant => messages.push(assistant(content, &at)?),
        }
    }
    Ok(messages)
}

impl Content {
    fn blocks(self, at: &str) -> Result<Vec<Block>, ApiError> {
        let parse = |(index, mut block): (usize, Value)| {
            if let Some(fields) = block.as_object_mut() {
                // Clients send blocks back with null in every field of a later version of the API.
                fields.retain(|name, value| !value.is_null() && !UNSEEN.contains(&name.as_str()));
            }
            let kind = block["type"].as_str().filter(|kind| matches!(*kind, "image" | "document"));
            if let Some(kind) = kind {
                let reason = format!("{kind}: models here read text alone");
                return Err(ApiError::field(format!("{at}[{index}].type"), reason));
            }
            serde_json::from_value(block)
                .map_err(|error| ApiError::field(format!("{at}[{index}]"), error.to_string()))
        };
        match self {
            Self::Text(text) => Ok(vec![Block::Text { text }]),
            Self::Blocks(blocks) => blocks.into_iter().enumerate().map(parse).collect(),
        }
    }

    /// The texts of a content that has nothing else.
    fn texts(self, at: &str) -> Result<Vec<String>, ApiError> {
        let text = |(index, block)| match block {
            Block::Text { text } => Ok(text),
            _ => Err(ApiError::field(format!("{at}[{index}]"), "only text is possible here")),
        };
        self.blocks(at)?.into_iter().enumerate().map(text).collect()
    }
}

/// Results of tools are messages of their own in templates, before what the user says.
fn user(content: Content, at: &str) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    let mut texts = Vec::new();
    for (index, block) in content.blocks(at)?.into_iter().enumerate() {
        match block {
            Block::Text { text } => texts.push(text),
            Block::ToolResult { tool_use_id, content } => {
                let inner = format!("{at}[{index}].content");
                let texts = content.map(|content| content.texts(&inner)).transpose()?.unwrap_or_default();
                messages.push(
                    json!({ "role": "tool", "tool_call_id": tool_use_id, "content": texts.join("\n") }),
                );
            }
            _ => {
                return Err(ApiError::field(
                    format!("{at}[{index}]"),
                    "only the assistant thinks and uses tools",
                ));
            }
        }
    }
    if !texts.is_empty() {
        messages.push(json!({ "role": "user", "content": texts.join("\n") }));
    }
    Ok(messages)
}

fn assistant(content: Content, at: &str) -> Result<Value, ApiError> {
    let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in content.blocks(at)?.into_iter().enumerate() {
        match block {
            Block::Text { text } => texts.push(text),
            Block::Thinking { thinking } => thoughts.push(thinking),
            Block::RedactedThinking {} => {}
            Block::ToolUse { id, name, input } => {
                calls.push(
                    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input } }),
                );
            }
            Block::ToolResult { .. } => {
                return Err(ApiError::field(format!("{at}[{index}]"), "results of tools come from the user"));
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
