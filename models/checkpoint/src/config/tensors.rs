//! The tensors of a configuration, and their shapes, in terms that the table of roles uses.

use super::{CompressedConfig, Compressor, DecoderConfig, HyperConfig, IndexerConfig, LatentConfig};
use super::{Mlp, MoeConfig, QkNorm};
use crate::{CompressorPart, HyperPart, Role};

impl DecoderConfig {
    /// Returns the row-major extents of a tensor, outermost first. Tensors of all experts are shaped as if each expert's were
    /// stored by rows.
    ///
    /// # Panics
    /// When the configuration has no such tensor, because it lacks latents, experts, compressed entries or streams.
    #[must_use]
    pub fn shape(&self, role: Role) -> Vec<usize> {
        role.shape(self).iter().map(|n| *n as usize).collect()
    }

    /// Returns all tensors that a decoder of this configuration reads, with a tensor for each expert. O(layers *
    /// experts).
    #[must_use]
    pub fn tensors(&self) -> Vec<Role> {
        Role::all(self)
    }

    /// Keeps the first `layers` layers.
    pub(crate) fn shorten(&mut self, layers: u32) {
        self.num_layers = self.num_layers.min(layers);
        self.layers.truncate(layers as usize);
        if let Some(compressed) = &mut self.compressed {
            compressed.compressors.truncate(layers as usize);
        }
    }
}

/// Widths and options for the table of roles. Parts that a configuration lacks have no tensors.
impl DecoderConfig {
    pub(crate) fn q_width(&self) -> u32 {
        self.num_heads * self.head_dim
    }

    pub(crate) fn kv_width(&self) -> u32 {
        self.num_kv_heads * self.head_dim
    }

    /// Returns the number of weights of a norm of heads, given the number of `heads` of a token.
    pub(crate) fn norm_width(&self, heads: u32) -> u32 {
        if self.qk_norm == QkNorm::Whole { heads } else { self.head_dim }
    }

    pub(crate) fn has_weighted_qk_norm(&self) -> bool {
        matches!(self.qk_norm, QkNorm::Rms | QkNorm::Whole)
    }

    pub(crate) fn value_dim(&self) -> u32 {
        self.latent.map_or(self.head_dim, |latent| latent.value_dim)
    }

    pub(crate) fn has_query_latent(&self) -> bool {
        self.compressed.is_some() || self.latent.is_some_and(|latent| latent.q_rank.is_some())
    }

    /// Width of the latent of queries; 0 without one.
    pub(crate) fn q_rank(&self) -> u32 {
        match (&self.latent, &self.compressed) {
            (Some(latent), _) => latent.q_rank.unwrap_or(0),
            (None, Some(compressed)) => compressed.q_rank,
            (None, None) => 0,
        }
    }

    pub(crate) fn kv_latent(&self) -> &LatentConfig {
        self.latent.as_ref().expect("the configuration has latents")
    }

    pub(crate) fn entries(&self) -> &CompressedConfig {
        self.compressed.as_ref().expect("the configuration has compressed entries")
    }

    /// Number of elements, over all groups of heads, between the two halves of the output projection.
    pub(crate) fn group_width(&self) -> u32 {
        self.entries().output_groups * self.entries().output_rank
    }

    pub(crate) fn index(&self) -> &IndexerConfig {
        self.indexer.as_ref().expect("the configuration has an indexer")
    }

    /// Whether an indexer selects tokens, in every layer.
    pub(crate) fn indexes_tokens(&self) -> bool {
        self.latent.is_some() && self.indexer.is_some()
    }

    /// Whether an indexer selects compressed entries in a layer.
    pub(crate) fn indexes_entries(&self, layer: u32) -> bool {
        self.compressor(layer).is_some_and(|compressor| compressor.indexed) && self.indexer.is_some()
    }

    pub(crate) fn compressor(&self, layer: u32) -> Option<&Compressor> {
        self.compressed.as_ref()?.compressors[layer as usize].as_ref()
    }

    pub(crate) fn compressor_shape(&self, layer: u32, part: CompressorPart, dim: u32) -> Vec<u32> {
        let compressor = self.compressor(layer).expect("the layer has a compressor");
        let width = compressor.windows() * dim;
        match part {
            CompressorPart::Kv | CompressorPart::Gate => vec![width, self.hidden_size],
            CompressorPart::Bias => vec![compressor.ratio, width],
            CompressorPart::Norm => vec![dim],
        }
    }

    fn streams(&self) -> &HyperConfig {
        self.hyper.as_ref().expect("the configuration has several streams")
    }

    /// Returns the shape of a part of the mix around attention or MLP. Weights, gates and pairs of streams each have
    /// a factor of their own.
    pub(crate) fn block_mix_shape(&self, part: HyperPart) -> Vec<u32> {
        let mixes = self.streams().block_mixes();
        match part {
            HyperPart::Mix => vec![mixes, self.streams().streams * self.hidden_size],
            HyperPart::Base => vec![mixes],
            HyperPart::Scale => vec![3],
        }
    }

    /// Returns the shape of a part of the mix before the output head.
    pub(crate) fn head_mix_shape(&self, part: HyperPart) -> Vec<u32> {
        let streams = self.streams().streams;
        match part {
            HyperPart::Mix => vec![streams, streams * self.hidden_size],
            HyperPart::Base => vec![streams],
            HyperPart::Scale => vec![1],
        }
    }

    fn mlp(&self, layer: u32) -> Mlp {
        self.layers[layer as usize].mlp
    }

    pub(crate) fn is_dense(&self, layer: u32) -> bool {
        self.mlp(layer) == Mlp::Dense
    }

    /// Whether a table of token ids selects the experts of a layer.
    pub(crate) fn is_hashed(&self, layer: u32) -> bool {
        self.mlp(layer) == Mlp::HashedExperts
    }

    pub(crate) fn experts(&self) -> &MoeConfig {
        self.moe.as_ref().expect("the configuration has experts")
    }

    /// Whether the router and the experts of a layer have biases.
    pub(crate) fn has_expert_biases(&self, layer: u32) -> bool {
        !self.is_dense(layer) && self.experts().biases
    }

    pub(crate) fn has_shared_expert(&self, layer: u32) -> bool {
        !self.is_dense(layer) && self.experts().shared_size.is_some()
    }

    /// Width inside the shared expert; 0 without one.
    pub(crate) fn shared_size(&self) -> u32 {
        self.experts().shared_size.unwrap_or(0)
    }
}
