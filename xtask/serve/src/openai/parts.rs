//! Contents of messages: a text, or parts of one.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;

/// The text of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

/// A part of a content. Only text is supported; other types are refused by name.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "TextPart")]
struct Part {
    /// `text`, `input_text`, `output_text` or `refusal`.
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    _type: Kind,
    #[serde(alias = "refusal")]
    text: String,
    /// Log-probabilities of an answer that a client sends back.
    #[serde(rename = "logprobs")]
    #[schemars(skip)]
    _logprobs: Option<Value>,
}

/// A text, or parts of one.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Content")]
#[expect(dead_code, reason = "its schema is that of `Text`")]
enum TextOrParts {
    Text(String),
    Parts(Vec<Part>),
}

impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        TextOrParts::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        TextOrParts::json_schema(generator)
    }
}

/// A type of parts that are text.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Kind;

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        const TEXTS: [&str; 4] = ["text", "input_text", "output_text", "refusal"];
        let known = TEXTS.contains(&name.as_str());
        known.then_some(Self).ok_or_else(|| {
            format!("{name}: models here read text alone, in parts of type {}", TEXTS.join(", "))
        })
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Parts)
    }
}

struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or a list of parts of type text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Text, E> {
        Ok(Text(text))
    }

    /// Joins parts by line breaks, as vLLM does.
    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Text, A::Error> {
        let mut texts = Vec::new();
        while let Some(Part { text, .. }) = parts.next_element()? {
            texts.push(text);
        }
        Ok(Text(texts.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<String, String> {
        serde_json::from_str(json).map(|Text(text)| text).map_err(|error| error.to_string())
    }

    #[test]
    fn contents_are_texts_or_parts_of_text() {
        assert_eq!(read(r#""a""#).unwrap(), "a");
        assert_eq!(read(r#"[{"type":"text","text":"a"},{"text":"b","type":"input_text"}]"#).unwrap(), "a\nb");
        assert_eq!(read("[]").unwrap(), "");
        insta::assert_snapshot!(read(r#"[{"type":"image_url","image_url":{"url":""}}]"#).unwrap_err(), @"image_url: models here read text alone, in parts of type text, input_text, output_text, refusal at line 1 column 20");
        insta::assert_snapshot!(read("1").unwrap_err(), @"invalid type: integer `1`, expected a text, or a list of parts of type text at line 1 column 1");
    }
}
