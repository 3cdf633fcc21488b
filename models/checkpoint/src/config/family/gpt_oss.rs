use serde_json::json;

use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{Fields, HeadDim, Plain, either, reaches, section, window};
use crate::config::moe::CHOICE;
use crate::{Activation, ConfigError, ExpertPacking, Family, Mlp, MoeConfig, RopeScaling};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "gpt_oss",
        reads: &["num_experts", "num_local_experts", "swiglu_limit"],
        read,
    }),
    gguf: Some(Gguf {
        architecture: "gpt-oss",
        reads: &["expert_count", "expert_used_count", "attention.sliding_window"],
        read: |keys| {
            let mut decoder = gguf::Plain::new(Family::GptOss).read(keys)?;
            (decoder.qkv_bias, decoder.o_bias, decoder.sinks) = (true, true, true);
            if let RopeScaling::Yarn { truncate, .. } = &mut decoder.rope.scaling {
                // No key says so; it was trained without.
                *truncate = false;
            }
            let every_other = |layer: u32| layer.is_multiple_of(2);
            decoder.set_reaches(gguf::windows(keys, decoder.num_layers, every_other)?);
            // The constants of the swiglu are not in the metadata.
            let activation = Activation::LimitedSwiglu { alpha: 1.702, limit: 7.0 };
            gguf::set_experts(keys, &mut decoder, 3, |moe| MoeConfig { activation, biases: true, ..moe })?;
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};

fn read(config: &Fields) -> Result<crate::DecoderConfig, ConfigError> {
    let plain = Plain {
        head_dim: HeadDim::Default(64),
        rms_norm_eps: 1e-5,
        rope_theta: 150_000.0,
        rope: |config, site| site.rope(config, &section(config)?.unwrap_or_else(default_section)),
        ..Plain::new(Family::GptOss)
    };
    let mut decoder = plain.read(config)?;
    decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(true);
    decoder.o_bias = decoder.qkv_bias;
    decoder.sinks = true;
    decoder.moe = Some(moe(config)?);
    let (window, every_other) = (window(config, Some(128))?, |layer: u32| layer.is_multiple_of(2));
    decoder.set_reaches(reaches(config, decoder.num_layers, window, every_other)?);
    decoder.set_mlps(vec![Mlp::Experts; decoder.num_layers as usize]);
    Ok(decoder)
}

fn moe(config: &Fields) -> Result<MoeConfig, ConfigError> {
    Ok(MoeConfig {
        num_experts: either(config, ["num_local_experts", "num_experts"])?,
        top_k: either(config, ["num_experts_per_tok", "experts_per_token"])?,
        inner_size: config.need_u32("intermediate_size")?,
        shared_size: None,
        router: CHOICE,
        activation: Activation::LimitedSwiglu {
            alpha: config.f32("swiglu_alpha")?.unwrap_or(1.702),
            limit: config.f32("swiglu_limit")?.unwrap_or(7.0),
        },
        biases: true,
        weighted_input: false,
        packing: ExpertPacking::AlternateColumns,
    })
}

/// Returns the rotation of a configuration without a section for it.
fn default_section() -> Fields {
    let section = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    Fields(section.as_object().cloned().unwrap_or_default())
}
