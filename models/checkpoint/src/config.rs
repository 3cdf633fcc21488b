//! Configuration of a decoder, independent of the checkpoint format that states it.

mod compressed;
pub(crate) mod embedding;
mod error;
mod family;
mod gguf;
mod hf;
mod latent;
mod layer;
mod moe;
mod nsa;
mod plain;
mod read;
mod rope;
pub(crate) mod sampling;
mod tensors;

use std::ops::Range;

pub use self::{
    compressed::{CompressedConfig, Compressor, HyperConfig},
    embedding::{Embedding, Lengths, LogitScore, Pooling},
    error::ConfigError,
    family::Family,
    latent::{IndexerConfig, LatentConfig},
    layer::{BlockNorms, Gate, LayerConfig, Mlp, QkNorm, Reach, Temperature},
    moe::{Activation, ExpertPacking, MoeConfig, Router, Score},
    nsa::NsaConfig,
    plain::Sizes,
    rope::{Pairing, Rope, RopeScaling, ShortFactors},
};

/// Shape and constants of a decoder-only transformer. Every value has been validated.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DecoderConfig {
    /// Model family.
    pub family: Family,
    /// Number of tokens in the vocabulary: rows of the embedding.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Width inside the MLP of dense layers.
    pub intermediate_size: u32,
    /// Number of layers.
    pub num_layers: u32,
    /// Number of query heads of a layer, a multiple of `num_kv_heads`.
    pub num_heads: u32,
    /// Number of key and value heads of a layer.
    pub num_kv_heads: u32,
    /// Number of elements of a head; `num_heads * head_dim` need not be `hidden_size`.
    pub head_dim: u32,
    /// Epsilon of every RMS norm, added to the mean square.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Rotary position embedding of sliding-window layers, if it differs from `rope` (Gemma 3).
    pub window_rope: Option<Rope>,
    /// Context length in tokens that the model was trained for.
    pub context_length: u32,
    /// Factor on the token embeddings.
    pub embedding_scale: f32,
    /// Positions of the norms of a layer.
    pub norms: BlockNorms,
    /// Constant added to the stored weights of all RMS norms: 1 if checkpoints store the weight minus one.
    pub norm_offset: f32,
    /// Nonlinearity of the gates of dense layers.
    pub gate: Gate,
    /// Factor on logits.
    pub logit_scale: f32,
    /// Whether the output head is the embedding.
    pub tie_embeddings: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub o_bias: bool,
    /// Norm of query and key heads before the scores.
    pub qk_norm: QkNorm,
    /// Per-layer settings, `[num_layers]`.
    pub layers: Vec<LayerConfig>,
    /// Latent attention (MLA), if the model has it. Then `num_kv_heads` is 1, and `head_dim` is that of queries.
    pub latent: Option<LatentConfig>,
    /// Indexer that selects the tokens of a query; `None` if all tokens are attended.
    pub indexer: Option<IndexerConfig>,
    /// Attention to windows and compressed entries (DeepSeek V4), if the model has it.
    pub compressed: Option<CompressedConfig>,
    /// Native sparse attention over heads, if the model was trained with it.
    pub nsa: Option<NsaConfig>,
    /// Hyper-connections over several residual streams; `None` for one stream.
    pub hyper: Option<HyperConfig>,
    /// Factor on scores.
    pub scale: f32,
    /// Factor on queries that grows with their position.
    pub temperature: Option<Temperature>,
    /// Softcap `c` of scores: each becomes `c * tanh(score / c)`.
    pub score_softcap: Option<f32>,
    /// Softcap `c` of logits: each becomes `c * tanh(logit / c)`.
    pub logit_softcap: Option<f32>,
    /// Whether every head has an attention sink: a logit in its softmax that belongs to no key.
    pub sinks: bool,
    /// Experts of the MoE layers; `None` if the model has no such layers.
    pub moe: Option<MoeConfig>,
    /// Tokens that end a text.
    pub eos_ids: Vec<u32>,
    /// Token that starts a text.
    pub bos_id: Option<u32>,
}

impl DecoderConfig {
    /// Returns the configuration of a range of the layers, as if the model had no others.
    ///
    /// # Panics
    /// When the range goes beyond the layers.
    #[must_use]
    pub fn of_layers(&self, range: Range<u32>) -> Self {
        let (num_layers, range) = (range.end - range.start, range.start as usize..range.end as usize);
        let mut part = Self { num_layers, layers: self.layers[range.clone()].to_vec(), ..self.clone() };
        if let Some(compressed) = &mut part.compressed {
            compressed.compressors = compressed.compressors[range].to_vec();
        }
        part
    }

    /// Returns the number of query heads per key head.
    pub fn group(&self) -> u32 {
        self.num_heads / self.num_kv_heads
    }

    /// Returns the number of tokens per block that an indexer selects: 1, or the number of tokens per compressed
    /// entry. `None` without an indexer.
    #[must_use]
    pub fn indexed_block(&self) -> Option<u32> {
        self.indexer?;
        match &self.compressed {
            None => Some(1),
            Some(compressed) => {
                let mut compressors = compressed.compressors.iter().flatten();
                Some(compressors.find(|compressor| compressor.indexed)?.ratio)
            }
        }
    }

    /// Whether a decoder ignores a tensor of safetensors, because it belongs to layers that draft tokens.
    #[must_use]
    pub fn leaves_out(&self, tensor: &str) -> bool {
        (self.family.spec().unread)(self, tensor)
    }

    /// Whether attention has keys and values per head, rather than latents or compressed entries.
    #[must_use]
    pub fn has_heads(&self) -> bool {
        self.latent.is_none() && self.compressed.is_none()
    }

    fn validate(self) -> Result<Self, ConfigError> {
        let invalid =
            |field, value: u32, rule| Err(ConfigError::Invalid { field, value: value.to_string(), rule });
        for (field, value, max) in [
            ("vocab_size", self.vocab_size, 1 << 24),
            ("hidden_size", self.hidden_size, 1 << 20),
            ("intermediate_size", self.intermediate_size, 1 << 24),
            ("num_layers", self.num_layers, MAX_LAYERS),
            ("num_heads", self.num_heads, 1 << 16),
            ("num_kv_heads", self.num_kv_heads, 1 << 16),
            ("head_dim", self.head_dim, 1 << 16),
            ("context_length", self.context_length, u32::MAX),
        ] {
            if value == 0 {
                return invalid(field, value, "at least 1");
            }
            if value > max {
                return Err(ConfigError::TooLarge { field, value, max });
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return invalid("num_heads", self.num_heads, "a multiple of num_kv_heads");
        }
        if self.has_heads() {
            latent::check("head_dim", self.head_dim, 512, 8, "a multiple of 8 up to 512")?;
        }
        let width = u64::from(self.num_heads) * u64::from(self.head_dim);
        if width > MAX_WIDTH {
            let (field, value) = ("num_heads * head_dim", width.to_string());
            return Err(ConfigError::Invalid { field, value, rule: "at most 2^20" });
        }
        let rotary = self.rope.rotary_dims;
        if rotary == 0 || !rotary.is_multiple_of(2) || rotary > self.head_dim {
            return invalid("rotary dims", rotary, "even, from 2 to head_dim");
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            let value = self.rms_norm_eps.to_string();
            return Err(ConfigError::Invalid {
                field: "rms_norm_eps",
                value,
                rule: "finite and not negative",
            });
        }
        for (field, cap) in
            [("attn_logit_softcapping", self.score_softcap), ("final_logit_softcapping", self.logit_softcap)]
        {
            if let Some(cap) = cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
                let rule = "finite and over 0";
                return Err(ConfigError::Invalid { field, value: cap.to_string(), rule });
            }
        }
        self.rope.validate()?;
        if let Some(rope) = &self.window_rope {
            rope.validate()?;
            if (rope.rotary_dims, rope.pairing) != (rotary, self.rope.pairing) {
                return invalid("rotary dims of windows", rope.rotary_dims, "those of all layers");
            }
        }
        if let Some(moe) = &self.moe {
            moe.validate()?;
        }
        if let Some(latent) = &self.latent {
            latent.validate()?;
        }
        if let Some(compressed) = &self.compressed {
            compressed.validate(&self)?;
        }
        if let Some(nsa) = &self.nsa {
            nsa.validate()?;
        }
        if let Some(hyper) = &self.hyper {
            hyper.validate()?;
        }
        if let Some(indexer) = &self.indexer {
            indexer.validate(self.latent.as_ref())?;
        }
        if self.qk_norm == QkNorm::Unweighted && (self.rope.attention_factor() - 1.0).abs() > 0.0 {
            // The norm would have to come after the rotation.
            let (field, value) = ("rope attention factor", self.rope.attention_factor().to_string());
            return Err(ConfigError::Invalid { field, value, rule: "1 beside norms after the rotation" });
        }
        for (field, ids) in [("bos id", self.bos_id.as_slice()), ("eos id", &self.eos_ids)] {
            if let Some(&id) = ids.iter().find(|&&id| id >= self.vocab_size) {
                return invalid(field, id, "less than vocab_size");
            }
        }
        Ok(self)
    }
}

/// Returns the scale of scores for heads of `head_dim` dimensions: one over the square root of `head_dim`.
#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn scale_of(head_dim: u32) -> f32 {
    (1.0 / f64::from(head_dim).sqrt()) as f32
}

/// Returns the scale of embeddings of `width` dimensions: the square root of `width`.
#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn root_of(width: u32) -> f32 {
    f64::from(width).sqrt() as f32
}

/// Maximum number of elements of all heads of a token together.
const MAX_WIDTH: u64 = 1 << 20;

/// Maximum number of layers of a configuration, checked before anything of that length is allocated.
const MAX_LAYERS: u32 = 1 << 12;
