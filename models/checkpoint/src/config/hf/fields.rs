//! Fields of a JSON object by type.

use serde_json::{Map, Value};

use crate::ConfigError;

/// A JSON object whose fields are read by type; `null` counts as absent.
#[derive(Default, Debug)]
pub(in crate::config) struct Fields(pub(in crate::config) Map<String, Value>);

impl Fields {
    pub(in crate::config) fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn typed<'a, T>(
        &'a self,
        field: &str,
        want: &'static str,
        as_type: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        as_type(value).map(Some).ok_or_else(|| mismatch(field, want, value))
    }

    pub(in crate::config) fn u32(&self, field: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(field, "an integer of 32 bits", as_u32)
    }

    pub(in crate::config) fn need_u32(&self, field: &'static str) -> Result<u32, ConfigError> {
        self.u32(field)?.ok_or(ConfigError::Missing { field })
    }

    pub(in crate::config) fn f64(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a number", Value::as_f64)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the forward pass runs in f32")]
    pub(in crate::config) fn f32(&self, field: &str) -> Result<Option<f32>, ConfigError> {
        Ok(self.f64(field)?.map(|value| value as f32))
    }

    pub(in crate::config) fn need_f64(&self, field: &'static str) -> Result<f64, ConfigError> {
        self.f64(field)?.ok_or(ConfigError::Missing { field })
    }

    pub(in crate::config) fn bool(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(in crate::config) fn str(&self, field: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(in crate::config) fn object(&self, field: &str) -> Result<Option<Fields>, ConfigError> {
        self.typed(field, "an object", |value| Some(Fields(value.as_object()?.clone())))
    }

    /// Reads a required list of numbers.
    #[expect(clippy::cast_possible_truncation, reason = "the forward pass runs in f32")]
    pub(in crate::config) fn floats(&self, field: &'static str) -> Result<Vec<f32>, ConfigError> {
        let list = self.typed(field, "a list of numbers", |value| {
            value.as_array()?.iter().map(|number| Some(number.as_f64()? as f32)).collect()
        })?;
        list.ok_or(ConfigError::Missing { field })
    }

    /// Reads token ids: one, or a list.
    pub(in crate::config) fn ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        let ids = self.typed(field, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(as_u32).collect(),
            id => Some(vec![as_u32(id)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

pub(in crate::config) fn as_u32(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

pub(in crate::config) fn mismatch(field: &str, want: &'static str, found: &Value) -> ConfigError {
    ConfigError::FieldType {
        field: field.to_owned(),
        want,
        found: found.to_string().chars().take(60).collect(),
    }
}
