//! Multi-head latent attention (MLA) and the indexer of DeepSeek Sparse Attention.

use super::ConfigError;

/// Queries, keys and values through low-rank latents (DeepSeek V2 and later).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatentConfig {
    /// Width of the latent of queries; `None` if they are projected from the residual stream (V2 Lite).
    pub q_rank: Option<u32>,
    /// Width of the latent of keys and values, which the cache stores.
    pub kv_rank: u32,
    /// Number of dimensions of a head's queries and keys without rope.
    pub nope_dim: u32,
    /// Number of dimensions of a head's queries and keys with rope. All heads share those of the keys.
    pub rope_dim: u32,
    /// Number of dimensions of a head's values.
    pub value_dim: u32,
}

/// Indexer that selects the tokens that a query attends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexerConfig {
    /// Number of query heads.
    pub num_heads: u32,
    /// Number of dimensions of a head. The same number rotates as in attention.
    pub head_dim: u32,
    /// Number of tokens that the indexer selects for a query.
    pub top_k: u32,
}

impl LatentConfig {
    /// Number of elements of a cached token.
    #[must_use]
    pub fn cached(&self) -> u32 {
        self.kv_rank + self.rope_dim
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(rank) = self.q_rank {
            check("q_lora_rank", rank, 1 << 16, 8, "a multiple of 8 up to 65536")?;
        }
        for (field, value, max, multiple, rule) in [
            ("kv_lora_rank", self.kv_rank, 512, 8, "a multiple of 8 up to 512"),
            ("qk_nope_head_dim", self.nope_dim, 1 << 12, 8, "a multiple of 8 up to 4096"),
            ("qk_rope_head_dim", self.rope_dim, 64, 8, "a multiple of 8 up to 64"),
            ("v_head_dim", self.value_dim, 1 << 12, 8, "a multiple of 8 up to 4096"),
        ] {
            check(field, value, max, multiple, rule)?;
        }
        Ok(())
    }
}

impl IndexerConfig {
    pub(super) fn validate(&self, latent: Option<&LatentConfig>) -> Result<(), ConfigError> {
        check("index_n_heads", self.num_heads, 1 << 10, 1, "1 to 1024")?;
        check("index_head_dim", self.head_dim, 1 << 10, 8, "a multiple of 8 up to 1024")?;
        check("index_topk", self.top_k, u32::MAX, 1, "at least 1")?;
        if latent.is_some_and(|latent| latent.q_rank.is_none()) {
            // Its queries come from the latent of attention's.
            return Err(ConfigError::Missing { field: "q_lora_rank" });
        }
        if latent.is_some_and(|latent| latent.rope_dim > self.head_dim) {
            let value = self.head_dim.to_string();
            return Err(ConfigError::Invalid {
                field: "index_head_dim",
                value,
                rule: "at least qk_rope_head_dim",
            });
        }
        Ok(())
    }
}

pub(super) fn check(
    field: &'static str,
    value: u32,
    max: u32,
    multiple: u32,
    rule: &'static str,
) -> Result<(), ConfigError> {
    if value == 0 || value > max || !value.is_multiple_of(multiple) {
        return Err(ConfigError::Invalid { field, value: value.to_string(), rule });
    }
    Ok(())
}
