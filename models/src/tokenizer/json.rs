//! Checks of `tokenizer.json` without which the `tokenizers` crate panics.

use serde_json::Value;
use tokenizers::Error;

/// The parts of the file that it takes on trust.
#[derive(serde::Deserialize)]
struct Trusted {
    /// Decoder, which the parser unwraps: a file that is cut off may end within it.
    #[serde(rename = "decoder", default)]
    _decoder: Value,
    #[serde(default)]
    post_processor: Value,
}

/// Checks the text of a file.
///
/// # Errors
/// JSON that ends early or is malformed, and templates that name a token they do not define.
pub(super) fn check(text: &[u8]) -> Result<(), Error> {
    let trusted: Trusted = serde_json::from_slice(text)?;
    templates(&trusted.post_processor)
}

fn templates(processor: &Value) -> Result<(), Error> {
    for inner in items(&processor["processors"]) {
        templates(inner)?;
    }
    for template in ["single", "pair"] {
        for piece in items(&processor[template]) {
            let Some(id) = piece["SpecialToken"]["id"].as_str() else { continue };
            if processor["special_tokens"].get(id).is_none() {
                return Err(format!(
                    "its template {template:?} names token {id:?}, which it does not define"
                )
                .into());
            }
        }
    }
    Ok(())
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
