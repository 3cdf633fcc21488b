//! Messages of a chat, checked and converted for templates.

use pagoda::Conversation;
use pagoda::tools::readable;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::parts::Text;
use crate::error::ApiError;
use crate::fields::Reader;

/// Fields of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Conversation")]
pub(crate) struct ConversationFields {
    #[schemars(required)]
    messages: Option<Vec<ChatMessage>>,
    /// Continue the last message, which is by the assistant.
    continue_final_message: Option<bool>,
    /// Begin an answer. It must differ from `continue_final_message`.
    add_generation_prompt: Option<bool>,
    /// Variables of the chat template.
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Documents for the chat template.
    documents: Option<Vec<Map<String, Value>>>,
    /// Effort of the model in its thoughts; `none` for no thoughts.
    reasoning_effort: Option<String>,
    reasoning: Option<Reasoning>,
    /// Whether the model thinks.
    enable_thinking: Option<bool>,
    thinking: Option<Thinking>,
    /// Whether the model thinks, or its effort.
    think: Option<Think>,
}

/// Effort of the model in its thoughts.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Reasoning {
    pub(crate) effort: Option<String>,
    /// Whether the model thinks at all.
    pub(crate) enabled: Option<bool>,
    /// Form of summaries. This server has none: thoughts are returned in full.
    #[serde(rename = "summary")]
    _summary: Option<String>,
}

/// Whether the model thinks, as some open models' services write it.
#[derive(Debug, Deserialize, JsonSchema)]
struct Thinking {
    r#type: ThinkingType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ThinkingType {
    Enabled,
    Disabled,
    Auto,
}

/// Whether the model thinks, as Ollama writes it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be true, false, or an effort")]
enum Think {
    Switch(bool),
    Effort(String),
}

/// A message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
struct ChatMessage {
    role: Role,
    content: Option<Text>,
    name: Option<String>,
    /// Thoughts of a reasoning model before its answer.
    reasoning_content: Option<String>,
    /// Another name of `reasoning_content`.
    reasoning: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    /// The call that a message of role `tool` answers.
    tool_call_id: Option<String>,
    refusal: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize, JsonSchema)]
struct ToolCall {
    id: Option<String>,
    #[serde(rename = "type")]
    _type: Option<FunctionType>,
    function: FunctionCall,
    /// Position in a stream, which clients may include.
    #[serde(rename = "index")]
    _index: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FunctionType {
    Function,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct FunctionCall {
    name: String,
    /// The text of a JSON object, as generated.
    arguments: String,
}

/// Sets the variables of chat templates that say how much a model thinks; `none` is not at all.
pub(crate) fn set_effort(effort: String, variables: &mut Map<String, Value>) {
    let thinks = effort != "none";
    variables.entry("enable_thinking").or_insert(thinks.into());
    variables.entry("reasoning_effort").or_insert(effort.into());
}

impl ConversationFields {
    /// Checks the fields and converts them for a template.
    pub(crate) fn check(self, reader: &mut Reader) -> Result<Conversation, ApiError> {
        let messages = self.messages.ok_or_else(|| ApiError::field("messages", "this field is required"))?;
        let Some(last) = messages.last() else {
            return Err(ApiError::field("messages", "there must be at least one message"));
        };
        let last_is_answer = last.role == Role::Assistant;
        let continues = self.continue_final_message.unwrap_or(false);
        if continues == self.add_generation_prompt.unwrap_or(!continues) {
            let reason = "an answer either begins or continues the last message, so the two must differ";
            return Err(ApiError::field("add_generation_prompt", reason));
        }
        if continues && !last_is_answer {
            return Err(ApiError::field(
                "continue_final_message",
                "the last message is not by the assistant",
            ));
        }
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        let own = ["messages", "tools", "documents"].into_iter().find(|name| variables.contains_key(*name));
        if let Some(name) = own {
            let name = format!("chat_template_kwargs.{name}");
            return Err(ApiError::field(name, "this is a field of the request itself"));
        }
        let reasoning = self.reasoning.unwrap_or_default();
        let (switch, think) = match self.think {
            Some(Think::Switch(thinks)) => (Some(thinks), None),
            Some(Think::Effort(effort)) => (None, Some(effort)),
            None => (None, None),
        };
        let thinking = self.thinking.map(|thinking| thinking.r#type != ThinkingType::Disabled);
        if let Some(thinks) = self.enable_thinking.or(thinking).or(switch).or(reasoning.enabled) {
            variables.entry("enable_thinking").or_insert(thinks.into());
        }
        if let Some(effort) = self.reasoning_effort.or(reasoning.effort).or(think) {
            set_effort(effort, &mut variables);
        }
        Ok(Conversation {
            messages: messages
                .into_iter()
                .enumerate()
                .map(|(index, message)| message.into_template(index, reader))
                .collect::<Result<_, _>>()?,
            tools: None,
            documents: self.documents.map(|documents| documents.into_iter().map(Value::from).collect()),
            variables,
            continues,
        })
    }
}

impl ChatMessage {
    /// Converts the message to an object for templates.
    fn into_template(self, index: usize, reader: &mut Reader) -> Result<Value, ApiError> {
        let at = |name: &str| format!("messages[{index}].{name}");
        let mut object = Map::new();
        let role = match self.role {
            // Templates of open models know the older name.
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        object.insert("role".into(), role.into());
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let answers = self.role == Role::Assistant;
        let content = self.content.map(|Text(text)| text).or(self.refusal.filter(|_| answers));
        let thought = self.reasoning_content.or(self.reasoning);
        if content.is_none() && !(answers && (calls.is_some() || thought.is_some())) {
            return Err(ApiError::field(at("content"), "this field is required"));
        }
        object.insert("content".into(), content.unwrap_or_default().into());
        let named = [("name", self.name), ("tool_call_id", self.tool_call_id)];
        object.extend(named.into_iter().filter_map(|(key, value)| Some((key.into(), value?.into()))));
        if let Some(thought) = thought {
            if !answers {
                return Err(ApiError::field(at("reasoning_content"), "only the assistant reasons"));
            }
            object.insert("reasoning_content".into(), thought.into());
        }
        if let Some(calls) = calls {
            if !answers {
                return Err(ApiError::field(at("tool_calls"), "only the assistant calls tools"));
            }
            let at = at("tool_calls");
            let calls = calls.into_iter().enumerate();
            let calls = calls.map(|(call, made)| made.into_template(&format!("{at}[{call}]"), reader));
            object.insert("tool_calls".into(), calls.collect::<Result<Vec<_>, _>>()?.into());
        }
        Ok(object.into())
    }
}

impl ToolCall {
    /// Converts the arguments to an object, which templates expect.
    fn into_template(self, at: &str, reader: &mut Reader) -> Result<Value, ApiError> {
        let FunctionCall { name, arguments } = self.function;
        let arguments = arguments_object(&format!("{at}.function.arguments"), &arguments, reader)?;
        Ok(serde_json::json!({
            "id": self.id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        }))
    }
}

/// Parses the arguments of a call that a client sends back. If the model wrote invalid JSON, only the readable part
/// is kept, so that the conversation can go on.
pub(crate) fn arguments_object(
    at: &str,
    text: &str,
    reader: &mut Reader,
) -> Result<Map<String, Value>, ApiError> {
    match text.trim() {
        "" => Ok(Map::new()),
        text => match serde_json::from_str(text) {
            Ok(object) => Ok(object),
            Err(_) if text.starts_with('{') => {
                reader.ignore(format!("{at} (in part)"))?;
                Ok(readable(text))
            }
            Err(error) => Err(ApiError::field(at, format!("not the text of a JSON object: {error}"))),
        },
    }
}
