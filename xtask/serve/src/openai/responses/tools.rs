//! Tools in the form of responses: a function's fields stand beside its type.

use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::tools::{Choice, Function, Tools, Word};

/// A tool. Those of other types run on OpenAI's servers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    #[serde(rename = "type")]
    _type: FunctionType,
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum FunctionType {
    Function,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be none, auto, required, or a function by its name")]
enum ToolChoice {
    Word(Word),
    Named(Named),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(rename = "type")]
    _type: FunctionType,
    name: String,
}

/// Takes the fields that are about tools.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let list: Vec<Tool> = fields.take("tools")?.unwrap_or_default();
    let function = |tool: Tool| {
        let Tool { name, description, parameters, strict, .. } = tool;
        Function { name, description, parameters, strict }
    };
    let choice = match fields.take("tool_choice")? {
        None => Choice::Auto,
        Some(ToolChoice::Word(word)) => word.into(),
        Some(ToolChoice::Named(Named { name, .. })) => Choice::Named(name),
    };
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    Tools::new(list.into_iter().map(function).collect(), choice, parallel)
}
