//! The fields of a request's body: read into types, and those that no type has refused or reported.
//!
//! A field that changes an answer is honoured or refused by name. Fields that real clients send and that change nothing here
//! are reported as ignored. `null` is the same as no field.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use pagoda::Sampling;
use pagoda::tools::whole_characters;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_ignored::Path;
use serde_json::Value;
use serde_json::value::RawValue;
use serde_path_to_error::Track;

use crate::error::ApiError;

/// Fields about the caller or the conversation. The server neither uses them nor reports them as ignored.
const CALLERS: [&str; 6] =
    ["client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "session_id", "user"];

/// Fields that change no answer of this server: hints about caches, storage, speed, price, routing and the length of an
/// answer, forms of tools that do not run here, and what clients add to an answer before they send it back.
const HINTS: [&str; 34] = [
    "allowed_callers",
    "annotations",
    "betas",
    "cache_control",
    "cache_prompt",
    "container",
    "context_management",
    "defer_loading",
    "display",
    "eager_input_streaming",
    "id_slot",
    "include_obfuscation",
    "inference_geo",
    "input_examples",
    "keep_alive",
    "max_tool_calls",
    "mcp_servers",
    "moderation",
    "parsed",
    "parsed_arguments",
    "phase",
    "prediction",
    "prompt_cache_options",
    "prompt_cache_retention",
    "provider",
    "provider_specific_fields",
    "reasoning_details",
    "service_tier",
    "speed",
    "store",
    "strict",
    "timings_per_token",
    "truncation",
    "verbosity",
];

/// Fields of other servers whose effects on an answer this server does not support, each with what to use instead.
const REFUSED: [(&str, &str); 12] = [
    ("audio", "only text can be generated"),
    ("background", "responses are not stored, so none can be fetched later"),
    ("conversation", "responses are not stored: send the messages of the conversation"),
    ("function_call", "not supported: use tool_choice"),
    ("functions", "not supported: use tools"),
    ("grammar", "grammars in GBNF are not read: structured_outputs.grammar takes Lark's syntax"),
    ("no_stop_trim", "a stop text is never a part of the answer"),
    ("previous_response_id", "responses are not stored: send the messages of the conversation"),
    ("prompt_logprobs", "ask /v1/completions with echo and logprobs"),
    ("response_schema", "not supported: use response_format"),
    ("return_hidden_states", "not supported: /v1/embeddings has embeddings"),
    ("web_search_options", "not supported: tools run at the caller's"),
];

/// Fields of other servers that are always true here, and why they cannot be false. Routers write them into every call.
const ALWAYS: [(&str, &str); 2] = [
    ("separate_reasoning", "thoughts are always apart from the answer"),
    ("stream_reasoning", "thoughts are streamed as they are written"),
];

/// Maximum number of fields that are reported as ignored.
const MAX_REPORTED: usize = 32;

/// Reads the body of one request, and collects what it ignores.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Whether fields that change nothing are refused, too.
    strict: bool,
    /// Sampling parameters of a call that states none.
    pub(crate) defaults: Sampling,
    ignored: Vec<String>,
}

/// A field that a type does not have: its path, and the last name in the path.
pub(crate) struct Unknown {
    path: String,
    name: String,
}

/// Types that together have all fields of a body.
pub(crate) trait Body: Sized {
    /// Reads the types from a body: each type takes its own fields. The second value lists the unknown fields.
    fn parse(text: &str) -> Result<(Self, Vec<Unknown>), ApiError>;

    /// The schema of each type.
    fn schemas(generator: &mut SchemaGenerator) -> Vec<Schema>;
}

macro_rules! body {
    ($($part:ident),+) => {
        impl<$($part: DeserializeOwned + JsonSchema),+> Body for ($($part,)+) {
            fn parse(text: &str) -> Result<(Self, Vec<Unknown>), ApiError> {
                let mut unknown: Vec<Vec<Unknown>> = Vec::new();
                let parts = ($({
                    let (part, of_part) = parse::<$part, _>(&mut serde_json::Deserializer::from_str(text), "")?;
                    unknown.push(of_part);
                    part
                },)+);
                Ok((parts, unknown_to_all(unknown)))
            }

            fn schemas(generator: &mut SchemaGenerator) -> Vec<Schema> {
                vec![$(generator.subschema_for::<$part>()),+]
            }
        }
    };
}

body!(A);
body!(A, B);
body!(A, B, C);
body!(A, B, C, D);

/// Merges the unknown fields of all parts. A nested field is unknown if any part lacks it; a field of the body itself
/// is unknown only if all parts lack it.
fn unknown_to_all(parts: Vec<Vec<Unknown>>) -> Vec<Unknown> {
    let count = parts.len();
    let mut lacking: BTreeMap<String, usize> = BTreeMap::new();
    for unknown in parts.iter().flatten() {
        *lacking.entry(unknown.path.clone()).or_default() += 1;
    }
    let mut unknown: Vec<Unknown> = Vec::new();
    for field in parts.into_iter().flatten() {
        let is_inner = field.path != field.name;
        let is_new = unknown.iter().all(|before| before.path != field.path);
        if is_new && (is_inner || lacking[&field.path] == count) {
            unknown.push(field);
        }
    }
    unknown
}

impl Reader {
    /// A reader. If `strict` is set, the reader refuses fields that it would otherwise ignore.
    pub(crate) fn new(strict: bool, defaults: Sampling) -> Self {
        Self { strict, defaults, ignored: Vec::new() }
    }

    /// Reads the object in `body`. O(bytes).
    pub(crate) fn body<B: Body>(&mut self, body: &[u8]) -> Result<B, ApiError> {
        let text = std::str::from_utf8(body)
            .map_err(|error| ApiError::invalid(format!("the body is not UTF-8: {error}")))?;
        if !text.trim_start().starts_with('{') {
            return Err(ApiError::invalid("the body is not a JSON object"));
        }
        let text = whole_characters(text);
        let (parts, unknown) = B::parse(&text)?;
        if !unknown.is_empty() {
            // Values decide whether a field asks for anything, and are rarely needed.
            let values = serde_json::from_str(&text).unwrap_or(Value::Null);
            self.judge(unknown, &values, "")?;
        }
        Ok(parts)
    }

    /// Reads a value inside of a body, whose path is `at`.
    pub(crate) fn part<T: DeserializeOwned>(&mut self, at: &str, value: &Value) -> Result<T, ApiError> {
        let (part, unknown) = parse(value, at)?;
        self.judge(unknown, value, at)?;
        Ok(part)
    }

    /// Reports a field as ignored, once for all fields of its name, or refuses it.
    pub(crate) fn ignore(&mut self, path: impl Into<String>) -> Result<(), ApiError> {
        let path = path.into();
        if self.strict {
            let reason = "the field changes nothing here, and this server is strict";
            return Err(ApiError::field(path, reason).with_code("unknown_field"));
        }
        // A client marks many parts of a conversation in one way.
        let name = |path: &str| path.rsplit('.').next().map(str::to_owned);
        if self.ignored.len() < MAX_REPORTED && self.ignored.iter().all(|known| name(known) != name(&path)) {
            self.ignored.push(path);
        }
        Ok(())
    }

    /// Paths of what was ignored.
    pub(crate) fn ignored(self) -> Vec<String> {
        self.ignored
    }

    fn judge(&mut self, unknown: Vec<Unknown>, values: &Value, at: &str) -> Result<(), ApiError> {
        for Unknown { path, name } in unknown {
            let inner = path.strip_prefix(at).unwrap_or(&path);
            let value = value_at(values, inner);
            if value.is_some_and(Value::is_null) || CALLERS.contains(&name.as_str()) {
                continue;
            }
            let asks = value.is_none_or(asks_for_something);
            let reason = |list: &[(&str, &'static str)]| {
                list.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
            };
            if HINTS.contains(&name.as_str()) {
                if asks {
                    self.ignore(path)?;
                }
            } else if let Some(reason) = reason(&ALWAYS) {
                if value != Some(&Value::Bool(true)) {
                    return Err(ApiError::field(path, reason));
                }
            } else if let Some(reason) = reason(&REFUSED) {
                if asks {
                    return Err(ApiError::field(path, reason));
                }
            } else {
                let error = ApiError::field(path, "this server does not know the field");
                return Err(error.with_code("unknown_field"));
            }
        }
        Ok(())
    }
}

/// Whether a value requests anything: null, false, empty values and words for a default request nothing.
fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => {
            !matches!(text.as_str(), "" | "auto" | "default" | "disabled" | "standard_only")
        }
        Value::Array(values) => !values.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// The value at a path such as `messages[0].name`.
fn value_at<'v>(values: &'v Value, path: &str) -> Option<&'v Value> {
    path.split(['.', '[']).filter(|step| !step.is_empty()).try_fold(values, |value, step| {
        match step.strip_suffix(']') {
            Some(index) => value.get(index.parse::<usize>().ok()?),
            None => value.get(step),
        }
    })
}

/// Reads a type, with the fields that it has not. Errors name the innermost field, below `at`.
fn parse<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    json: D,
    at: &str,
) -> Result<(T, Vec<Unknown>), ApiError>
where
    D::Error: fmt::Display,
{
    let mut track = Track::new();
    let mut unknown = Vec::new();
    let report =
        |path: Path<'_>| unknown.push(Unknown { path: below(at, &joined(&path)), name: last(&path) });
    let tracked = serde_path_to_error::Deserializer::new(json, &mut track);
    match serde_ignored::deserialize(tracked, report) {
        Ok(value) => Ok((value, unknown)),
        Err(error) => {
            // The position is one inside the field, which helps nobody.
            let message = error.to_string();
            let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason);
            let path = track.path().to_string();
            let path = if matches!(path.as_str(), "." | "?") { String::new() } else { path };
            if let Some(name) =
                message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'))
            {
                return Err(ApiError::field(below(at, &below(&path, name)), "this field is required"));
            }
            Err(match below(at, &path) {
                body if body.is_empty() => {
                    ApiError::invalid(format!("the body is not a JSON object: {message}"))
                }
                field => ApiError::field(field, message),
            })
        }
    }
}

/// The path of a field `inner` of `at`.
fn below(at: &str, inner: &str) -> String {
    let dot = if at.is_empty() || inner.is_empty() || inner.starts_with('[') { "" } else { "." };
    format!("{at}{dot}{inner}")
}

fn joined(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", joined(parent)),
        Path::Map { parent, key } => below(&joined(parent), key),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            joined(parent)
        }
    }
}

fn last(path: &Path<'_>) -> String {
    match path {
        Path::Map { key, .. } => key.clone(),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            last(parent)
        }
        Path::Root | Path::Seq { .. } => String::new(),
    }
}

/// Moves the fields of the object `name` into the body around it.
pub(crate) fn merged(body: &[u8], name: &str) -> Result<Vec<u8>, ApiError> {
    /// The name of a field, which may be written with escapes.
    #[derive(Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
    struct Name<'b>(#[serde(borrow)] Cow<'b, str>);
    type Raw<'b> = BTreeMap<Name<'b>, &'b RawValue>;

    let Ok(mut fields) = serde_json::from_slice::<Raw<'_>>(body) else { return Ok(body.to_vec()) };
    let key = Name(name.into());
    let Some(inner) = fields.remove(&key).filter(|inner| inner.get() != "null") else {
        return Ok(body.to_vec());
    };
    let inner: Raw<'_> =
        serde_json::from_str(inner.get()).map_err(|_| ApiError::field(name, "must be an object"))?;
    for (field, value) in inner {
        let path = format!("{name}.{}", field.0);
        if fields.insert(field, value).is_some() {
            return Err(ApiError::field(path, "this is a field of the request, too"));
        }
    }
    Ok(serde_json::to_vec(&fields).expect("names are text"))
}

/// A whole number, which clients may write as `1.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Int<T>(pub(crate) T);

impl<T: JsonSchema> JsonSchema for Int<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Int<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole<T>(PhantomData<T>);

        impl<T: TryFrom<i128>> Whole<T> {
            fn fit<E: serde::de::Error>(self, value: i128, given: Unexpected<'_>) -> Result<Int<T>, E> {
                T::try_from(value).map(Int).map_err(|_| E::invalid_value(given, &self))
            }
        }

        impl<T: TryFrom<i128>> Visitor<'_> for Whole<T> {
            type Value = Int<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(std::any::type_name::<T>())
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Int<T>, E> {
                self.fit(value.into(), Unexpected::Signed(value))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Int<T>, E> {
                self.fit(value.into(), Unexpected::Unsigned(value))
            }

            #[expect(clippy::cast_possible_truncation, reason = "whole numbers below 2^63 are exact")]
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Int<T>, E> {
                if value.fract() == 0.0 && value.abs() < 2f64.powi(63) {
                    return self.fit(value as i128, Unexpected::Float(value));
                }
                Err(E::invalid_type(Unexpected::Float(value), &self))
            }
        }

        deserializer.deserialize_any(Whole(PhantomData))
    }
}

/// Reads a count of at least one.
pub(crate) fn count(name: &str, count: Option<Int<u32>>) -> Result<Option<u32>, ApiError> {
    match count {
        Some(Int(0)) => Err(ApiError::field(name, "0, must be 1 or more")),
        count => Ok(count.map(|Int(count)| count)),
    }
}

/// Reads the maximum length of an answer of at least one token; `None` for as many as there is room for, which llama.cpp
/// writes as -1.
pub(crate) fn length(name: &str, tokens: Option<Int<i64>>) -> Result<Option<u32>, ApiError> {
    match tokens {
        None | Some(Int(-1)) => Ok(None),
        Some(Int(tokens)) => match u32::try_from(tokens) {
            Ok(0) | Err(_) => Err(ApiError::field(name, format!("{tokens}, must be 1 or more, or -1"))),
            Ok(tokens) => Ok(Some(tokens)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Inner {
        depth: Vec<Int<u32>>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Outer {
        inner: Inner,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Other {
        #[serde(rename = "seed")]
        _seed: Option<Int<i64>>,
    }

    fn read(body: &str, strict: bool) -> Result<(Outer, Vec<String>), String> {
        let mut reader = Reader::new(strict, Sampling::default());
        let read = reader.body::<(Outer, Other)>(body.as_bytes());
        let (outer, _) =
            read.map_err(|error| format!("{}: {}", error.param.unwrap_or_default(), error.message))?;
        Ok((outer, reader.ignored()))
    }

    #[test]
    fn errors_name_the_innermost_field() {
        let wrong = |body| read(body, false).unwrap_err();
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[1,"x"]}}"#), @r#"inner.depth[1]: inner.depth[1]: invalid type: string "x", expected u32"#);
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[-1]}}"#), @"inner.depth[0]: inner.depth[0]: invalid value: integer `-1`, expected u32");
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[1.5]}}"#), @"inner.depth[0]: inner.depth[0]: invalid type: floating point `1.5`, expected u32");
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[],"width":1}}"#), @"inner.width: inner.width: this server does not know the field");
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[]},"o\u0074her":1}"#), @"other: other: this server does not know the field");
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[]},"functions":[1]}"#), @"functions: functions: not supported: use tools");
        insta::assert_snapshot!(wrong(r#"{"inner":{}}"#), @"inner.depth: inner.depth: this field is required");
        insta::assert_snapshot!(wrong(r#"{"inner":{"depth":[]},"inner":{"depth":[]}}"#), @": the body is not a JSON object: duplicate field `inner`");
        insta::assert_snapshot!(wrong("[]"), @": the body is not a JSON object");
        insta::assert_snapshot!(wrong("{"), @": the body is not a JSON object: EOF while parsing an object");
    }

    #[test]
    fn null_is_no_field_and_hints_are_reported() {
        let body = r#"{"inner":{"depth":[1.0, 2],"cache_control":{"type":"ephemeral"},"width":null},
            "seed":3.0,"store":true,"verbosity":"low","service_tier":"auto","functions":[],"user":"u","odd":null}"#;
        let (outer, ignored) = read(body, false).unwrap();
        assert_eq!(outer.inner.depth, [Int(1), Int(2)]);
        assert_eq!(ignored, ["inner.cache_control", "store", "verbosity"]);
        let refused = read(body, true).unwrap_err();
        insta::assert_snapshot!(refused, @"inner.cache_control: inner.cache_control: the field changes nothing here, and this server is strict");
    }

    #[test]
    fn what_routers_write_into_every_call_is_taken_if_it_asks_for_nothing() {
        let whole = |more: &str| format!(r#"{{"inner":{{"depth":[]}},{more}}}"#);
        let neutral = r#""no_stop_trim":false,"return_hidden_states":false,"separate_reasoning":true,"stream_reasoning":true"#;
        assert_eq!(read(&whole(neutral), true).unwrap().1, [""; 0]);
        let wrong = |more: &str| read(&whole(more), false).unwrap_err();
        insta::assert_snapshot!(wrong(r#""no_stop_trim":true"#), @"no_stop_trim: no_stop_trim: a stop text is never a part of the answer");
        insta::assert_snapshot!(wrong(r#""return_hidden_states":true"#), @"return_hidden_states: return_hidden_states: not supported: /v1/embeddings has embeddings");
        insta::assert_snapshot!(wrong(r#""separate_reasoning":false"#), @"separate_reasoning: separate_reasoning: thoughts are always apart from the answer");
        insta::assert_snapshot!(wrong(r#""stream_reasoning":0"#), @"stream_reasoning: stream_reasoning: thoughts are streamed as they are written");
    }

    #[test]
    fn values_inside_of_a_body_are_read_by_their_path() {
        let mut reader = Reader::default();
        let value = serde_json::json!({ "depth": [1], "strict": true });
        reader.part::<Inner>("tools[3]", &value).unwrap();
        assert_eq!(reader.ignored, ["tools[3].strict"]);
        let error = reader.part::<Inner>("tools[3]", &serde_json::json!({ "depth": 1 })).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[3].depth"));
        let error = reader.part::<Inner>("tools[3]", &serde_json::json!({})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[3].depth"));
    }

    #[test]
    fn objects_are_merged_into_the_body() {
        let merged = |body: &str| merged(body.as_bytes(), "in").map(|body| String::from_utf8(body).unwrap());
        assert_eq!(merged(r#"{"a":1,"in":{"b":[2]}}"#).unwrap(), r#"{"a":1,"b":[2]}"#);
        assert_eq!(merged(r#"{"in":null}"#).unwrap(), r#"{"in":null}"#);
        assert_eq!(merged(r#"{"a":1,"in":{"a":2}}"#).unwrap_err().param.as_deref(), Some("in.a"));
        assert_eq!(merged(r#"{"in":[]}"#).unwrap_err().param.as_deref(), Some("in"));
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = format!(r#"{{"inner":{{"depth":{}{}}}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep, false).is_err());
        let unknown =
            format!(r#"{{"inner":{{"depth":[]}},"x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        insta::assert_snapshot!(read(&unknown, false).unwrap_err(), @"x: x: this server does not know the field");
    }
}
