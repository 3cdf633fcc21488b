//! Rotary embeddings.

use serde_json::Map;

use super::fields::Fields;
use crate::config::rope::{long_mscale, yarn_mscale};
use crate::{ConfigError, Pairing, Rope, RopeScaling, ShortFactors};

/// Parameters of a rotation that its section does not state.
pub(in crate::config) struct RopeSite {
    /// Number of dimensions of a head that rotate.
    pub(in crate::config) rotary_dims: u32,
    pub(in crate::config) context_length: u32,
    /// Rope base if no field states it.
    pub(in crate::config) theta: f64,
    /// Whether a field may state that only a part of a head rotates.
    pub(in crate::config) partial: bool,
    /// Elements that form a rotated pair.
    pub(in crate::config) pairing: Pairing,
}

/// Reads the rotation of all layers. New configurations store it in `rope_parameters`, old ones in `rope_theta` and
/// `rope_scaling`.
pub(in crate::config) fn rope(config: &Fields, site: &RopeSite) -> Result<Rope, ConfigError> {
    let section = section(config)?.unwrap_or(Fields(Map::new()));
    site.rope(config, &section)
}

impl RopeSite {
    /// Reads the rotation of a section.
    pub(in crate::config) fn rope(&self, config: &Fields, section: &Fields) -> Result<Rope, ConfigError> {
        if let Some((field, value)) = section.0.iter().find(|(field, _)| !KNOWN.contains(&field.as_str())) {
            return Err(ConfigError::Unsupported {
                field: format!("{field} in rope_parameters"),
                value: value.to_string(),
            });
        }
        let whole = |value: &&serde_json::Value| self.partial || value.as_f64() == Some(1.0);
        if let Some(value) = section.get("partial_rotary_factor").filter(|value| !whole(value)) {
            return Err(ConfigError::Unsupported {
                field: "partial_rotary_factor".into(),
                value: value.to_string(),
            });
        }
        let theta = match section.f64("rope_theta")? {
            Some(theta) => theta,
            None => config.f64("rope_theta")?.unwrap_or(self.theta),
        };
        Ok(Rope {
            theta,
            rotary_dims: self.rotary_dims,
            pairing: self.pairing,
            scaling: scaling(section, self.context_length)?,
        })
    }
}

/// Reads the scaling of frequencies for longer contexts.
pub(in crate::config) fn scaling(section: &Fields, context_length: u32) -> Result<RopeScaling, ConfigError> {
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
        "longrope" | "su" => long(section, context_length)?,
        _ => return Err(ConfigError::Unsupported { field: "rope_type".into(), value: format!("{kind:?}") }),
    })
}

/// Fields of a section on rotation.
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
    "long_factor",
    "short_factor",
];

/// Finds the rope section of a configuration.
pub(in crate::config) fn section(config: &Fields) -> Result<Option<Fields>, ConfigError> {
    match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
        (Some(new), Some(old)) if new.0 != old.0 => Err(ConfigError::Unsupported {
            field: "rope_scaling".into(),
            value: format!("{} beside other rope_parameters", serde_json::Value::Object(old.0)),
        }),
        (Some(new), _) => Ok(Some(new)),
        (None, old) => Ok(old),
    }
}

/// Reads LongRoPE. The original context is in the section; Phi 3 has it outside, and copies it there.
fn long(section: &Fields, context_length: u32) -> Result<RopeScaling, ConfigError> {
    let original_context = section.need_u32("original_max_position_embeddings")?;
    let (original, context) = (f64::from(original_context), f64::from(context_length));
    let stretched = context > original;
    let factor = section.f64("factor")?.unwrap_or(context / original);
    Ok(RopeScaling::Long {
        factors: section.floats(if stretched { "long_factor" } else { "short_factor" })?,
        short: match stretched && section.get("short_factor").is_some() {
            true => Some(ShortFactors { factors: section.floats("short_factor")?, original_context }),
            false => None,
        },
        attention_factor: section.f64("attention_factor")?.unwrap_or_else(|| long_mscale(factor, original)),
    })
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

/// Dimensions of a head that rotate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked, and rounded down as Python does"
)]
pub(in crate::config) fn rotary_dims(head_dim: u32, factor: f64) -> Result<u32, ConfigError> {
    if !(factor > 0.0 && factor <= 1.0) {
        let (field, value) = ("partial_rotary_factor", factor.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "over 0 and at most 1" });
    }
    Ok((f64::from(head_dim) * factor) as u32)
}
