//! Fields of the tools that an answer may call, in OpenAI's forms.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use pagoda::tools::{Calls, Tool, ToolMode, Tools};

use crate::error::ApiError;
use crate::fields::Reader;
use crate::output_format::OutputFormat;

/// A tool: a function with named arguments.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    pub(crate) parameters: Option<Value>,
}

/// Form of a function in one of OpenAI's APIs.
pub(crate) trait ToolForm: DeserializeOwned + Into<Tool> {}

/// A tool of chats.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ChatTool {
    /// `function`.
    #[serde(rename = "type")]
    _type: String,
    function: Function,
}

impl From<ChatTool> for Tool {
    fn from(tool: ChatTool) -> Self {
        let Function { name, description, parameters } = tool.function;
        Self { name, description, parameters }
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
    /// Type of the choice: `function`.
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

/// Reads OpenAI's fields. Tools of other types than `function` run on the service's side, so they are left out.
pub(crate) fn read_tools<F: ToolForm>(
    given: Option<Vec<Value>>,
    choice: Option<ToolChoice>,
    parallel: Option<bool>,
    reader: &mut Reader,
) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (index, tool) in given.iter().flatten().enumerate() {
        let at = format!("tools[{index}]");
        match tool["type"].as_str() {
            Some(kind) if kind != "function" => reader.ignore(format!("{at} ({kind})"))?,
            _ => list.push(reader.part::<F>(&at, tool)?.into()),
        }
    }
    let mode = choice.map_or(Ok(ToolMode::Auto), ToolChoice::mode)?;
    checked_tools(list, mode, parallel)
}

/// The tools of a call, whose answer may have several calls unless `parallel` is false.
pub(crate) fn checked_tools(
    list: Vec<Tool>,
    mode: ToolMode,
    parallel: Option<bool>,
) -> Result<Tools, ApiError> {
    let tools = Tools::new(list, mode).map_err(|error| ApiError::field("tool_choice", error.to_string()))?;
    Ok(if parallel == Some(false) { tools.one_call() } else { tools })
}

/// The form of an answer: the form of a call if the answer must be a call, else the form `asked`.
pub(crate) fn format_of(
    tools: &Tools,
    asked: Option<OutputFormat>,
) -> Result<Option<OutputFormat>, ApiError> {
    if asked.is_some() && tools.calls() == Calls::Always {
        return Err(ApiError::field("tool_choice", "the output has another form already"));
    }
    let field = asked.as_ref().map_or("tools", |asked| asked.field);
    let form = tools.form(asked.map(|asked| asked.form));
    Ok(form.map(|form| OutputFormat { form, field }))
}
