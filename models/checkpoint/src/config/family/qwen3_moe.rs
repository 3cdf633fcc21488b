use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{Fields, Plain, alike, either, layer_numbers, step, window_on_demand};
use crate::config::moe::CHOICE;
use crate::{Activation, ConfigError, ExpertPacking, Family, Mlp, MoeConfig, QkNorm, Router, Score};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "qwen3_moe",
        reads: &["num_experts", "num_local_experts"],
        read: |config| {
            let mut decoder = Plain::new(Family::Qwen3Moe).read(config)?;
            decoder.qk_norm = QkNorm::Rms;
            decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
            decoder.o_bias = decoder.qkv_bias;
            decoder.moe = Some(moe(config)?);
            decoder.set_reaches(alike(config, decoder.num_layers, window_on_demand(config)?)?);
            decoder.set_mlps(mlps(config, decoder.num_layers)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "qwen3moe",
        reads: &["expert_count", "expert_used_count"],
        read: |keys| {
            let mut decoder = gguf::Plain::new(Family::Qwen3Moe).read(keys)?;
            decoder.qk_norm = QkNorm::Rms;
            let normalise = keys.bool("expert_weights_norm")?.unwrap_or(true);
            let router = Router { score: Score::Softmax, normalise, ..CHOICE };
            gguf::set_experts(keys, &mut decoder, 1, |moe| MoeConfig { router, ..moe })?;
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};

fn moe(config: &Fields) -> Result<MoeConfig, ConfigError> {
    let normalise = config.bool("norm_topk_prob")?.unwrap_or(false);
    Ok(MoeConfig {
        num_experts: either(config, ["num_experts", "num_local_experts"])?,
        top_k: config.need_u32("num_experts_per_tok")?,
        inner_size: config.need_u32("moe_intermediate_size")?,
        shared_size: None,
        router: Router { score: Score::Softmax, normalise, ..CHOICE },
        activation: Activation::Silu,
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    })
}

fn mlps(config: &Fields, num_layers: u32) -> Result<Vec<Mlp>, ConfigError> {
    let step = step(config, "decoder_sparse_step", 1)?;
    let dense = layer_numbers(config, "mlp_only_layers", num_layers)?;
    let mlp = |layer: u32| match (layer + 1).is_multiple_of(step) && !dense.contains(&layer) {
        true => Mlp::Experts,
        false => Mlp::Dense,
    };
    Ok((0..num_layers).map(mlp).collect())
}
