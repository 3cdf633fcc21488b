use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{KvHeads, Plain, alike};
use crate::{ConfigError, DecoderConfig, Family, Pairing};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "granite",
        reads: &["attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"],
        read: |config| {
            let plain = Plain { kv_heads: KvHeads::Queries, ..Plain::new(Family::Granite) };
            let mut decoder = plain.read(config)?;
            decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
            decoder.o_bias = decoder.qkv_bias;
            decoder.set_reaches(alike(config, decoder.num_layers, None)?);
            let factor = |field| Ok::<_, ConfigError>(config.f32(field)?.unwrap_or(1.0));
            decoder.scale = factor("attention_multiplier")?;
            let residual = factor("residual_multiplier")?;
            scale(&mut decoder, factor("embedding_multiplier")?, residual, factor("logits_scaling")?)?;
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "granite",
        reads: &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
        read: |keys| {
            let plain = gguf::Plain { pairing: Pairing::Interleaved, ..gguf::Plain::new(Family::Granite) };
            let mut decoder = plain.read(keys)?;
            #[expect(clippy::cast_possible_truncation, reason = "stored as f32, widened by the reader")]
            let factor = |key| {
                let factor = keys.f64(key)?.filter(|factor| *factor != 0.0);
                Ok::<_, ConfigError>(factor.map(|factor| factor as f32))
            };
            if let Some(scale) = factor("attention.scale")? {
                decoder.scale = scale;
            }
            let [embedding, residual, logits] =
                ["embedding_scale", "residual_scale", "logit_scale"].map(factor);
            let [embedding, residual, logits] = [embedding?, residual?, logits?].map(|f| f.unwrap_or(1.0));
            scale(&mut decoder, embedding, residual, logits)?;
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};

/// Folds the multipliers of embeddings and residuals, and the divisor of logits, into the configuration. The residual is stored
/// divided by its multiplier: attention and MLP then add their output unscaled, and norms give the same result with an epsilon
/// divided by the multiplier's square.
fn scale(decoder: &mut DecoderConfig, embedding: f32, residual: f32, logits: f32) -> Result<(), ConfigError> {
    for (field, value) in [("residual_multiplier", residual), ("logits_scaling", logits)] {
        if !(value.is_finite() && value > 0.0) {
            return Err(ConfigError::Invalid { field, value: value.to_string(), rule: "finite and over 0" });
        }
    }
    decoder.embedding_scale = embedding / residual;
    decoder.rms_norm_eps /= residual * residual;
    decoder.logit_scale = 1.0 / logits;
    Ok(())
}
