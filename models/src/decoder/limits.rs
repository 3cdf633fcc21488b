//! Limits of buffers that several parts use.

use crate::DecoderConfig;
use crate::matrix::SLACK;

/// Maximum number of rows whose logits exist at one time when many rows are scored.
pub(super) const HEAD_ROWS: usize = 64;

/// Number of elements of one head's partial result.
pub(super) fn partial_dim(config: &DecoderConfig) -> u32 {
    config.latent.map_or(config.head_dim, |latent| latent.kv_rank)
}

/// Maximum number of rows of a step whose buffers each fit in a binding of `binding_bytes`; at least one.
pub(super) fn max_rows(config: &DecoderConfig, binding_bytes: u64) -> u32 {
    let floats = (binding_bytes / 4).saturating_sub(SLACK as u64);
    u32::try_from(floats / row_floats(config)).unwrap_or(u32::MAX).max(1)
}

/// Number of floats per row in the widest buffer that has one entry for every row of a step. Expert pairs are
/// processed in portions, and logits exist for few rows.
fn row_floats(config: &DecoderConfig) -> u64 {
    let c = config;
    let heads = u64::from(c.num_heads);
    let latent = c.latent.iter().flat_map(|latent| {
        let of_a_head = [latent.nope_dim + latent.rope_dim, latent.cached(), latent.value_dim];
        of_a_head.map(|dim| heads * u64::from(dim)).into_iter().chain(latent.q_rank.map(u64::from))
    });
    let compressed = c.compressed.iter().flat_map(|compressed| {
        [
            u64::from(compressed.q_rank),
            u64::from(compressed.output_groups) * u64::from(compressed.output_rank),
        ]
    });
    let indexer = c.indexer.iter().flat_map(|indexer| {
        let longest = indexer.top_k.min(c.context_length);
        [u64::from(indexer.num_heads) * u64::from(indexer.head_dim), 1 + u64::from(longest)]
    });
    let streams = c.hyper.iter().map(|hyper| u64::from(hyper.streams) * u64::from(c.hidden_size));
    let moe = c
        .moe
        .iter()
        .flat_map(|moe| [u64::from(moe.num_experts), 2 * u64::from(moe.shared_size.unwrap_or(0))]);
    let plain = [
        u64::from(c.hidden_size),
        u64::from(c.intermediate_size),
        (heads + 2 * u64::from(c.num_kv_heads)) * u64::from(c.head_dim),
    ];
    let all = plain.into_iter().chain(latent).chain(compressed).chain(indexer).chain(streams).chain(moe);
    all.fold(1, u64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LatentConfig;

    fn config(json: &str) -> DecoderConfig {
        DecoderConfig::from_hf_json(json, None).unwrap()
    }

    /// WebGPU's default binding holds chunks of 2,048 rows of Llama 3 8B, not of 70B, and few of 128 absorbed heads.
    #[test]
    fn wide_models_take_shorter_steps() {
        let llama = |hidden: u32, intermediate: u32, heads: u32| {
            config(&format!(
                r#"{{"model_type": "llama", "vocab_size": 1000, "hidden_size": {hidden}, "intermediate_size": {intermediate},
                "num_hidden_layers": 1, "num_attention_heads": {heads}, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
                "max_position_embeddings": 8192}}"#
            ))
        };
        let rows = |config: &DecoderConfig| [128 << 20, 1 << 30].map(|bytes| max_rows(config, bytes));
        assert_eq!(rows(&llama(4096, 14_336, 32)), [2_339, 18_723]);
        assert_eq!(rows(&llama(8192, 28_672, 64)), [1_169, 9_361]);
        assert_eq!(max_rows(&llama(4096, 14_336, 32), 1), 1);
        let latent =
            LatentConfig { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128 };
        let mut latents = llama(7168, 18_432, 128);
        latents.latent = Some(latent);
        assert_eq!(rows(&latents), [454, 3_640]);
    }
}
