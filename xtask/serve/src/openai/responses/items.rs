//! Items of an input as messages.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Reader;
use crate::openai::messages::arguments_object;
use crate::openai::parts::Text;

/// A text, or the items of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a text or a list of items")]
#[schemars(rename = "ResponseInput")]
pub(super) enum Input {
    Text(String),
    #[schemars(with = "Vec<Item>")]
    Items(Vec<Value>),
}

/// An item of a conversation. Ids and states refer to stored responses, which this server does not have.
#[derive(Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "InputItem")]
enum Item {
    Message {
        role: Role,
        content: Text,
    },
    FunctionCall {
        call_id: String,
        name: String,
        /// The text of a JSON object.
        arguments: String,
    },
    FunctionCallOutput {
        call_id: String,
        output: Text,
    },
    /// Thoughts of a model in an earlier turn, which templates omit.
    Reasoning {},
    /// An item of an earlier response. Only thoughts can be referred to, since no item is stored.
    #[serde(rename = "item_reference")]
    Reference {
        id: String,
    },
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ItemRole")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
}

impl Input {
    /// The messages of the conversation.
    pub(super) fn messages(self, reader: &mut Reader) -> Result<Vec<Value>, ApiError> {
        match self {
            Self::Text(text) => Ok(vec![json!({ "role": "user", "content": text })]),
            Self::Items(items) => {
                let mut messages = Vec::new();
                for (index, item) in items.into_iter().enumerate() {
                    if let Some(message) = message(index, item, reader)? {
                        add(&mut messages, message);
                    }
                }
                if messages.is_empty() {
                    Err(ApiError::field("input", "there is no message"))
                } else {
                    Ok(messages)
                }
            }
        }
    }
}

/// Adds a message. Calls of tools become a part of the assistant's message before them, if there is one, because
/// templates expect this.
fn add(messages: &mut Vec<Value>, mut message: Value) {
    let before =
        messages.last_mut().filter(|last| last["role"] == "assistant").and_then(Value::as_object_mut);
    if let (Some(before), Some(Value::Array(calls))) = (before, message.get_mut("tool_calls")) {
        let made = before.entry("tool_calls").or_insert_with(|| json!([]));
        made.as_array_mut().expect("calls are a list").append(calls);
    } else {
        messages.push(message);
    }
}

fn message(index: usize, mut item: Value, reader: &mut Reader) -> Result<Option<Value>, ApiError> {
    if let Some(fields) = item.as_object_mut() {
        // The type of messages may be left out.
        fields.entry("type").or_insert_with(|| "message".into());
    }
    let at = |error: &dyn std::fmt::Display| ApiError::field(format!("input[{index}]"), error.to_string());
    Ok(match serde_json::from_value(item).map_err(|error| at(&error))? {
        Item::Message { role, content: Text(text) } => {
            let role = match role {
                Role::System | Role::Developer => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            Some(json!({ "role": role, "content": text }))
        }
        Item::FunctionCall { call_id, name, arguments } => {
            let arguments = arguments_object(&format!("input[{index}].arguments"), &arguments, reader)?;
            let call = json!({ "id": call_id, "type": "function", "function": { "name": name, "arguments": arguments } });
            Some(json!({ "role": "assistant", "content": "", "tool_calls": [call] }))
        }
        Item::FunctionCallOutput { call_id, output: Text(text) } => {
            Some(json!({ "role": "tool", "tool_call_id": call_id, "content": text }))
        }
        Item::Reasoning {} => None,
        Item::Reference { id } if id.starts_with("rs_") => None,
        Item::Reference { id } => {
            let reason = "not stored: send the item itself, as clients do if their option store is false";
            return Err(ApiError::field(format!("input[{index}].id"), format!("{id}: {reason}")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_may_be_references_and_messages_may_not() {
        let read = |id: &str| {
            let items = json!([{ "role": "user", "content": "a" }, { "type": "item_reference", "id": id }]);
            serde_json::from_value::<Input>(items).unwrap().messages(&mut Reader::default())
        };
        assert_eq!(read("rs_1").unwrap(), [json!({ "role": "user", "content": "a" })]);
        let error = read("msg_1").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input[1].id"));
        insta::assert_snapshot!(error.message, @"input[1].id: msg_1: not stored: send the item itself, as clients do if their option store is false");
    }

    #[test]
    fn calls_join_the_message_before_them() {
        let body = json!({ "input": [
            { "role": "user", "content": "a" },
            { "type": "reasoning", "id": "rs_1", "summary": [] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b", "annotations": [] }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}" },
            { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "" },
            { "type": "function_call_output", "call_id": "c1", "output": "2" },
        ]});
        let input: Input = serde_json::from_value(body["input"].clone()).unwrap();
        let messages = input.messages(&mut Reader::default()).unwrap();
        let call = |id: &str, name: &str, arguments: Value| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let calls = [call("c1", "f", json!({ "x": 1 })), call("c2", "g", json!({}))];
        let expected = [
            json!({ "role": "user", "content": "a" }),
            json!({ "role": "assistant", "content": "b", "tool_calls": calls }),
            json!({ "role": "tool", "tool_call_id": "c1", "content": "2" }),
        ];
        assert_eq!(messages, expected);
    }
}
