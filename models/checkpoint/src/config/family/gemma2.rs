use super::{Gguf, Hf, Spec};
use crate::config::gguf::{self, Keys};
use crate::config::hf::{Fields, HeadDim, Plain, reaches, refuse_biases, unknown, window};
use crate::config::{root_of, scale_of};
use crate::{BlockNorms, ConfigError, DecoderConfig, Family, Gate};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "gemma2",
        reads: &[
            "hidden_act",
            "hidden_activation",
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ],
        read: from_hf,
    }),
    gguf: Some(Gguf {
        architecture: "gemma2",
        reads: &["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"],
        read: from_gguf,
    }),
    ..Spec::NONE
};

const ACTIVATION: &str = "gelu_pytorch_tanh";

/// Softcaps of scores and of logits if none are stated.
const SOFTCAPS: [f32; 2] = [50.0, 30.0];

/// Sets the values that all models of this family share and that no checkpoint states.
fn complete(decoder: &mut DecoderConfig) {
    decoder.norms = BlockNorms::Around;
    decoder.gate = Gate::GeluTanh;
    decoder.embedding_scale = root_of(decoder.hidden_size);
}

fn from_hf(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    refuse_biases(config)?;
    // Early configurations have both, of which the second counts.
    let activation = match config.str("hidden_activation")? {
        Some(name) => Some(("hidden_activation", name)),
        None => config.str("hidden_act")?.map(|name| ("hidden_act", name)),
    };
    if let Some((field, other)) = activation.filter(|(_, name)| *name != ACTIVATION) {
        return Err(unknown(field, other));
    }
    let plain = Plain { head_dim: HeadDim::Always(256), tied: true, ..Plain::new(Family::Gemma2) };
    let mut decoder = plain.read(config)?;
    complete(&mut decoder);
    // Weights over one.
    decoder.norm_offset = 1.0;
    decoder.scale = scale_of(config.u32("query_pre_attn_scalar")?.unwrap_or(256));
    // `null` switches a bound off, absence is the default of the configuration class.
    let softcap = |field: &str, default| match config.0.contains_key(field) {
        true => config.f32(field),
        false => Ok(Some(default)),
    };
    decoder.score_softcap = softcap("attn_logit_softcapping", SOFTCAPS[0])?;
    decoder.logit_softcap = softcap("final_logit_softcapping", SOFTCAPS[1])?;
    let every_other = |layer: u32| layer.is_multiple_of(2);
    decoder.set_reaches(reaches(config, decoder.num_layers, window(config, Some(4096))?, every_other)?);
    Ok(decoder)
}

fn from_gguf(keys: &Keys<'_>) -> Result<DecoderConfig, ConfigError> {
    /// Number of layers of the 27B model, whose scores are scaled by the model's width over its number of heads.
    const LAYERS_27B: u32 = 46;
    let mut decoder = gguf::Plain::new(Family::Gemma2).read(keys)?;
    complete(&mut decoder);
    if decoder.num_layers == LAYERS_27B {
        decoder.scale = scale_of(decoder.hidden_size / decoder.num_heads.max(1));
    }
    #[expect(clippy::cast_possible_truncation, reason = "stored as f32, widened by the reader")]
    let softcap = |key, default| Ok::<_, ConfigError>(keys.f64(key)?.map_or(default, |cap| cap as f32));
    decoder.score_softcap = Some(softcap("attn_logit_softcapping", SOFTCAPS[0])?);
    decoder.logit_softcap = Some(softcap("final_logit_softcapping", SOFTCAPS[1])?);
    decoder.set_reaches(gguf::windows(keys, decoder.num_layers, |layer| layer.is_multiple_of(2))?);
    Ok(decoder)
}
