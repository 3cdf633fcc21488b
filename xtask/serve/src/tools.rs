//! Tools that an answer may call.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::answer::{CALLED, Calls};
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::fields::Fields;

/// The tools of a call, and whether the answer must use one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools {
    list: Vec<Function>,
    choice: ToolMode,
    /// Whether the answer may have several calls.
    parallel: bool,
}

/// A tool: a function with named arguments.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    pub(crate) parameters: Option<Value>,
    /// Whether arguments must follow the schema. They always do if a call is forced.
    pub(crate) strict: Option<bool>,
}

/// Use of the tools in the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolMode {
    None,
    #[default]
    Auto,
    /// The answer must call one of the tools.
    Required,
    /// The tool of this name.
    Named(String),
}

/// Form of a tool in one of OpenAI's APIs.
pub(crate) trait ToolForm: DeserializeOwned + Into<Function> {
    /// A `tool_choice` that names a tool.
    type Named: DeserializeOwned + Into<String>;
}

/// A tool of chats.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ChatTool {
    Function { function: Function },
}

impl From<ChatTool> for Function {
    fn from(ChatTool::Function { function }: ChatTool) -> Self {
        function
    }
}

impl ToolForm for ChatTool {
    type Named = NamedTool;
}

/// OpenAI's `tool_choice`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be none, auto, required, or the name of a function")]
enum ToolChoice<N> {
    Word(Word),
    Named(N),
}

/// A `tool_choice` that names no tool.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    None,
    Auto,
    Required,
}

impl From<Word> for ToolMode {
    fn from(word: Word) -> Self {
        match word {
            Word::None => Self::None,
            Word::Auto => Self::Auto,
            Word::Required => Self::Required,
        }
    }
}

/// A `tool_choice` of chats that names a tool.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum NamedTool {
    Function { function: Name },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Name {
    name: String,
}

impl From<NamedTool> for String {
    fn from(NamedTool::Function { function }: NamedTool) -> Self {
        function.name
    }
}

impl Tools {
    /// Takes OpenAI's fields.
    pub(crate) fn take<F: ToolForm>(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let list: Vec<F> = fields.take("tools")?.unwrap_or_default();
        let choice = match fields.take::<ToolChoice<F::Named>>("tool_choice")? {
            None => ToolMode::Auto,
            Some(ToolChoice::Word(word)) => word.into(),
            Some(ToolChoice::Named(named)) => ToolMode::Named(named.into()),
        };
        let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
        Self::new(list.into_iter().map(Into::into).collect(), choice, parallel)
    }

    pub(crate) fn new(list: Vec<Function>, choice: ToolMode, parallel: bool) -> Result<Self, ApiError> {
        let wrong = |reason: String| Err(ApiError::field("tool_choice", reason));
        match &choice {
            ToolMode::Required | ToolMode::Named(_) if list.is_empty() => wrong("there are no tools".into()),
            ToolMode::Named(name) if list.iter().all(|tool| tool.name != *name) => {
                wrong(format!("there is no tool {name:?}"))
            }
            _ => Ok(Self { list, choice, parallel }),
        }
    }

    /// Form in which the answer calls the tools.
    pub(crate) fn calls(&self) -> Calls {
        match self.choice {
            _ if self.list.is_empty() => Calls::Never,
            ToolMode::None => Calls::Never,
            ToolMode::Auto => Calls::Maybe,
            ToolMode::Required | ToolMode::Named(_) => Calls::Always,
        }
    }

    /// A text that ends the answer, because there is to be one call.
    pub(crate) fn stop(&self) -> Option<&'static str> {
        (self.calls() == Calls::Maybe && !self.parallel).then_some(CALLED)
    }

    /// The tools for templates; `None` if there are none to call.
    pub(crate) fn for_template(&self) -> Option<Value> {
        let tool = |tool: &Function| {
            let mut function = Map::from_iter([("name".to_owned(), Value::from(tool.name.as_str()))]);
            function.extend(tool.description.as_deref().map(|text| ("description".to_owned(), text.into())));
            function.insert("parameters".into(), tool.schema());
            json!({ "type": "function", "function": function })
        };
        (self.calls() != Calls::Never).then(|| self.list.iter().map(tool).collect())
    }

    /// Returns the constraint that makes the answer a call, if it must be one.
    pub(crate) fn constraint(&self) -> Option<Constraint> {
        let chosen = |tool: &&Function| match &self.choice {
            ToolMode::Named(name) => tool.name == *name,
            _ => true,
        };
        let call = |tool: &Function| {
            json!({
                "type": "object",
                "properties": { "name": { "const": tool.name }, "arguments": tool.schema() },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = self.list.iter().filter(chosen).map(call).collect();
        (self.calls() == Calls::Always).then(|| Constraint::schema(json!({ "anyOf": calls }), "tools"))
    }
}

impl Function {
    /// Schema of the arguments, an object without any if the request has none.
    fn schema(&self) -> Value {
        self.parameters.clone().unwrap_or_else(|| json!({ "type": "object", "properties": {} }))
    }
}
