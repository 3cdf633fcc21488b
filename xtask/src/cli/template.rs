//! Arguments of chat templates.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::values;

/// Arguments of a model's chat template.
#[derive(Debug, Clone, Args)]
pub struct TemplateArgs {
    /// Whether a model that can think before it answers does: enable_thinking and thinking of its chat template
    #[arg(long, value_name = "SWITCH")]
    pub thinking: Option<Switch>,

    /// Variable of the chat template, such as reasoning_effort=low: JSON, or else text; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::variable)]
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
    pub(super) name: String,
    pub(super) value: Value,
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
