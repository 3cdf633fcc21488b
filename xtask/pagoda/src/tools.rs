//! Tools that an answer may call: their place in the prompt, the form of a call, and answers taken apart.

mod arguments;
mod parser;

use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::grammar::Constraint;
use crate::model::Model;

pub use arguments::{readable, whole_characters};
pub use parser::{AnswerParser, AnswerPart, CallPart, Calls, ParsedAnswer, ToolCall, add};
use parser::{CALLED, is_thought_begun};

/// A tool: a function with named arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name, by which answers call it.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, an object; `None` if there are none.
    pub parameters: Option<Value>,
}

/// Use of the tools in the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolMode {
    /// The answer calls none.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// The answer must call one of the tools.
    Required,
    /// The answer must call the tool of this name.
    Named(String),
}

/// The tools of a request, and whether the answer must use one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools {
    list: Vec<Tool>,
    mode: ToolMode,
    /// Whether the answer may have several calls.
    parallel: bool,
}

/// A use of tools that the list of tools does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// An answer must call a tool, but no tool is given.
    #[error("there are no tools")]
    Empty,
    /// An answer must call a tool that is not in the list.
    #[error("there is no tool {name:?}")]
    Unknown {
        /// Name of the tool.
        name: String,
    },
}

impl Tools {
    /// Tools of an answer. If the mode lets the model decide about calls, the answer may have several.
    ///
    /// # Errors
    /// [`ToolsError`] if the mode asks for a tool that is not in the list.
    pub fn new(list: Vec<Tool>, mode: ToolMode) -> Result<Self, ToolsError> {
        match &mode {
            ToolMode::Required | ToolMode::Named(_) if list.is_empty() => Err(ToolsError::Empty),
            ToolMode::Named(name) if list.iter().all(|tool| tool.name != *name) => {
                Err(ToolsError::Unknown { name: name.clone() })
            }
            _ => Ok(Self { list, mode, parallel: true }),
        }
    }

    /// Tools of an answer with one call at most.
    #[must_use]
    pub fn one_call(self) -> Self {
        Self { parallel: false, ..self }
    }

    /// Form in which the answer calls the tools.
    #[must_use]
    pub fn calls(&self) -> Calls {
        match self.mode {
            _ if self.list.is_empty() => Calls::Never,
            ToolMode::None => Calls::Never,
            ToolMode::Auto => Calls::Maybe,
            ToolMode::Required | ToolMode::Named(_) => Calls::Always,
        }
    }

    /// Text that ends the answer after its first call; `None` if the answer may have several calls, none, or is itself a
    /// call.
    #[must_use]
    pub fn stop(&self) -> Option<&'static str> {
        (self.calls() == Calls::Maybe && !self.parallel).then_some(CALLED)
    }

    /// The tools in the form that chat templates take; `None` if there are none to call.
    #[must_use]
    pub fn for_template(&self) -> Option<Value> {
        let tool = |tool: &Tool| {
            let mut function = Map::from_iter([("name".to_owned(), Value::from(tool.name.as_str()))]);
            function.extend(tool.description.as_deref().map(|text| ("description".to_owned(), text.into())));
            function.insert("parameters".into(), tool.schema());
            json!({ "type": "function", "function": function })
        };
        (self.calls() != Calls::Never).then(|| self.list.iter().map(tool).collect())
    }

    /// Returns the form of the answer. An answer that must be a call has the form of calls. An answer that may call tools
    /// keeps the form `asked`; if this is a schema, the answer may be calls instead of an instance of it.
    #[must_use]
    pub fn form(&self, asked: Option<Constraint>) -> Option<Constraint> {
        let chosen = |tool: &&Tool| match &self.mode {
            ToolMode::Named(name) => tool.name == *name,
            _ => true,
        };
        let call = |tool: &Tool| {
            json!({
                "type": "object",
                "properties": { "name": { "const": tool.name }, "arguments": tool.schema() },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        match (self.calls(), asked) {
            (Calls::Always, _) => {
                let calls: Vec<Value> = self.list.iter().filter(chosen).map(call).collect();
                Some(Constraint::Schema(json!({ "anyOf": calls })))
            }
            (Calls::Maybe, Some(asked @ Constraint::Schema(_))) => {
                let names = self.list.iter().map(|tool| tool.name.clone()).collect();
                Some(Constraint::OrCalls(Box::new(asked), names))
            }
            (_, asked) => asked,
        }
    }
}

impl Calls {
    /// The form of calls in an answer of the given form. If calls may replace an instance of a schema, they have tags.
    #[must_use]
    pub fn within(self, form: Option<&Constraint>) -> Self {
        match form {
            Some(Constraint::OrCalls(..)) if self == Self::Maybe => Self::Tagged,
            _ => self,
        }
    }
}

impl Tool {
    /// Schema of the arguments; if the request gives none, the schema of an object without fields.
    fn schema(&self) -> Value {
        self.parameters.clone().unwrap_or_else(|| json!({ "type": "object", "properties": {} }))
    }
}

/// Maximum number of tokens that spell the begin of a thought and the blanks after it.
const THOUGHT_TOKENS: usize = 16;

impl Model {
    /// Whether a prompt ends with the begin of a thought, so that the answer is inside of it.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], and tokens that cannot be decoded.
    pub fn begins_thought(&self, prompt: &[u32]) -> Result<bool, Error> {
        let last = &prompt[prompt.len().saturating_sub(THOUGHT_TOKENS)..];
        Ok(is_thought_begun(&self.tokenizer()?.decode(last, false)?))
    }
}
