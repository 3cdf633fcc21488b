//! Attention to a window of tokens and to compressed entries, and hyper-connections (DeepSeek V4).

use super::latent::check;
use super::{ConfigError, DecoderConfig, Rope};

/// Attention in which one vector per token is the key and the value of all heads. A query attends directly to the
/// tokens of a window, and to older tokens through entries, each of which a compressor makes of several tokens.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct CompressedConfig {
    /// Width of the latent that queries are projected from.
    pub q_rank: u32,
    /// Number of groups of heads in the first half of the output projection.
    pub output_groups: u32,
    /// Rank of the output of each group.
    pub output_rank: u32,
    /// Rotary embedding of layers with a compressor and of their entries; [`DecoderConfig::rope`] is that of all other
    /// layers.
    pub rope: Rope,
    /// Compressor of each layer, `[num_layers]`; `None` for layers without entries.
    pub compressors: Vec<Option<Compressor>>,
}

impl CompressedConfig {
    /// Settings of attention with queries from a latent of `q_rank` numbers, and an output projection through
    /// `output_rank` numbers for each of `output_groups` groups of heads. `compressors` has an element for each
    /// layer; layers with a compressor rotate by `rope`.
    #[must_use]
    pub fn new(
        q_rank: u32,
        output_groups: u32,
        output_rank: u32,
        rope: Rope,
        compressors: Vec<Option<Compressor>>,
    ) -> Self {
        Self { q_rank, output_groups, output_rank, rope, compressors }
    }
}

/// Compression of tokens into entries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compressor {
    /// Number of tokens from one entry to the next.
    pub ratio: u32,
    /// Whether an indexer selects the entries of a query, and each entry is made of two windows of `ratio` tokens
    /// (C4A). Otherwise, each entry is made of one window, and all entries are attended (C128A).
    pub indexed: bool,
}

impl Compressor {
    /// Returns the number of windows that make up an entry of the compressed cache. A token stores one vector for each of them.
    #[must_use]
    pub fn windows(&self) -> u32 {
        1 + u32::from(self.indexed)
    }

    /// Returns the number of tokens that an entry is made of.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.windows() * self.ratio
    }

    /// Returns the number of entries that the query at `position` may see.
    #[must_use]
    pub fn entries(&self, position: u32) -> u32 {
        (position + 1) / self.ratio
    }
}

/// Several residual streams: attention and MLP read and write them through mixes (manifold-constrained hyper-connections, Xie et
/// al., 2026).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HyperConfig {
    /// Number of residual streams.
    pub streams: u32,
    /// Number of iterations of Sinkhorn-Knopp that make a mix doubly stochastic.
    pub rounds: u32,
    /// Epsilon added to weights and to their divisors.
    pub eps: f32,
}

impl CompressedConfig {
    /// Returns the smallest ratio of all layers.
    #[must_use]
    pub fn min_ratio(&self) -> Option<u32> {
        self.compressors.iter().flatten().map(|compressor| compressor.ratio).min()
    }

    pub(super) fn validate(&self, decoder: &DecoderConfig) -> Result<(), ConfigError> {
        check("head_dim", decoder.head_dim, 512, 8, "a multiple of 8 up to 512")?;
        let heads = decoder.num_heads * decoder.head_dim;
        check("q_lora_rank", self.q_rank, 1 << 16, 8, "a multiple of 8 up to 65536")?;
        check("o_lora_rank", self.output_rank, 1 << 16, 8, "a multiple of 8 up to 65536")?;
        let groups = self.output_groups;
        if groups == 0 || !heads.is_multiple_of(groups.saturating_mul(8)) {
            let rule = "a divisor of an eighth of num_attention_heads * head_dim";
            return Err(ConfigError::Invalid { field: "o_groups", value: groups.to_string(), rule });
        }
        if decoder.num_kv_heads != 1 {
            let value = decoder.num_kv_heads.to_string();
            return Err(ConfigError::Invalid { field: "num_key_value_heads", value, rule: "1" });
        }
        for compressor in self.compressors.iter().flatten() {
            check("compress_rates", compressor.ratio, 1 << 12, 1, "from 1 to 4096")?;
        }
        self.rope.validate()?;
        for rope in [&self.rope, &decoder.rope] {
            let index = decoder.indexer.map_or(decoder.head_dim, |indexer| indexer.head_dim);
            if rope.rotary_dims == 0
                || !rope.rotary_dims.is_multiple_of(2)
                || rope.rotary_dims > decoder.head_dim.min(index)
            {
                let value = rope.rotary_dims.to_string();
                let rule = "even, from 2 to head_dim and index_head_dim";
                return Err(ConfigError::Invalid { field: "rotary dims", value, rule });
            }
        }
        Ok(())
    }
}

impl HyperConfig {
    /// Returns the number of mixing coefficients around attention or MLP: one weight and one gate per stream, and one gate per
    /// pair of streams.
    #[must_use]
    pub const fn block_mixes(&self) -> u32 {
        self.streams * (2 + self.streams)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        check("hc_mult", self.streams, 16, 1, "from 1 to 16")?;
        check("hc_sinkhorn_iters", self.rounds, 1000, 1, "from 1 to 1000")?;
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            let value = self.eps.to_string();
            return Err(ConfigError::Invalid { field: "hc_eps", value, rule: "finite and not negative" });
        }
        Ok(())
    }
}
