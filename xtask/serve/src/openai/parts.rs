//! Contents of messages: a text, or parts of one.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

/// The text of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

/// A part of a content. Only text is supported; other types are refused by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[serde(rename = "type")]
    _type: Kind,
    #[serde(alias = "refusal")]
    text: String,
    /// Annotations of an answer that a client sends back.
    #[serde(rename = "annotations")]
    _annotations: Option<IgnoredAny>,
    #[serde(rename = "logprobs")]
    _logprobs: Option<IgnoredAny>,
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

    /// Parts are joined by line breaks, as in vLLM.
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
