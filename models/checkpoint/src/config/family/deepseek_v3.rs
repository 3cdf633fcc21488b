use super::{Gguf, Hf, Spec};
use crate::config::gguf::{self, Keys};
use crate::config::hf::{Fields, HeadDim, Plain, either, reaches, refuse_biases, section, texts, unknown};
use crate::config::rope::yarn_mscale;
use crate::config::scale_of;
use crate::{
    Activation, ConfigError, DecoderConfig, ExpertPacking, Family, LatentConfig, Mlp, MoeConfig, Pairing,
    RopeScaling, Router, Score,
};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "deepseek_v3",
        reads: READS,
        read: |config| {
            let mut decoder = read(config, Family::DeepseekV3)?;
            decoder.set_reaches(reaches(config, decoder.num_layers, None, |_| false)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "deepseek2",
        reads: &[
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_group_count",
            "expert_group_used_count",
            "expert_weights_scale",
            "leading_dense_block_count",
            "rope.scaling.yarn_log_multiplier",
        ],
        read: from_gguf,
    }),
    unread: drafts,
};

/// Fields that V3 and V3.2 read.
pub(super) const READS: &[&str] = &["num_local_experts", "n_shared_experts"];

/// Reads everything that V3 and V3.2 have in common: all but the masks of layers.
pub(super) fn read(config: &Fields, family: Family) -> Result<DecoderConfig, ConfigError> {
    let mut decoder = attention(config, family)?;
    routed(config, &mut decoder, router(config)?, 3)?;
    Ok(decoder)
}

/// Reads everything but experts and the masks of layers.
pub(super) fn attention(config: &Fields, family: Family) -> Result<DecoderConfig, ConfigError> {
    refuse_biases(config)?;
    let latent = latent(config)?;
    let plain = Plain { head_dim: HeadDim::Elsewhere, pairing: Pairing::Interleaved, ..Plain::new(family) };
    let mut decoder = plain.read(config)?;
    decoder.num_kv_heads = 1;
    decoder.head_dim = latent.nope_dim + latent.rope_dim;
    decoder.rope.rotary_dims = latent.rope_dim;
    decoder.scale = scale(config, &latent)?;
    decoder.latent = Some(latent);
    Ok(decoder)
}

/// Sets the experts, selected by `router`, in all layers after the first ones. A field states the number of these
/// first layers; without it, the number is `dense`.
pub(super) fn routed(
    config: &Fields,
    decoder: &mut DecoderConfig,
    router: Router,
    dense: u32,
) -> Result<(), ConfigError> {
    decoder.moe = Some(moe(config, router)?);
    decoder.set_mlps(mlps(config, decoder.num_layers, dense)?);
    Ok(())
}

/// Whether a tensor belongs to the layers after the model's last, which draft tokens.
pub(super) fn drafts(decoder: &DecoderConfig, name: &str) -> bool {
    name.starts_with(&format!("model.layers.{}.", decoder.num_layers))
}

fn latent(config: &Fields) -> Result<LatentConfig, ConfigError> {
    let latent = LatentConfig {
        q_rank: config.u32("q_lora_rank")?,
        kv_rank: config.need_u32("kv_lora_rank")?,
        nope_dim: config.need_u32("qk_nope_head_dim")?,
        rope_dim: config.need_u32("qk_rope_head_dim")?,
        value_dim: config.need_u32("v_head_dim")?,
    };
    // What follows adds its sizes up.
    latent.validate()?;
    Ok(latent)
}

/// Returns the scale of scores: YaRN's `mscale_all_dim` applies twice, for queries and for keys.
fn scale(config: &Fields, latent: &LatentConfig) -> Result<f32, ConfigError> {
    let scale = scale_of(latent.nope_dim + latent.rope_dim);
    let Some(rope) = section(config)? else { return Ok(scale) };
    let scaled = rope.str("rope_type")?.or(rope.str("type")?).is_some_and(|kind| kind != "default");
    let all = rope.f64("mscale_all_dim")?.filter(|all| scaled && *all != 0.0);
    let mscale = match all {
        Some(all) => yarn_mscale(rope.need_f64("factor")?, all),
        None => 1.0,
    };
    Ok(widened(scale, mscale))
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn widened(scale: f32, mscale: f64) -> f32 {
    (f64::from(scale) * mscale * mscale) as f32
}

fn mlps(config: &Fields, num_layers: u32, dense: u32) -> Result<Vec<Mlp>, ConfigError> {
    let Some(types) = texts(config, "mlp_layer_types", num_layers)? else {
        let dense = config.u32("first_k_dense_replace")?.unwrap_or(dense);
        let mlp = |layer| if layer < dense { Mlp::Dense } else { Mlp::Experts };
        return Ok((0..num_layers).map(mlp).collect());
    };
    let mlp = |kind: &str| match kind {
        "dense" => Ok(Mlp::Dense),
        "sparse" => Ok(Mlp::Experts),
        _ => Err(unknown("mlp_layer_types", kind)),
    };
    types.into_iter().map(mlp).collect()
}

fn router(config: &Fields) -> Result<Router, ConfigError> {
    Ok(Router {
        score: Score::Sigmoid,
        groups: config.u32("n_group")?.unwrap_or(8),
        top_groups: config.u32("topk_group")?.unwrap_or(4),
        group_top: 2,
        normalise: config.bool("norm_topk_prob")?.unwrap_or(true),
        scale: config.f32("routed_scaling_factor")?.unwrap_or(2.5),
        correction: true,
    })
}

fn moe(config: &Fields, router: Router) -> Result<MoeConfig, ConfigError> {
    let inner_size = config.need_u32("moe_intermediate_size")?;
    let shared = config.u32("n_shared_experts")?.unwrap_or(1);
    Ok(MoeConfig {
        num_experts: either(config, ["n_routed_experts", "num_local_experts"])?,
        top_k: config.need_u32("num_experts_per_tok")?,
        inner_size,
        shared_size: Some(inner_size.saturating_mul(shared)),
        router,
        activation: Activation::Silu,
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    })
}

/// Reads GGUF metadata. Files use one name for V2, V3 and R1; V2 differs in its router.
fn from_gguf(keys: &Keys<'_>) -> Result<DecoderConfig, ConfigError> {
    let latent = gguf_latent(keys)?;
    let plain = gguf::Plain {
        pairing: Pairing::Interleaved,
        head_dim: Some(1),
        ..gguf::Plain::new(Family::DeepseekV3)
    };
    let mut decoder = plain.read(keys)?;
    decoder.num_kv_heads = 1;
    decoder.head_dim = latent.nope_dim + latent.rope_dim;
    decoder.rope.rotary_dims = latent.rope_dim;
    decoder.scale = scale_of(decoder.head_dim);
    if let RopeScaling::Yarn { factor, attention_factor, .. } = &mut decoder.rope.scaling {
        // The key has a tenth of `mscale_all_dim`, which is `mscale` too: sine and cosine have no factor then.
        let all = 10.0 * keys.f64("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
        *attention_factor = 1.0;
        decoder.scale = widened(decoder.scale, yarn_mscale(*factor, all));
    }
    decoder.latent = Some(latent);
    let inner_size = keys.need_u32("expert_feed_forward_length")?;
    let shared = keys.u32("expert_shared_count")?.unwrap_or(0);
    #[expect(clippy::cast_possible_truncation, reason = "stored as f32, widened by the reader")]
    let scale = keys.f64("expert_weights_scale")?.unwrap_or(1.0) as f32;
    let gating = keys.u32("expert_gating_func")?.unwrap_or(SOFTMAX);
    let [groups, top_groups] = gguf_groups(keys, gating)?;
    let router = Router {
        score: match gating {
            SOFTMAX => Score::Softmax,
            SIGMOID => Score::Sigmoid,
            other => return Err(keys.unsupported("expert_gating_func", &other.to_string())),
        },
        groups,
        top_groups,
        // V2 ranks groups by their best expert.
        group_top: if gating == SOFTMAX { 1 } else { 2 },
        normalise: keys.bool("expert_weights_norm")?.unwrap_or(false),
        scale,
        correction: gating == SIGMOID,
    };
    let shared_size = Some(inner_size.saturating_mul(shared)).filter(|size| *size > 0);
    gguf::set_experts(keys, &mut decoder, gating, |moe| MoeConfig { router, shared_size, ..moe })?;
    Ok(decoder)
}

/// Numbers by which GGUF files name the functions from a router's logits to scores.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;

/// Returns the number of groups of experts, and of groups that are eligible. Files of V2 older than these keys do not
/// state them: 160 experts mean the large V2, V2.5 or Coder V2, with 3 of 8 groups eligible.
fn gguf_groups(keys: &Keys<'_>, gating: u32) -> Result<[u32; 2], ConfigError> {
    let large = gating == SOFTMAX && keys.u32("expert_count")? == Some(160);
    let [groups, top] = if large { [8, 3] } else { [1, 1] };
    Ok([
        keys.u32("expert_group_count")?.unwrap_or(groups).max(1),
        keys.u32("expert_group_used_count")?.unwrap_or(top).max(1),
    ])
}

fn gguf_latent(keys: &Keys<'_>) -> Result<LatentConfig, ConfigError> {
    let rope_dim = keys.need_u32("rope.dimension_count")?;
    // Files that keep the projection of keys by head say the sizes of heads apart from those of the cache.
    let sized = |name: &str, old: &str| match keys.u32(name)? {
        Some(size) => Ok::<_, ConfigError>(size),
        None => Ok(keys.need_u32(old)?),
    };
    let key = sized("attention.key_length_mla", "attention.key_length")?;
    let latent = LatentConfig {
        q_rank: keys.u32("attention.q_lora_rank")?,
        kv_rank: keys.need_u32("attention.kv_lora_rank")?,
        nope_dim: key.saturating_sub(rope_dim),
        rope_dim,
        value_dim: sized("attention.value_length_mla", "attention.value_length")?,
    };
    latent.validate()?;
    Ok(latent)
}
