//! Preset files: policies with the key names of published configurations, in RON.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

use crate::{Spec, SpecError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ucm_sparse_config: BTreeMap<String, BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Flag(bool),
    Unsigned(u64),
    Signed(i64),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Other(IgnoredAny),
}

impl Value {
    fn scalar(&self) -> Option<String> {
        match self {
            Self::Flag(x) => Some(x.to_string()),
            Self::Unsigned(x) => Some(x.to_string()),
            Self::Signed(x) => Some(x.to_string()),
            Self::Number(x) => Some(x.to_string()),
            Self::Text(x) => Some(x.clone()),
            Self::List(_) | Self::Other(_) => None,
        }
    }

    /// The value in text form, as in a spec; lists are separated by `:`.
    fn text(&self) -> Option<String> {
        match self {
            Self::List(values) => {
                values.iter().map(Self::scalar).collect::<Option<Vec<_>>>().map(|v| v.join(":"))
            }
            scalar => scalar.scalar(),
        }
    }
}

/// The specs of a preset file, `(ucm_sparse_config: {"GSA": {"sparse_ratio": 0.3}})`, by name of the policy. Values are
/// numbers, texts, bools, or lists of them; [`Registry::build`](crate::Registry::build) checks names and keys.
///
/// # Errors
/// [`SpecError::Ron`] or [`SpecError::PresetValue`].
pub fn parse_presets(text: &str) -> Result<Vec<Spec>, SpecError> {
    let file: File = ron::from_str(text).map_err(SpecError::Ron)?;
    let spec = |(name, values): (String, BTreeMap<String, Value>)| {
        let param = |(key, value): (String, Value)| match value.text() {
            Some(text) => Ok((key, text)),
            None => Err(SpecError::PresetValue { policy: name.clone(), key }),
        };
        let params = values.into_iter().map(param).collect::<Result<_, _>>()?;
        Ok(Spec { name, params, decode: None })
    };
    file.ucm_sparse_config.into_iter().map(spec).collect()
}
