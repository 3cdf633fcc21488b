//! A plain decoder, which families start from.

use super::{
    BlockNorms, DecoderConfig, Family, Gate, LayerConfig, Mlp, Pairing, QkNorm, Reach, Rope, RopeScaling,
};

/// Sizes of a decoder, as in [`DecoderConfig`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields of DecoderConfig have them")]
pub struct Sizes {
    pub vocab_size: u32,
    pub hidden_size: u32,
    pub intermediate_size: u32,
    pub num_layers: u32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub context_length: u32,
}

impl DecoderConfig {
    /// A decoder like the first Llama: full attention with rope on whole heads, SiLU gates, norms before attention and MLP,
    /// neither biases nor experts, an untied output head.
    #[must_use]
    pub fn plain(family: Family, sizes: Sizes) -> Self {
        let Sizes { vocab_size, hidden_size, intermediate_size, num_layers, num_heads, .. } = sizes;
        let Sizes { num_kv_heads, head_dim, context_length, .. } = sizes;
        let layer = LayerConfig { reach: Reach::Full, rotary: true, mlp: Mlp::Dense };
        Self {
            family,
            vocab_size,
            hidden_size,
            intermediate_size,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps: 1e-6,
            rope: Rope {
                theta: 10_000.0,
                rotary_dims: head_dim,
                pairing: Pairing::Halves,
                scaling: RopeScaling::None,
            },
            window_rope: None,
            context_length,
            embedding_scale: 1.0,
            norms: BlockNorms::Before,
            norm_offset: 0.0,
            gate: Gate::Silu,
            logit_scale: 1.0,
            tie_embeddings: false,
            qkv_bias: false,
            o_bias: false,
            qk_norm: QkNorm::None,
            layers: vec![layer; num_layers as usize],
            latent: None,
            indexer: None,
            compressed: None,
            nsa: None,
            hyper: None,
            scale: super::scale_of(head_dim),
            temperature: None,
            score_softcap: None,
            logit_softcap: None,
            sinks: false,
            moe: None,
            eos_ids: Vec::new(),
            bos_id: None,
        }
    }

    /// Sets the mask of each layer.
    pub(super) fn set_reaches(&mut self, reaches: impl IntoIterator<Item = Reach>) {
        self.layers.iter_mut().zip(reaches).for_each(|(layer, reach)| layer.reach = reach);
    }

    /// Sets the MLP of each layer.
    pub(super) fn set_mlps(&mut self, mlps: impl IntoIterator<Item = Mlp>) {
        self.layers.iter_mut().zip(mlps).for_each(|(layer, mlp)| layer.mlp = mlp);
    }
}
