//! Tools that an answer may call.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::answer::{CALLED, Calls};
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::fields::Reader;

/// The tools of a call, and whether the answer must use one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools {
    list: Vec<Function>,
    choice: ToolMode,
    /// Whether the answer may have several calls.
    parallel: bool,
}

/// A tool: a function with named arguments.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    pub(crate) parameters: Option<Value>,
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

/// Form of a function in one of OpenAI's APIs.
pub(crate) trait ToolForm: DeserializeOwned + Into<Function> {}

/// A tool of chats.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChatTool {
    /// `function`.
    #[serde(rename = "type")]
    _type: String,
    function: Function,
}

impl From<ChatTool> for Function {
    fn from(tool: ChatTool) -> Self {
        tool.function
    }
}

impl ToolForm for ChatTool {}

/// `none`, `auto`, `required`, or the function that the answer must call.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be none, auto, required, or the name of a function")]
pub(crate) enum ToolChoice {
    Word(Word),
    Named(NamedTool),
}

/// A `tool_choice` that names no tool.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    None,
    Auto,
    Required,
}

/// A `tool_choice` that names a tool: in `function` in chats, next to the type in responses.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub(crate) struct NamedTool {
    /// `function`.
    r#type: String,
    name: Option<String>,
    function: Option<Name>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
struct Name {
    name: String,
}

impl ToolChoice {
    fn mode(self) -> Result<ToolMode, ApiError> {
        Ok(match self {
            Self::Word(Word::None) => ToolMode::None,
            Self::Word(Word::Auto) => ToolMode::Auto,
            Self::Word(Word::Required) => ToolMode::Required,
            Self::Named(NamedTool { r#type, .. }) if r#type != "function" => {
                return Err(ApiError::field(
                    "tool_choice.type",
                    format!("tools of type {type} do not run here"),
                ));
            }
            Self::Named(NamedTool { name, function, .. }) => {
                match function.map(|function| function.name).or(name) {
                    Some(name) => ToolMode::Named(name),
                    None => return Err(ApiError::field("tool_choice.name", "this field is required")),
                }
            }
        })
    }
}

impl Tools {
    /// Reads OpenAI's fields. Tools of other types than `function` run on the service's side, so they are left out.
    pub(crate) fn read<F: ToolForm>(
        given: Option<Vec<Value>>,
        choice: Option<ToolChoice>,
        parallel: bool,
        reader: &mut Reader,
    ) -> Result<Self, ApiError> {
        let mut list = Vec::new();
        for (index, tool) in given.iter().flatten().enumerate() {
            let at = format!("tools[{index}]");
            match tool["type"].as_str() {
                Some(kind) if kind != "function" => reader.ignore(format!("{at} ({kind})"))?,
                _ => list.push(reader.part::<F>(&at, tool)?.into()),
            }
        }
        let mode = choice.map_or(Ok(ToolMode::Auto), ToolChoice::mode)?;
        Self::new(list, mode, parallel)
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

    /// The form of an answer that the request gives the form `asked`: that of a call, if the answer must be one.
    pub(crate) fn constrain(&self, asked: Option<Constraint>) -> Result<Option<Constraint>, ApiError> {
        match (asked, self.constraint()) {
            (Some(_), Some(_)) => Err(ApiError::field("tool_choice", "the output has another form already")),
            (asked, call) => Ok(asked.or(call)),
        }
    }

    /// Returns the constraint that makes the answer a call, if it must be one.
    fn constraint(&self) -> Option<Constraint> {
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
