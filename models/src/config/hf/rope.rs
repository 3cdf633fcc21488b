//! Rotary embeddings.

use serde_json::{Map, json};

use super::fields::Fields;
use crate::config::rope::yarn_mscale;
use crate::{ConfigError, Family, Rope, RopeScaling};

/// New configurations hold all of it in `rope_parameters`, old ones in `rope_theta` and `rope_scaling`.
pub(super) fn rope(
    config: &Fields,
    family: Family,
    head_dim: u32,
    context_length: u32,
) -> Result<Rope, ConfigError> {
    let section = match section(config)? {
        Some(section) => section,
        None if family == Family::GptOss => gpt_oss_default(),
        None => Fields(Map::new()),
    };
    if let Some((field, value)) = section.0.iter().find(|(field, _)| !KNOWN.contains(&field.as_str())) {
        return Err(ConfigError::Unsupported {
            field: format!("{field} in rope_parameters"),
            value: value.to_string(),
        });
    }
    if let Some(value) = section.get("partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
        return Err(ConfigError::Unsupported {
            field: "partial_rotary_factor".into(),
            value: value.to_string(),
        });
    }
    let theta = match section.f64("rope_theta")? {
        Some(theta) => theta,
        None => config.f64("rope_theta")?.unwrap_or(default_theta(family)),
    };
    Ok(Rope {
        theta,
        rotary_dims: head_dim,
        interleaved: matches!(family, Family::Llama4 | Family::DeepseekV3 | Family::DeepseekV32),
        scaling: scaling(&section, context_length)?,
    })
}

/// How a section stretches to longer contexts.
pub(super) fn scaling(section: &Fields, context_length: u32) -> Result<RopeScaling, ConfigError> {
    let kind = match section.str("rope_type")? {
        Some(kind) => kind,
        None => section.str("type")?.unwrap_or("default"),
    };
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: section.need_f64("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: section.need_f64("factor")?,
            low_freq_factor: section.need_f64("low_freq_factor")?,
            high_freq_factor: section.need_f64("high_freq_factor")?,
            original_context: match section.f64("original_max_position_embeddings")? {
                Some(original) => original,
                None => context_length.into(),
            },
        },
        "yarn" => yarn(section, context_length.into())?,
        _ => return Err(ConfigError::Unsupported { field: "rope_type".into(), value: format!("{kind:?}") }),
    })
}

/// What may be said about a rotation.
const KNOWN: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "partial_rotary_factor",
];

/// Where a configuration says how to rotate.
pub(super) fn section(config: &Fields) -> Result<Option<Fields>, ConfigError> {
    match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
        (Some(new), Some(old)) if new.0 != old.0 => Err(ConfigError::Unsupported {
            field: "rope_scaling".into(),
            value: format!("{} beside other rope_parameters", serde_json::Value::Object(old.0)),
        }),
        (Some(new), _) => Ok(Some(new)),
        (None, old) => Ok(old),
    }
}

fn default_theta(family: Family) -> f64 {
    match family {
        Family::GptOss => 150_000.0,
        Family::Llama4 => 500_000.0,
        _ => 10_000.0,
    }
}

fn yarn(section: &Fields, context_length: f64) -> Result<RopeScaling, ConfigError> {
    let original_context = section.f64("original_max_position_embeddings")?.unwrap_or(context_length);
    let factor = section.f64("factor")?.unwrap_or(context_length / original_context);
    let mscale = (section.f64("mscale")?, section.f64("mscale_all_dim")?);
    let attention_factor = match (section.f64("attention_factor")?, mscale) {
        (Some(given), _) => given,
        // Zero counts as absent, as it is false in Python.
        (None, (Some(m), Some(all))) if m != 0.0 && all != 0.0 => {
            yarn_mscale(factor, m) / yarn_mscale(factor, all)
        }
        (None, _) => yarn_mscale(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: section.f64("beta_fast")?.unwrap_or(32.0),
        beta_slow: section.f64("beta_slow")?.unwrap_or(1.0),
        attention_factor,
        truncate: section.bool("truncate")?.unwrap_or(true),
    })
}

/// What a gpt-oss configuration means that says nothing.
fn gpt_oss_default() -> Fields {
    let section = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    Fields(section.as_object().cloned().unwrap_or_default())
}
