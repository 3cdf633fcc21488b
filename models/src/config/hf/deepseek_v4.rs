//! What DeepSeek V4's configurations say that no other family's does, in the names of today and in the older ones of the
//! published files (`compress_ratios`, `num_hash_layers`, `qk_rope_head_dim`).

use super::fields::Fields;
use super::layers::{list, texts};
use super::rope::{scaling, section};
use crate::{CompressedConfig, Compressor, ConfigError, HyperConfig, IndexerConfig, Mlp, Rope, RopeScaling};

const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";

/// Rotation in layers without a compressor, and what compressed attention is.
pub(super) fn compressed(
    config: &Fields,
    num_layers: u32,
    head_dim: u32,
    context_length: u32,
) -> Result<(Rope, CompressedConfig), ConfigError> {
    let [main, rope] = ropes(config, head_dim, context_length)?;
    let compressed = CompressedConfig {
        q_rank: config.u32("q_lora_rank")?.unwrap_or(1024),
        output_groups: config.u32("o_groups")?.unwrap_or(8),
        output_rank: config.u32("o_lora_rank")?.unwrap_or(1024),
        rope,
        compressors: compressors(config, num_layers)?,
    };
    Ok((main, compressed))
}

pub(super) fn indexer(config: &Fields) -> Result<IndexerConfig, ConfigError> {
    Ok(IndexerConfig {
        num_heads: config.u32("index_n_heads")?.unwrap_or(64),
        head_dim: config.u32("index_head_dim")?.unwrap_or(128),
        top_k: config.u32("index_topk")?.unwrap_or(512),
    })
}

pub(super) fn hyper(config: &Fields) -> Result<HyperConfig, ConfigError> {
    Ok(HyperConfig {
        streams: config.u32("hc_mult")?.unwrap_or(4),
        rounds: config.u32("hc_sinkhorn_iters")?.unwrap_or(20),
        eps: config.f32("hc_eps")?.unwrap_or(1e-6),
    })
}

/// What follows attention in each layer: experts, in the first layers chosen by token id.
pub(super) fn mlps(config: &Fields, num_layers: u32) -> Result<Vec<Mlp>, ConfigError> {
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

/// Tokens an entry of one kind of layer.
fn rate(config: &Fields, kind: &'static str, old: &str, default: u32) -> Result<u32, ConfigError> {
    if let Some(rate) = config.u32(old)? {
        return Ok(rate);
    }
    let Some(rates) = config.object("compress_rates")? else { return Ok(default) };
    rates.u32(kind)?.ok_or(ConfigError::Missing { field: kind })
}

/// Of layers without a compressor and of those with one. New configurations hold one section for each; in old ones a
/// scaling goes to the second alone, and there never widens sine and cosine by itself.
fn ropes(config: &Fields, head_dim: u32, context_length: u32) -> Result<[Rope; 2], ConfigError> {
    let section = section(config)?;
    let rope = |section: &Fields, theta: Option<f64>, dims: u32| {
        let theta = match theta {
            Some(theta) => theta,
            None => section.need_f64("rope_theta")?,
        };
        let scaling = scaling(section, context_length)?;
        Ok::<_, ConfigError>(Rope { theta, rotary_dims: dims, interleaved: true, scaling })
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
    let none = Fields(serde_json::Map::new());
    let mut scaled = section.unwrap_or(Fields(serde_json::Map::new()));
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

/// Dimensions of a head that rotate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked, and rounded down as Python does"
)]
fn rotary_dims(head_dim: u32, factor: f64) -> Result<u32, ConfigError> {
    if !(factor > 0.0 && factor <= 1.0) {
        let (field, value) = ("partial_rotary_factor", factor.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "over 0 and at most 1" });
    }
    Ok((f64::from(head_dim) * factor) as u32)
}

fn unknown(field: &str, value: &str) -> ConfigError {
    ConfigError::Unsupported { field: field.to_owned(), value: format!("{value:?}") }
}
