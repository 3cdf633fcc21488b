//! Tools in the form of the responses API: a function's fields are next to its type.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::tools::{Function, ToolForm};

/// A tool. Tools of other types run on OpenAI's servers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    #[serde(rename = "type")]
    _type: FunctionType,
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    parameters: Option<Value>,
    strict: Option<bool>,
}

impl Tool {
    /// The tool as responses repeat it, with every field.
    pub(super) fn to_json(&self) -> Value {
        let Self { name, description, parameters, strict, .. } = self;
        json!({
            "type": "function",
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": strict,
        })
    }
}

impl From<Tool> for Function {
    fn from(Tool { name, description, parameters, strict, .. }: Tool) -> Self {
        Self { name, description, parameters, strict }
    }
}

impl ToolForm for Tool {
    type Named = Named;
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum FunctionType {
    Function,
}

/// A `tool_choice` that names a tool.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    #[serde(rename = "type")]
    _type: FunctionType,
    name: String,
}

impl From<Named> for String {
    fn from(named: Named) -> Self {
        named.name
    }
}
