//! Arguments of chat templates.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

/// Arguments of a model's chat template.
#[derive(Debug, Clone, Args)]
pub struct TemplateArgs {
    /// Whether a model that can think before it answers does: enable_thinking and thinking of its chat template
    #[arg(long, value_name = "SWITCH")]
    pub thinking: Option<Switch>,

    /// Variable of the chat template, such as reasoning_effort=low: JSON, or else text; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub template_arg: Vec<Variable>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It does.
    On,
    /// It does not.
    Off,
}

/// A variable of a chat template.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    name: String,
    value: Value,
}

impl TemplateArgs {
    /// The variables that a template sees.
    #[must_use]
    pub fn variables(&self) -> Map<String, Value> {
        let thinking = self.thinking.map(|switch| Value::from(switch == Switch::On));
        let named = thinking
            .into_iter()
            .flat_map(|on| ["enable_thinking", "thinking"].map(|name| (name.into(), on.clone())));
        let given = self.template_arg.iter().map(|variable| (variable.name.clone(), variable.value.clone()));
        named.chain(given).collect()
    }
}

/// A variable of a chat template, `KEY=VALUE`, whose value is JSON, or else text.
fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = text.split_once('=').ok_or("give KEY=VALUE, such as enable_thinking=false")?;
    if name.is_empty() {
        return Err("the variable has no name".to_owned());
    }
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok(Variable { name: name.to_owned(), value })
}
