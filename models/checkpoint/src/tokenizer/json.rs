//! Checks of `tokenizer.json` without which the `tokenizers` crate panics.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::Error;

use super::{TokenizerError, charsmap::Charsmap, unigram};

/// Parts of the file that the `tokenizers` crate does not check.
#[derive(serde::Deserialize)]
struct Trusted {
    /// Decoder, which the parser unwraps: a truncated file may end within it.
    #[serde(rename = "decoder", default)]
    _decoder: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    normalizer: Value,
    #[serde(default, rename = "model")]
    _model: Option<Model>,
}

#[derive(serde::Deserialize)]
struct Model {
    #[serde(default, rename = "vocab")]
    _vocab: Vocab,
}

/// Vocabulary whose pieces are not too long, if it is a list of pieces like Unigram's.
#[derive(Default)]
struct Vocab;

/// Checks the text of a file.
///
/// # Errors
/// JSON that ends early or is malformed, templates that name a token they do not define, pieces of Unigram that are too long, and
/// maps of characters that lead out of themselves.
pub(super) fn check(text: &[u8]) -> Result<(), Error> {
    let trusted: Trusted = serde_json::from_slice(text)?;
    charsmaps(&trusted.normalizer)?;
    templates(&trusted.post_processor)
}

/// Checks maps of characters, wherever a normaliser has them.
fn charsmaps(normalizer: &Value) -> Result<(), Error> {
    match normalizer {
        Value::Object(fields) => {
            if let Some(text) = fields.get("precompiled_charsmap").and_then(Value::as_str) {
                Charsmap::new(&BASE64_STANDARD.decode(text)?)?;
            }
            fields.values().try_for_each(charsmaps)
        }
        Value::Array(list) => list.iter().try_for_each(charsmaps),
        _ => Ok(()),
    }
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

impl<'de> serde::Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Vocab {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        for id in 0.. {
            let Some((piece, _)) = list.next_element::<(String, IgnoredAny)>()? else { break };
            if piece.len() > unigram::MAX_TOKEN {
                let error = TokenizerError::LongToken { id, bytes: piece.len() };
                return Err(serde::de::Error::custom(error));
            }
        }
        Ok(self)
    }
}
