//! Fields of all families.

use super::fields::Fields;
use super::rope::{RopeSite, rope, rotary_dims, section};
use crate::config::MAX_LAYERS;
use crate::{ConfigError, DecoderConfig, Family, Pairing, Rope, Sizes};

/// Reader of the fields that all families have, with the defaults of a family's configuration class.
pub(in crate::config) struct Plain {
    pub(in crate::config) family: Family,
    pub(in crate::config) kv_heads: KvHeads,
    pub(in crate::config) head_dim: HeadDim,
    /// Name of the field for the MLP width of dense layers.
    pub(in crate::config) inner_size: &'static str,
    pub(in crate::config) rms_norm_eps: f32,
    pub(in crate::config) tied: bool,
    pub(in crate::config) rope: fn(&Fields, &RopeSite) -> Result<Rope, ConfigError>,
    pub(in crate::config) rope_theta: f64,
    /// Fraction of a head that is rotated if no field states it; `None` if the family always rotates whole heads.
    pub(in crate::config) partial_rotary: Option<f64>,
    /// Elements that form a rotated pair.
    pub(in crate::config) pairing: Pairing,
}

/// Number of key and value heads if the field is absent.
#[derive(Clone, Copy)]
pub(in crate::config) enum KvHeads {
    /// The field is required.
    Needed,
    /// The number of query heads.
    Queries,
    /// The given number.
    Default(u32),
}

/// Head size if the field is absent.
#[derive(Clone, Copy)]
pub(in crate::config) enum HeadDim {
    /// The width divided by the number of heads.
    Quotient,
    /// The given number; the quotient if the field is `null`.
    Default(u32),
    /// The given number, if the field is absent or `null`.
    Always(u32),
    /// The family's own reader sets the size from another field.
    Elsewhere,
}

impl Plain {
    pub(in crate::config) const fn new(family: Family) -> Self {
        Self {
            family,
            kv_heads: KvHeads::Needed,
            head_dim: HeadDim::Quotient,
            inner_size: "intermediate_size",
            rms_norm_eps: 1e-6,
            tied: false,
            rope,
            rope_theta: 10_000.0,
            partial_rotary: None,
            pairing: Pairing::Halves,
        }
    }

    /// Reads a configuration in which all layers are dense and have full attention.
    pub(in crate::config) fn read(&self, config: &Fields) -> Result<DecoderConfig, ConfigError> {
        let num_heads = config.need_u32("num_attention_heads")?;
        let num_layers = config.need_u32("num_hidden_layers")?;
        if num_layers > MAX_LAYERS {
            let (field, value, max) = ("num_hidden_layers", num_layers, MAX_LAYERS);
            return Err(ConfigError::TooLarge { field, value, max });
        }
        let sizes = Sizes {
            vocab_size: config.need_u32("vocab_size")?,
            hidden_size: config.need_u32("hidden_size")?,
            intermediate_size: config.need_u32(self.inner_size)?,
            num_layers,
            num_heads,
            num_kv_heads: match (config.u32("num_key_value_heads")?, self.kv_heads) {
                (Some(n), _) => n,
                (None, KvHeads::Queries) => num_heads,
                (None, KvHeads::Default(n)) => n,
                (None, KvHeads::Needed) => {
                    return Err(ConfigError::Missing { field: "num_key_value_heads" });
                }
            },
            head_dim: self.head_dim(config, num_heads)?,
            context_length: config.need_u32("max_position_embeddings")?,
        };
        let site = RopeSite {
            rotary_dims: self.rotary_dims(config, sizes.head_dim)?,
            context_length: sizes.context_length,
            theta: self.rope_theta,
            partial: self.partial_rotary.is_some(),
            pairing: self.pairing,
        };
        let mut decoder = DecoderConfig::plain(self.family, sizes);
        decoder.rope = (self.rope)(config, &site)?;
        decoder.rms_norm_eps = config.f32("rms_norm_eps")?.unwrap_or(self.rms_norm_eps);
        decoder.tie_embeddings = config.bool("tie_word_embeddings")?.unwrap_or(self.tied);
        Ok(decoder)
    }

    /// Returns the number of dimensions of a head that rotate.
    fn rotary_dims(&self, config: &Fields, head_dim: u32) -> Result<u32, ConfigError> {
        let Some(default) = self.partial_rotary else { return Ok(head_dim) };
        let section = section(config)?.unwrap_or_default();
        let factor = match section.f64("partial_rotary_factor")? {
            Some(factor) => factor,
            None => config.f64("partial_rotary_factor")?.unwrap_or(default),
        };
        rotary_dims(head_dim, factor)
    }

    fn head_dim(&self, config: &Fields, num_heads: u32) -> Result<u32, ConfigError> {
        let hidden_size = config.need_u32("hidden_size")?;
        match (config.u32("head_dim")?, self.head_dim) {
            // Replaced by the family.
            (_, HeadDim::Elsewhere) => Ok(1),
            (Some(n), _) | (None, HeadDim::Always(n)) => Ok(n),
            // `null` asks for the quotient, absence is the default of the configuration class.
            (None, HeadDim::Default(n)) if !config.0.contains_key("head_dim") => Ok(n),
            _ if !hidden_size.is_multiple_of(num_heads.max(1)) => {
                let (field, value) = ("hidden_size", hidden_size.to_string());
                Err(ConfigError::Invalid { field, value, rule: "a multiple of num_attention_heads" })
            }
            _ => Ok(hidden_size / num_heads.max(1)),
        }
    }
}

/// Reads a number whose field has one of two names. If both are absent, the error names the first.
pub(in crate::config) fn either(config: &Fields, fields: [&'static str; 2]) -> Result<u32, ConfigError> {
    match config.u32(fields[1])? {
        Some(n) if config.get(fields[0]).is_none() => Ok(n),
        _ => config.need_u32(fields[0]),
    }
}

/// Rejects biases of attention, which some families never have.
pub(in crate::config) fn refuse_biases(config: &Fields) -> Result<(), ConfigError> {
    match config.bool("attention_bias")?.unwrap_or(false) {
        true => Err(ConfigError::Unsupported { field: "attention_bias".into(), value: "true".into() }),
        false => Ok(()),
    }
}
