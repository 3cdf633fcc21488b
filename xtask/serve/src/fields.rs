//! The body of a call: a JSON object whose fields are taken one by one, so that nothing is ignored in silence.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Fields that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Fields<'b>(BTreeMap<Cow<'b, str>, &'b RawValue>);

/// The name of a field, which may be written with escapes.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'b>(#[serde(borrow)] Cow<'b, str>);

impl<'b> Fields<'b> {
    /// Reads the object, whose values are only looked at when they are taken. O(bytes).
    pub(crate) fn read(body: &'b [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body)
            .map_err(|error| ApiError::invalid(format!("the body is not UTF-8: {error}")))?;
        let fields: BTreeMap<Name<'b>, &'b RawValue> = serde_json::from_str(text)
            .map_err(|error| ApiError::invalid(format!("the body is not a JSON object: {error}")))?;
        Ok(Self(fields.into_iter().map(|(Name(name), value)| (name, value)).collect()))
    }

    /// Takes a field; `None` if it is missing or null.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        known(name);
        self.remove(name)
    }

    fn remove<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        self.0.remove(name).map_or(Ok(None), |value| parse(name, value.get()))
    }

    /// Reads a field without taking it; `None` if it is missing or null.
    pub(crate) fn look<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.0.get(name).map_or(Ok(None), |value| parse(name, value.get()))
    }

    /// Takes a field that is an object, and lets its fields be taken as if they were fields of this one.
    pub(crate) fn merge(&mut self, name: &'static str) -> Result<(), ApiError> {
        known(name);
        let Some(value) = self.0.remove(name).filter(|value| value.get() != "null") else { return Ok(()) };
        let Self(inner) =
            Self::read(value.get().as_bytes()).map_err(|_| ApiError::field(name, "must be an object"))?;
        for (field, value) in inner {
            if self.0.insert(field.clone(), value).is_some() {
                return Err(ApiError::field(
                    format!("{name}.{field}"),
                    "this is a field of the request, too",
                ));
            }
        }
        Ok(())
    }

    /// Takes a field that must be there.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::field(name, "this field is required"))
    }

    /// Reads a count of at least one; `None` if it is missing or null.
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        match self.take(name)? {
            Some(0) => Err(ApiError::field(name, "0, must be 1 or more")),
            count => Ok(count),
        }
    }

    /// Takes a field that only supports the given `value`.
    pub(crate) fn only<T: DeserializeOwned + PartialEq>(
        &mut self,
        name: &str,
        value: &T,
        why: &str,
    ) -> Result<(), ApiError> {
        match self.take::<T>(name)? {
            Some(given) if given != *value => Err(ApiError::field(name, why)),
            _ => Ok(()),
        }
    }

    /// Refuses a field, unless it is null.
    pub(crate) fn refuse(&mut self, name: &str, why: &str) -> Result<(), ApiError> {
        match self.remove::<serde::de::IgnoredAny>(name)? {
            Some(_) => Err(ApiError::field(name, why)),
            None => Ok(()),
        }
    }

    /// Skips fields about the caller or the purpose, which do not change the answer.
    pub(crate) fn skip(&mut self, names: &[&str]) {
        for name in names {
            known(name);
            self.0.remove(*name);
        }
    }

    /// Refuses fields that no handler has read.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        match self.0.into_iter().next() {
            Some((name, _)) => {
                Err(ApiError::field(name, "this server does not know the field").with_code("unknown_field"))
            }
            None => Ok(()),
        }
    }
}

/// Reports to a test that calls may have a field.
#[cfg(test)]
fn known(name: &str) {
    tests::KNOWN.with_borrow_mut(|known| known.insert(name.to_owned()));
}

#[cfg(not(test))]
fn known(_: &str) {}

/// Reads the value of the field `name`; `None` if it is null. Errors name the innermost field.
fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<Option<T>, ApiError> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let field = match path.as_str() {
            "." | "?" => name.to_owned(),
            inner if inner.starts_with('[') => format!("{name}{inner}"),
            inner => format!("{name}.{inner}"),
        };
        // The position is one inside the field, which helps nobody.
        let message = error.inner().to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason);
        ApiError::field(field, message)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    thread_local! {
        /// Names of all fields that handlers read in this thread, for the test of the API description.
        pub(crate) static KNOWN: RefCell<BTreeSet<String>> = RefCell::default();
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only its absence matters")]
        depth: Vec<u32>,
    }

    fn message(read: impl FnOnce(&mut Fields<'_>) -> Result<(), ApiError>, body: &str) -> String {
        let result = Fields::read(body.as_bytes()).and_then(|mut fields| {
            read(&mut fields)?;
            fields.end()
        });
        let error = result.unwrap_err();
        format!("{}: {}", error.param.unwrap_or_default(), error.message)
    }

    #[test]
    fn errors_name_the_innermost_field() {
        let inner = |body| message(|fields| fields.need::<Inner>("inner").map(drop), body);
        insta::assert_snapshot!(inner(r#"{"inner":{"depth":[1,"x"]}}"#), @r#"inner.depth[1]: inner.depth[1]: invalid type: string "x", expected u32"#);
        insta::assert_snapshot!(inner(r#"{"inner":{"depth":[],"width":1}}"#), @"inner.width: inner.width: unknown field `width`, expected `depth`");
        insta::assert_snapshot!(inner(r#"{"inner":{"depth":[]},"o\u0074her":1}"#), @"other: other: this server does not know the field");
        insta::assert_snapshot!(inner(r#"{"inner":null}"#), @"inner: inner: this field is required");
        insta::assert_snapshot!(inner("[]"), @": the body is not a JSON object: invalid type: sequence, expected a map at line 1 column 0");
    }

    #[test]
    fn a_field_with_one_possible_value_is_refused_otherwise() {
        let only = |body| message(|fields| fields.only("echo", &false, "not here"), body);
        assert_eq!(only(r#"{"echo":true}"#), "echo: echo: not here");
        assert!(Fields::read(br#"{"echo":null}"#).unwrap().only("echo", &false, "not here").is_ok());
        let refuse = |body| message(|fields| fields.refuse("audio", "no sound"), body);
        assert_eq!(refuse(r#"{"audio":{"voice":[]}}"#), "audio: audio: no sound");
    }

    #[test]
    fn bytes_that_are_no_text_and_deep_nesting_are_refused() {
        let error = Fields::read(b"{\"a\":\"\xff\"}").unwrap_err();
        assert_eq!(error.status, 400);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let mut fields = Fields::read(deep.as_bytes()).unwrap();
        let error = fields.take::<serde_json::Value>("a").unwrap_err();
        assert!(error.message.ends_with("recursion limit exceeded"), "{}", error.message);
    }
}
