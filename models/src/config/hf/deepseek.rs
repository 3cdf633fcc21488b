//! What DeepSeek's configurations say that no other family's does.

use super::fields::Fields;
use super::rope::section;
use crate::config::rope::yarn_mscale;
use crate::config::scale_of;
use crate::{ConfigError, IndexerConfig, LatentConfig};

/// Latent attention.
pub(super) fn latent(config: &Fields) -> Result<LatentConfig, ConfigError> {
    let latent = LatentConfig {
        q_rank: config.need_u32("q_lora_rank")?,
        kv_rank: config.need_u32("kv_lora_rank")?,
        nope_dim: config.need_u32("qk_nope_head_dim")?,
        rope_dim: config.need_u32("qk_rope_head_dim")?,
        value_dim: config.need_u32("v_head_dim")?,
    };
    // What follows adds its sizes up.
    latent.validate()?;
    Ok(latent)
}

/// The indexer of latent attention.
pub(super) fn indexer(config: &Fields) -> Result<IndexerConfig, ConfigError> {
    Ok(IndexerConfig {
        num_heads: config.u32("index_n_heads")?.unwrap_or(64),
        head_dim: config.u32("index_head_dim")?.unwrap_or(128),
        top_k: config.u32("index_topk")?.unwrap_or(2048),
    })
}

/// Factor on scores: YaRN's `mscale_all_dim` widens them twice, for queries and for keys.
#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
pub(super) fn scale(config: &Fields, latent: &LatentConfig) -> Result<f32, ConfigError> {
    let scale = scale_of(latent.nope_dim + latent.rope_dim);
    let Some(rope) = section(config)? else { return Ok(scale) };
    let scaled = rope.str("rope_type")?.or(rope.str("type")?).is_some_and(|kind| kind != "default");
    let all = rope.f64("mscale_all_dim")?.filter(|all| scaled && *all != 0.0);
    let mscale = match all {
        Some(all) => yarn_mscale(rope.need_f64("factor")?, all),
        None => 1.0,
    };
    Ok((f64::from(scale) * mscale * mscale) as f32)
}
