//! The messages of chat answers.

use pagoda::tools::{AnswerPart, CallPart};
use schemars::JsonSchema;
use serde::Serialize;

use crate::ids::new_id;

/// The message of a choice.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chat")]
pub(crate) struct ChoiceMessage {
    pub(super) message: WholeMessage,
}

/// A whole message.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WholeMessage {
    role: &'static str,
    /// Text of the answer; null if it consists of calls alone.
    content: Option<String>,
    /// Always null.
    refusal: Option<()>,
    /// Always empty: nothing is cited.
    annotations: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// The addition of a chunk to the message of a choice.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatDelta")]
pub(crate) struct DeltaMessage {
    delta: Delta,
}

/// Parts that are added to a message; most are absent.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageDelta")]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// A call of a tool, or more of its arguments. Its first part has the id and the name.
#[derive(Serialize, JsonSchema)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = "function"))]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize, JsonSchema)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The text of a JSON object, or more of it.
    arguments: String,
}

/// The parts of an answer, collected by kind, because a chat message does not keep their order.
#[derive(Default)]
struct Kinds {
    text: String,
    thought: String,
    calls: Vec<CallDelta>,
}

impl Kinds {
    fn new(pieces: Vec<AnswerPart>) -> Self {
        let mut kinds = Self::default();
        for piece in pieces {
            match piece {
                AnswerPart::Text(text) => kinds.text.push_str(&text),
                AnswerPart::Thought(thought) => kinds.thought.push_str(&thought),
                AnswerPart::Call(CallPart { index, name, arguments }) => kinds.calls.push(CallDelta {
                    index,
                    id: name.is_some().then(|| new_id("call")),
                    r#type: name.is_some().then_some("function"),
                    function: FunctionDelta { name, arguments },
                }),
            }
        }
        kinds
    }
}

impl WholeMessage {
    pub(super) fn new(pieces: Vec<AnswerPart>) -> Self {
        let Kinds { text, thought, calls: tool_calls } = Kinds::new(pieces);
        let content = Some(text).filter(|text| tool_calls.is_empty() || !text.is_empty());
        let reasoning_content = Some(thought).filter(|thought| !thought.is_empty());
        Self { role: "assistant", content, refusal: None, annotations: [], reasoning_content, tool_calls }
    }
}

impl DeltaMessage {
    /// The first chunk of a message, which states its role.
    pub(super) fn first() -> Self {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        Self { delta }
    }

    pub(super) fn new(pieces: Vec<AnswerPart>) -> Self {
        let Kinds { text, thought, calls: tool_calls } = Kinds::new(pieces);
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            delta: Delta { role: None, content: some(text), reasoning_content: some(thought), tool_calls },
        }
    }
}
