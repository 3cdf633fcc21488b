//! Canonical tensor roles and their names in each checkpoint format.

use std::fmt;

/// What a tensor is for, independent of the file that holds it. The number is the layer, from 0.
///
/// Matrices are `[out_features, in_features]`, so `y = W x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embed,
    /// RMS norm before the output head, `[hidden_size]`.
    FinalNorm,
    /// Output head, `[vocab_size, hidden_size]`; absent where the embedding is tied.
    LmHead,
    /// Divisors of the rotary inverse frequencies, `[rotary_dims / 2]`; only GGUF stores them.
    RopeFactors,
    /// RMS norm before attention, `[hidden_size]`.
    AttnNorm(u32),
    /// Query projection, `[num_heads * head_dim, hidden_size]`.
    Q(u32),
    /// Key projection, `[num_kv_heads * head_dim, hidden_size]`.
    K(u32),
    /// Value projection, `[num_kv_heads * head_dim, hidden_size]`.
    V(u32),
    /// Attention output projection, `[hidden_size, num_heads * head_dim]`.
    O(u32),
    /// Bias of `Q`.
    QBias(u32),
    /// Bias of `K`.
    KBias(u32),
    /// Bias of `V`.
    VBias(u32),
    /// Bias of `O`.
    OBias(u32),
    /// RMS norm of each query head, `[head_dim]`.
    QNorm(u32),
    /// RMS norm of each key head, `[head_dim]`.
    KNorm(u32),
    /// RMS norm before the MLP, `[hidden_size]`.
    MlpNorm(u32),
    /// Gate projection, `[intermediate_size, hidden_size]`.
    Gate(u32),
    /// Up projection, `[intermediate_size, hidden_size]`.
    Up(u32),
    /// Down projection, `[hidden_size, intermediate_size]`.
    Down(u32),
}

/// A convention of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face: `model.layers.0.self_attn.q_proj.weight`.
    Hf,
    /// GGUF: `blk.0.attn_q.weight`.
    Gguf,
}

impl Naming {
    /// Name of `role`, or `None` if the format has no such tensor.
    pub fn name(self, role: Role) -> Option<String> {
        let (layer, hf, gguf) = table(role);
        let name = match self {
            Self::Hf => hf,
            Self::Gguf => gguf,
        };
        let prefix = match self {
            Self::Hf => "model.layers",
            Self::Gguf => "blk",
        };
        Some(match layer {
            _ if name.is_empty() => return None,
            Some(layer) => format!("{prefix}.{layer}.{name}"),
            None => name.to_owned(),
        })
    }
}

/// Layer, name in HF and name in GGUF; an empty name where the format has none.
fn table(role: Role) -> (Option<u32>, &'static str, &'static str) {
    match role {
        Role::Embed => (None, "model.embed_tokens.weight", "token_embd.weight"),
        Role::FinalNorm => (None, "model.norm.weight", "output_norm.weight"),
        Role::LmHead => (None, "lm_head.weight", "output.weight"),
        Role::RopeFactors => (None, "", "rope_freqs.weight"),
        Role::AttnNorm(l) => (Some(l), "input_layernorm.weight", "attn_norm.weight"),
        Role::Q(l) => (Some(l), "self_attn.q_proj.weight", "attn_q.weight"),
        Role::K(l) => (Some(l), "self_attn.k_proj.weight", "attn_k.weight"),
        Role::V(l) => (Some(l), "self_attn.v_proj.weight", "attn_v.weight"),
        Role::O(l) => (Some(l), "self_attn.o_proj.weight", "attn_output.weight"),
        Role::QBias(l) => (Some(l), "self_attn.q_proj.bias", "attn_q.bias"),
        Role::KBias(l) => (Some(l), "self_attn.k_proj.bias", "attn_k.bias"),
        Role::VBias(l) => (Some(l), "self_attn.v_proj.bias", "attn_v.bias"),
        Role::OBias(l) => (Some(l), "self_attn.o_proj.bias", "attn_output.bias"),
        Role::QNorm(l) => (Some(l), "self_attn.q_norm.weight", "attn_q_norm.weight"),
        Role::KNorm(l) => (Some(l), "self_attn.k_norm.weight", "attn_k_norm.weight"),
        Role::MlpNorm(l) => (Some(l), "post_attention_layernorm.weight", "ffn_norm.weight"),
        Role::Gate(l) => (Some(l), "mlp.gate_proj.weight", "ffn_gate.weight"),
        Role::Up(l) => (Some(l), "mlp.up_proj.weight", "ffn_up.weight"),
        Role::Down(l) => (Some(l), "mlp.down_proj.weight", "ffn_down.weight"),
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hf => "safetensors",
            Self::Gguf => "GGUF",
        })
    }
}
