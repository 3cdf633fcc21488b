//! Messages of answers.

use serde::Serialize;

use crate::answer::{Parts, ToolCall};

/// The message of a choice, or the addition of a chunk to it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    Message(Whole),
    Delta(Delta),
}

#[derive(Serialize)]
pub(super) struct Whole {
    role: &'static str,
    /// Null if there is nothing but calls.
    content: Option<String>,
    refusal: Option<()>,
    /// Always empty: nothing is cited.
    annotations: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

#[derive(Default, Serialize)]
pub(super) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// A call of a tool. It is sent in one piece, so each has its id and name.
#[derive(Serialize)]
struct CallDelta {
    index: usize,
    id: String,
    r#type: &'static str,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    name: String,
    arguments: String,
}

impl From<Parts> for Whole {
    fn from(parts: Parts) -> Self {
        let Parts { text, thought, calls, first_call } = parts;
        let content = Some(text).filter(|text| calls.is_empty() || !text.is_empty());
        let tool_calls = call_deltas(calls, first_call);
        let reasoning_content = Some(thought).filter(|thought| !thought.is_empty());
        Self { role: "assistant", content, refusal: None, annotations: [], reasoning_content, tool_calls }
    }
}

impl Delta {
    /// The first chunk of a message, which states its role.
    pub(super) fn first() -> Self {
        Self { role: Some("assistant"), content: Some(String::new()), ..Self::default() }
    }
}

impl From<Parts> for Delta {
    fn from(parts: Parts) -> Self {
        let Parts { text, thought, calls, first_call } = parts;
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let tool_calls = call_deltas(calls, first_call);
        Self { role: None, content: some(text), reasoning_content: some(thought), tool_calls }
    }
}

fn call_deltas(calls: Vec<ToolCall>, first: usize) -> Vec<CallDelta> {
    let delta = |(index, ToolCall { name, arguments })| {
        let function = FunctionDelta { name, arguments };
        CallDelta { index, id: ToolCall::new_id("call"), r#type: "function", function }
    };
    (first..).zip(calls).map(delta).collect()
}
