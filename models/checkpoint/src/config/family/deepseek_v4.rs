//! Fields of DeepSeek V4's configurations that no other family has, in the names of today and in the older ones of
//! the published files (`compress_ratios`, `num_hash_layers`, `qk_rope_head_dim`).

use serde_json::Map;

use super::{Hf, Spec};
use crate::config::hf::{
    Fields, HeadDim, KvHeads, Plain, either, list, refuse_biases, rotary_dims, scaling, section, texts,
    unknown, window,
};
use crate::config::moe::CHOICE;
use crate::{
    Activation, CompressedConfig, Compressor, ConfigError, DecoderConfig, ExpertPacking, Family, HyperConfig,
    IndexerConfig, Mlp, MoeConfig, Pairing, Reach, Rope, RopeScaling, Router, Score,
};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "deepseek_v4",
        reads: &[
            "num_local_experts",
            "n_shared_experts",
            "scoring_func",
            "swiglu_limit",
            "partial_rotary_factor",
        ],
        read,
    }),
    unread: |_, name| name.split('.').any(|part| part == "mtp"),
    ..Spec::NONE
};

const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";

fn read(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    refuse_biases(config)?;
    // Which of the two it is, the tensors say too.
    match config.str("expert_dtype")? {
        None | Some("fp4" | "fp8") => {}
        Some(other) => return Err(unknown("expert_dtype", other)),
    }
    let plain = Plain {
        kv_heads: KvHeads::Default(1),
        head_dim: HeadDim::Always(512),
        // All layers have experts.
        inner_size: "moe_intermediate_size",
        rope: |config, site| Ok(ropes(config, site.rotary_dims, site.context_length)?[0].clone()),
        ..Plain::new(Family::DeepseekV4)
    };
    let mut decoder = plain.read(config)?;
    decoder.compressed = Some(compressed(config, &decoder)?);
    decoder.indexer = Some(IndexerConfig {
        num_heads: config.u32("index_n_heads")?.unwrap_or(64),
        head_dim: config.u32("index_head_dim")?.unwrap_or(128),
        top_k: config.u32("index_topk")?.unwrap_or(512),
    });
    decoder.hyper = Some(HyperConfig {
        streams: config.u32("hc_mult")?.unwrap_or(4),
        rounds: config.u32("hc_sinkhorn_iters")?.unwrap_or(20),
        eps: config.f32("hc_eps")?.unwrap_or(1e-6),
    });
    decoder.sinks = true;
    decoder.moe = Some(moe(config)?);
    let window = window(config, Some(128))?.ok_or(ConfigError::Missing { field: "sliding_window" })?;
    decoder.set_reaches(vec![Reach::Window(window); decoder.num_layers as usize]);
    decoder.set_mlps(mlps(config, decoder.num_layers)?);
    Ok(decoder)
}

fn compressed(config: &Fields, decoder: &DecoderConfig) -> Result<CompressedConfig, ConfigError> {
    let [_, rope] = ropes(config, decoder.head_dim, decoder.context_length)?;
    Ok(CompressedConfig {
        q_rank: config.u32("q_lora_rank")?.unwrap_or(1024),
        output_groups: config.u32("o_groups")?.unwrap_or(8),
        output_rank: config.u32("o_lora_rank")?.unwrap_or(1024),
        rope,
        compressors: compressors(config, decoder.num_layers)?,
    })
}

/// Reads the MLP of each layer: experts, which the first layers select by token id.
fn mlps(config: &Fields, num_layers: u32) -> Result<Vec<Mlp>, ConfigError> {
    if let Some(types) = texts(config, "mlp_layer_types", num_layers)? {
        let mlp = |name: &str| match name {
            "hash_moe" => Ok(Mlp::HashedExperts),
            "moe" => Ok(Mlp::Experts),
            _ => Err(unknown("mlp_layer_types", name)),
        };
        return types.into_iter().map(mlp).collect();
    }
    let hashed = config.u32("num_hash_layers")?.unwrap_or(3);
    let mlp = |layer| if layer < hashed { Mlp::HashedExperts } else { Mlp::Experts };
    Ok((0..num_layers).map(mlp).collect())
}

/// Reads the experts. The reference divides weights by their sum whatever `norm_topk_prob` says, and has one shared expert of the
/// width of the others.
fn moe(config: &Fields) -> Result<MoeConfig, ConfigError> {
    let inner_size = config.need_u32("moe_intermediate_size")?;
    let score = match config.str("scoring_func")?.unwrap_or("sqrtsoftplus") {
        "sqrtsoftplus" => Score::SqrtSoftplus,
        "sigmoid" => Score::Sigmoid,
        other => return Err(unknown("scoring_func", other)),
    };
    let scale = config.f32("routed_scaling_factor")?.unwrap_or(1.5);
    let limit = config.f32("swiglu_limit")?.unwrap_or(10.0);
    if !(limit.is_finite() && limit > 0.0) {
        let (field, value) = ("swiglu_limit", limit.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "finite and over 0" });
    }
    Ok(MoeConfig {
        num_experts: either(config, ["n_routed_experts", "num_local_experts"])?,
        top_k: config.u32("num_experts_per_tok")?.unwrap_or(6),
        inner_size,
        shared_size: Some(inner_size),
        router: Router { score, normalise: true, scale, correction: true, ..CHOICE },
        activation: Activation::LimitedSilu { limit },
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    })
}

fn compressors(config: &Fields, num_layers: u32) -> Result<Vec<Option<Compressor>>, ConfigError> {
    let [sparse, heavy] = [(SPARSE, "compress_rate_csa", 4, true), (HEAVY, "compress_rate_hca", 128, false)]
        .map(|(kind, old, default, indexed)| {
            rate(config, kind, old, default).map(|ratio| Compressor { ratio, indexed })
        });
    let (sparse, heavy) = (sparse?, heavy?);
    let count = num_layers as usize;
    if let Some(types) = texts(config, "layer_types", num_layers)? {
        let compressor = |name: &str| match name {
            "sliding_attention" => Ok(None),
            SPARSE => Ok(Some(sparse)),
            HEAVY => Ok(Some(heavy)),
            _ => Err(unknown("layer_types", name)),
        };
        return types.into_iter().map(compressor).collect();
    }
    if config.get("compress_ratios").is_some() {
        // The numbers stand for the kinds, and may go on for layers that only predict further tokens.
        let kinds = list(config, "compress_ratios")?;
        if kinds.len() < count {
            let value = format!("a list of {}", kinds.len());
            let rule = "a list of num_hidden_layers or more";
            return Err(ConfigError::Invalid { field: "compress_ratios", value, rule });
        }
        let compressor = |ratio: &u32| match ratio {
            0 => Ok(None),
            4 => Ok(Some(sparse)),
            128 => Ok(Some(heavy)),
            other => Err(unknown("compress_ratios", &other.to_string())),
        };
        return kinds[..count].iter().map(compressor).collect();
    }
    let kind = |layer: u32| if layer >= 2 && !layer.is_multiple_of(2) { sparse } else { heavy };
    Ok((0..num_layers).map(|layer| Some(kind(layer))).collect())
}

/// Returns the number of tokens per entry in layers of one kind.
fn rate(config: &Fields, kind: &'static str, old: &str, default: u32) -> Result<u32, ConfigError> {
    if let Some(rate) = config.u32(old)? {
        return Ok(rate);
    }
    let Some(rates) = config.object("compress_rates")? else { return Ok(default) };
    rates.u32(kind)?.ok_or(ConfigError::Missing { field: kind })
}

/// Reads the rotations of layers without and with a compressor. New configurations have a section for each; in old ones a scaling
/// applies to the second alone, and never widens sine and cosine.
fn ropes(config: &Fields, head_dim: u32, context_length: u32) -> Result<[Rope; 2], ConfigError> {
    let section = section(config)?;
    let rope = |section: &Fields, theta: Option<f64>, dims: u32| {
        let theta = match theta {
            Some(theta) => theta,
            None => section.need_f64("rope_theta")?,
        };
        let scaling = scaling(section, context_length)?;
        Ok::<_, ConfigError>(Rope { theta, rotary_dims: dims, pairing: Pairing::Interleaved, scaling })
    };
    let part = |name| section.as_ref().map_or(Ok(None), |section| section.object(name));
    if let (Some(main), Some(compress)) = (part("main")?, part("compress")?) {
        let of_section = |section: &Fields| {
            let factor = section.f64("partial_rotary_factor")?.unwrap_or(1.0);
            rope(section, None, rotary_dims(head_dim, factor)?)
        };
        return Ok([of_section(&main)?, of_section(&compress)?]);
    }
    let dims = match (config.f64("partial_rotary_factor")?, config.u32("qk_rope_head_dim")?) {
        (Some(factor), _) => rotary_dims(head_dim, factor)?,
        (None, Some(dims)) => dims,
        (None, None) => rotary_dims(head_dim, 64.0 / 512.0)?,
    };
    let theta = |field, default| Ok::<_, ConfigError>(Some(config.f64(field)?.unwrap_or(default)));
    let none = Fields(Map::new());
    let mut scaled = section.unwrap_or(Fields(Map::new()));
    let widened = scaled.get("attention_factor").is_some();
    scaled.0.remove("rope_theta");
    let mut compress = rope(&scaled, theta("compress_rope_theta", 160_000.0)?, dims)?;
    if let RopeScaling::Yarn { attention_factor, .. } = &mut compress.scaling
        && !widened
    {
        *attention_factor = 1.0;
    }
    Ok([rope(&none, theta("rope_theta", 10_000.0)?, dims)?, compress])
}
