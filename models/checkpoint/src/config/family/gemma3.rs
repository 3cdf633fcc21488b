use super::{Gguf, Hf, Spec};
use crate::config::gguf::{self, Keys};
use crate::config::hf::{Fields, HeadDim, Plain, reaches, refuse_biases, section, unknown, window};
use crate::config::{root_of, scale_of};
use crate::{BlockNorms, ConfigError, DecoderConfig, Family, Gate, QkNorm, Rope, RopeScaling};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "gemma3_text",
        reads: &["hidden_act", "hidden_activation", "query_pre_attn_scalar"],
        read: from_hf,
    }),
    gguf: Some(Gguf {
        architecture: "gemma3",
        reads: &["attention.sliding_window", "rope.freq_base_swa"],
        read: from_gguf,
    }),
    ..Spec::NONE
};

/// Number of layers per period; the last layer of a period has full attention.
const PERIOD: u32 = 6;

/// Rope bases in layers with a window, and in the others.
const THETAS: [f64; 2] = [10_000.0, 1_000_000.0];

const ACTIVATION: &str = "gelu_pytorch_tanh";

/// Sets the values that no checkpoint states.
fn complete(decoder: &mut DecoderConfig) {
    decoder.qk_norm = QkNorm::Rms;
    decoder.norms = BlockNorms::Around;
    decoder.gate = Gate::GeluTanh;
    decoder.embedding_scale = root_of(decoder.hidden_size);
}

fn from_hf(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    refuse_biases(config)?;
    for field in ["hidden_act", "hidden_activation"] {
        if let Some(other) = config.str(field)?.filter(|name| *name != ACTIVATION) {
            return Err(unknown(field, other));
        }
    }
    let plain = Plain {
        head_dim: HeadDim::Always(256),
        tied: true,
        rope_theta: THETAS[1],
        rope: |config, site| match section(config)?.map(|all| all.object("full_attention")).transpose()? {
            Some(Some(full)) => site.rope(&Fields::default(), &full),
            _ => crate::config::hf::rope(config, site),
        },
        ..Plain::new(Family::Gemma3)
    };
    let mut decoder = plain.read(config)?;
    complete(&mut decoder);
    // Weights over one.
    decoder.norm_offset = 1.0;
    decoder.scale = scale_of(config.u32("query_pre_attn_scalar")?.unwrap_or(256));
    let period = config.u32("sliding_window_pattern")?.unwrap_or(PERIOD).max(1);
    let windowed = |layer: u32| !(layer + 1).is_multiple_of(period);
    decoder.set_reaches(reaches(config, decoder.num_layers, window(config, Some(4096))?, windowed)?);
    decoder.window_rope = Some(window_rope(config, &decoder)?);
    Ok(decoder)
}

/// Reads the rotation of layers with a window. New configurations have a section for it.
fn window_rope(config: &Fields, decoder: &DecoderConfig) -> Result<Rope, ConfigError> {
    let theta = |of: &Fields, field| Ok::<_, ConfigError>(of.f64(field)?.unwrap_or(THETAS[0]));
    let section = section(config)?.map(|all| all.object("sliding_attention")).transpose()?.flatten();
    let (theta, scaling) = match &section {
        Some(section) => {
            (theta(section, "rope_theta")?, crate::config::hf::scaling(section, decoder.context_length)?)
        }
        None => (theta(config, "rope_local_base_freq")?, RopeScaling::None),
    };
    Ok(Rope { theta, scaling, ..decoder.rope.clone() })
}

fn from_gguf(keys: &Keys<'_>) -> Result<DecoderConfig, ConfigError> {
    /// Number of layers of the 27B model, whose scores are scaled by the model's width over its number of heads.
    const LAYERS_27B: u32 = 62;
    let mut decoder = gguf::Plain::new(Family::Gemma3).read(keys)?;
    complete(&mut decoder);
    if decoder.num_layers == LAYERS_27B {
        decoder.scale = scale_of(decoder.hidden_size / decoder.num_heads.max(1));
    }
    let windowed = |layer: u32| !(layer + 1).is_multiple_of(PERIOD);
    decoder.set_reaches(gguf::windows(keys, decoder.num_layers, windowed)?);
    let theta = keys.f64("rope.freq_base_swa")?.unwrap_or(THETAS[0]);
    decoder.window_rope = Some(Rope { theta, scaling: RopeScaling::None, ..decoder.rope.clone() });
    Ok(decoder)
}
