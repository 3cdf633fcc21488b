//! Tools in the form of the responses API: a function's fields are next to its type.

use pagoda::tools;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::tools::ToolForm;

/// A tool of responses.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ResponsesTool")]
pub(super) struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    _type: String,
    name: String,
    description: Option<String>,
    /// JSON schema of the arguments.
    parameters: Option<Value>,
}

impl From<Tool> for tools::Tool {
    fn from(Tool { name, description, parameters, .. }: Tool) -> Self {
        Self { name, description, parameters }
    }
}

impl ToolForm for Tool {}

/// Returns a tool as the response repeats it. A function gets every field, even those that the request leaves out.
pub(super) fn repeated(tool: &Value) -> Value {
    let field = |name| tool.get(name).cloned().unwrap_or(Value::Null);
    match tool["type"].as_str() {
        Some("function") => json!({
            "type": "function",
            "name": field("name"),
            "description": field("description"),
            "parameters": field("parameters"),
            "strict": field("strict"),
        }),
        _ => tool.clone(),
    }
}
