//! Metadata keys of one architecture, by type, and keys that must have neutral values.

use crate::{ConfigError, Gguf, GgufError, Value};

/// Metadata keys of a GGUF file that begin with the name of an architecture.
pub(in crate::config) struct Keys<'a> {
    pub(in crate::config) file: &'a Gguf,
    pub(in crate::config) arch: &'a str,
}

/// Keys, without the architecture prefix, that would change the result, each with its neutral values.
const NEUTRAL: &[(&str, &[f64])] = &[
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_group_used_count", &[0.0, 1.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("attention.causal", &[1.0]),
    ("attention.sliding_window", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.key_length_swa", &[]),
    ("attention.value_length_swa", &[]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("rope.dimension_count_swa", &[]),
    ("rope.dimension_sections", &[]),
    ("rope.freq_base_swa", &[]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.yarn_ext_factor", &[1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0]),
    ("embedding_scale", &[0.0]),
    ("residual_scale", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

pub(in crate::config) fn missing(key: impl Into<String>) -> GgufError {
    GgufError::MissingKey { key: key.into() }
}

impl Keys<'_> {
    /// Returns the key with the architecture prefix.
    pub(in crate::config) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub(in crate::config) fn value(&self, name: &str) -> Option<&Value> {
        self.file.value(&self.key(name))
    }

    pub(in crate::config) fn u32(&self, name: &str) -> Result<Option<u32>, GgufError> {
        self.file.u32(&self.key(name))
    }

    pub(in crate::config) fn need_u32(&self, name: &str) -> Result<u32, GgufError> {
        self.u32(name)?.ok_or_else(|| missing(self.key(name)))
    }

    pub(in crate::config) fn bool(&self, name: &str) -> Result<Option<bool>, GgufError> {
        self.file.bool(&self.key(name))
    }

    pub(in crate::config) fn f64(&self, name: &str) -> Result<Option<f64>, GgufError> {
        self.file.float(&self.key(name))
    }

    pub(in crate::config) fn need_f64(&self, name: &str) -> Result<f64, GgufError> {
        self.f64(name)?.ok_or_else(|| missing(self.key(name)))
    }

    pub(in crate::config) fn unsupported(&self, name: &str, value: &str) -> ConfigError {
        ConfigError::Unsupported { field: self.key(name), value: value.to_owned() }
    }

    /// Rejects keys that would change the result, except those that the family `reads`.
    pub(in crate::config) fn refuse_unimplemented(&self, reads: &[&str]) -> Result<(), ConfigError> {
        for &(name, neutral) in NEUTRAL.iter().filter(|(name, _)| !reads.contains(name)) {
            let Some(value) = self.value(name) else { continue };
            #[expect(clippy::cast_precision_loss, reason = "only compared with small whole numbers")]
            let number = match *value {
                Value::Unsigned(n) => Some(n as f64),
                Value::Signed(n) => Some(n as f64),
                Value::Float(x) => Some(x),
                Value::Bool(b) => Some(f64::from(u8::from(b))),
                _ => None,
            };
            if !number.is_some_and(|number| neutral.contains(&number)) {
                return Err(self.unsupported(name, &value.to_string()));
            }
        }
        Ok(())
    }
}
