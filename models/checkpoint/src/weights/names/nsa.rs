//! The names that flash-linear-attention gives what its NSA models share with Llama.

use super::Role;

/// Layer and name of a tensor, where it goes by one that no other family has.
pub(super) fn name(role: Role) -> Option<(Option<u32>, &'static str)> {
    let (layer, name) = match role {
        Role::Embed => (None, "model.embeddings.weight"),
        Role::Q(l) => (Some(l), "attn.q_proj.weight"),
        Role::K(l) => (Some(l), "attn.k_proj.weight"),
        Role::V(l) => (Some(l), "attn.v_proj.weight"),
        Role::O(l) => (Some(l), "attn.o_proj.weight"),
        Role::QBias(l) => (Some(l), "attn.q_proj.bias"),
        Role::KBias(l) => (Some(l), "attn.k_proj.bias"),
        Role::VBias(l) => (Some(l), "attn.v_proj.bias"),
        Role::MlpNorm(l) => (Some(l), "mlp_norm.weight"),
        _ => return None,
    };
    Some((layer, name))
}
