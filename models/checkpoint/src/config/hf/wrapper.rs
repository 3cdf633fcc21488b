//! Configurations of multimodal models: their text model is a section, which runs here without the rest.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::ConfigError;

/// Model types whose text model is in the section `text_config`, each with the text model's type if the section does
/// not state one.
const WRAPPERS: &[(&str, &str)] =
    &[("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("mistral3", "mistral")];

/// Fields outside of the section `text_config` that apply if the section lacks them.
const SHARED: &[&str] = &["bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings"];

/// Returns the configuration of the text model.
pub(in crate::config) fn text(config: Fields) -> Result<Fields, ConfigError> {
    let found = config.str("model_type")?;
    let Some((_, kind)) = WRAPPERS.iter().find(|(name, _)| found == Some(*name)) else { return Ok(config) };
    let mut text = config.object("text_config")?.ok_or(ConfigError::Missing { field: "text_config" })?;
    if text.get("model_type").is_none() {
        text.0.insert("model_type".into(), (*kind).into());
    }
    for field in SHARED {
        if let Some(value) = config.get(field).filter(|_| text.get(field).is_none()) {
            text.0.insert((*field).into(), value.clone());
        }
    }
    for (field, value) in defaults(text.str("model_type")?.unwrap_or_default()) {
        text.0.entry(field).or_insert(value);
    }
    Ok(text)
}

/// Returns the sizes that published sections leave to their configuration class.
fn defaults(kind: &str) -> Map<String, Value> {
    let sizes = match kind {
        "gemma3_text" => json!({
            "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
        }),
        _ => Value::Null,
    };
    sizes.as_object().cloned().unwrap_or_default()
}
