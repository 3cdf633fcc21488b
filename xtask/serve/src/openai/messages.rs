//! Messages of a chat, checked and converted for templates.

use pagoda::Conversation;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::parts::Text;
use crate::error::ApiError;
use crate::fields::Fields;

/// A message as clients send it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: Role,
    content: Option<Text>,
    name: Option<String>,
    /// Thoughts of a reasoning model before its answer.
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    refusal: Option<String>,
    /// Always null without sound, and sent back by clients that replay an answer.
    #[serde(rename = "audio")]
    _audio: Option<Never>,
    #[serde(rename = "annotations")]
    _annotations: Option<[Never; 0]>,
    #[serde(rename = "function_call")]
    _function_call: Option<Never>,
}

/// No value at all.
#[derive(Debug, Deserialize)]
enum Never {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolCall {
    id: Option<String>,
    #[serde(rename = "type")]
    _type: Option<FunctionKind>,
    function: FunctionCall,
    /// Position in a stream, which clients may include.
    #[serde(rename = "index")]
    _index: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FunctionKind {
    Function,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionCall {
    name: String,
    arguments: String,
}

/// Takes the fields of a chat for its template.
pub(crate) fn conversation(fields: &mut Fields<'_>) -> Result<Conversation, ApiError> {
    let messages: Vec<Message> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one message"));
    }
    let last_is_answer = messages.last().is_some_and(|message| message.role == Role::Assistant);
    let continues = fields.take("continue_final_message")?.unwrap_or(false);
    let begins = fields.take("add_generation_prompt")?.unwrap_or(!continues);
    if continues == begins {
        let reason = "an answer either begins or continues the last message, so the two must differ";
        return Err(ApiError::field("add_generation_prompt", reason));
    }
    if continues && !last_is_answer {
        return Err(ApiError::field("continue_final_message", "the last message is not by the assistant"));
    }
    let mut variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        let thinks = effort != "none";
        variables.entry("enable_thinking").or_insert(thinks.into());
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    if let Some(name) =
        ["messages", "tools", "documents"].into_iter().find(|name| variables.contains_key(*name))
    {
        return Err(ApiError::field(
            format!("chat_template_kwargs.{name}"),
            "this is a field of the request itself",
        ));
    }
    let documents: Option<Vec<Map<String, Value>>> = fields.take("documents")?;
    Ok(Conversation {
        messages: messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| message.into_template(index))
            .collect::<Result<_, _>>()?,
        tools: None,
        documents: documents.map(|documents| documents.into_iter().map(Value::from).collect()),
        variables,
        continues,
    })
}

impl Message {
    /// Converts the message to an object for templates.
    fn into_template(self, index: usize) -> Result<Value, ApiError> {
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
        if content.is_none() && !(answers && (calls.is_some() || self.reasoning_content.is_some())) {
            return Err(ApiError::field(at("content"), "this field is required"));
        }
        object.insert("content".into(), content.unwrap_or_default().into());
        let named = [("name", self.name), ("tool_call_id", self.tool_call_id)];
        object.extend(named.into_iter().filter_map(|(key, value)| Some((key.into(), value?.into()))));
        if let Some(thought) = self.reasoning_content {
            if !answers {
                return Err(ApiError::field(at("reasoning_content"), "only the assistant reasons"));
            }
            object.insert("reasoning_content".into(), thought.into());
        }
        if let Some(calls) = calls {
            if !answers {
                return Err(ApiError::field(at("tool_calls"), "only the assistant calls tools"));
            }
            let calls =
                calls.into_iter().enumerate().map(|(call, made)| made.into_template(&at("tool_calls"), call));
            object.insert("tool_calls".into(), calls.collect::<Result<Vec<_>, _>>()?.into());
        }
        Ok(object.into())
    }
}

impl ToolCall {
    /// Converts the arguments to an object, which templates expect.
    fn into_template(self, path: &str, index: usize) -> Result<Value, ApiError> {
        let FunctionCall { name, arguments } = self.function;
        let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
        let arguments: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
            let field = format!("{path}[{index}].function.arguments");
            ApiError::field(field, format!("not the text of a JSON object: {error}"))
        })?;
        Ok(serde_json::json!({
            "id": self.id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        }))
    }
}
