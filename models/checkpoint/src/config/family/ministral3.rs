use serde_json::json;

use super::{Gguf, Hf, Spec};
use crate::config::gguf::{self, Keys};
use crate::config::hf::{Fields, HeadDim, KvHeads, Plain, alike, section, window};
use crate::config::rope::yarn_mscale;
use crate::{ConfigError, DecoderConfig, Family, Pairing, RopeScaling, Temperature};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf { model_type: "ministral3", reads: &[], read: from_hf }),
    gguf: Some(Gguf {
        architecture: "mistral3",
        reads: &["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"],
        read: from_gguf,
    }),
    ..Spec::NONE
};

fn from_hf(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    let plain = Plain {
        kv_heads: KvHeads::Default(8),
        head_dim: HeadDim::Default(128),
        rms_norm_eps: 1e-5,
        rope_theta: 1e6,
        rope: |config, site| {
            let mut section = section(config)?.unwrap_or_else(default_section);
            // The one is read below, the other repeats a field outside.
            section.0.retain(|field, _| {
                !["llama_4_scaling_beta", "max_position_embeddings"].contains(&field.as_str())
            });
            site.rope(config, &section)
        },
        ..Plain::new(Family::Ministral3)
    };
    let mut decoder = plain.read(config)?;
    decoder.set_reaches(alike(config, decoder.num_layers, window(config, None)?)?);
    let section = section(config)?.unwrap_or_else(default_section);
    let original = section.need_f64("original_max_position_embeddings")?;
    decoder.temperature = temperature(original, section.f64("llama_4_scaling_beta")?)?;
    Ok(decoder)
}

fn from_gguf(keys: &Keys<'_>) -> Result<DecoderConfig, ConfigError> {
    let plain = gguf::Plain { pairing: Pairing::Interleaved, ..gguf::Plain::new(Family::Ministral3) };
    let mut decoder = plain.read(keys)?;
    if let RopeScaling::Yarn { factor, attention_factor, original_context, .. } = &mut decoder.rope.scaling {
        let all = keys.f64("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
        *attention_factor /= yarn_mscale(*factor, all);
        let beta = keys.f64("attention.temperature_scale")?.filter(|beta| *beta != 0.0);
        decoder.temperature = temperature(*original_context, beta)?;
    }
    Ok(decoder)
}

/// Returns the query scale, which grows every `original` tokens.
fn temperature(original: f64, beta: Option<f64>) -> Result<Option<Temperature>, ConfigError> {
    if !(original.is_finite() && original >= 1.0) {
        let (field, value) = ("original_max_position_embeddings", original.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "finite and at least 1" });
    }
    let with = |attn_scale| Temperature { floor_scale: original, attn_scale, first: 0, all_layers: true };
    Ok(beta.map(with))
}

/// Returns the rotation of a configuration without a section for it.
fn default_section() -> Fields {
    let section = json!({
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    });
    Fields(section.as_object().cloned().unwrap_or_default())
}
