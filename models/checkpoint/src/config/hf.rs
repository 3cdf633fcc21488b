//! `config.json` and `generation_config.json` of Hugging Face checkpoints.
//!
//! Defaults are those of the `transformers` configuration classes: a key that is absent there means its default.

mod fields;
mod layers;
mod plain;
mod rope;
mod wrapper;

use serde_json::Value;

pub(super) use self::{
    fields::Fields,
    layers::{alike, by_type, layer_numbers, list, reaches, step, texts, unknown, window, window_on_demand},
    plain::{HeadDim, KvHeads, Plain, either, refuse_biases},
    rope::{rope, rotary_dims, scaling, section},
    wrapper::text,
};
use super::ConfigError;
use crate::Quantization;

/// Fields of related models that would change the result, each with its neutral values.
const NEUTRAL: &[(&str, &[Neutral])] = &[
    ("hidden_act", &[Neutral::Text("silu")]),
    ("hidden_activation", &[]),
    ("mlp_bias", &[Neutral::Bool(false)]),
    ("partial_rotary_factor", &[Neutral::Number(1.0)]),
    ("attn_logit_softcapping", &[]),
    ("final_logit_softcapping", &[]),
    ("query_pre_attn_scalar", &[]),
    ("attention_multiplier", &[]),
    ("embedding_multiplier", &[Neutral::Number(1.0)]),
    ("residual_multiplier", &[Neutral::Number(1.0)]),
    ("logit_scale", &[Neutral::Number(1.0)]),
    ("logits_scaling", &[Neutral::Number(1.0)]),
    ("num_local_experts", &[Neutral::Number(0.0)]),
    ("num_experts", &[Neutral::Number(0.0)]),
    ("no_rope_layers", &[]),
    ("attention_chunk_size", &[]),
    ("is_causal", &[Neutral::Bool(true)]),
    ("swiglu_limit", &[]),
    ("per_layer_config", &[]),
    ("is_encoder_decoder", &[Neutral::Bool(false)]),
    ("add_cross_attention", &[Neutral::Bool(false)]),
    ("use_bidirectional_attention", &[Neutral::Bool(false)]),
    ("original_max_position_embeddings", &[]),
    ("shared_expert_intermediate_size", &[Neutral::Number(0.0)]),
    ("n_shared_experts", &[Neutral::Number(0.0)]),
    ("scoring_func", &[Neutral::Text("sigmoid")]),
    ("topk_method", &[Neutral::Text("noaux_tc")]),
    ("moe_layer_freq", &[Neutral::Number(1.0)]),
    ("rope_interleave", &[Neutral::Bool(true)]),
    ("index_topk_freq", &[Neutral::Number(1.0)]),
    ("index_topk_pattern", &[]),
    ("attnres_block_size", &[]),
];

enum Neutral {
    Bool(bool),
    Number(f64),
    Text(&'static str),
}

impl Neutral {
    fn is(&self, value: &Value) -> bool {
        match *self {
            Self::Bool(want) => value.as_bool() == Some(want),
            Self::Number(want) => value.as_f64() == Some(want),
            Self::Text(want) => value.as_str() == Some(want),
        }
    }
}

/// Rejects unsupported ways of storing weights.
pub(super) fn refuse_quantization(config: &Fields) -> Result<(), ConfigError> {
    let Some(section) = config.get("quantization_config") else { return Ok(()) };
    Quantization::read(section).map(drop).map_err(|source| ConfigError::Quantization { source })
}

/// Rejects fields that would change the result and that the family does not read.
pub(super) fn refuse_unimplemented(config: &Fields, reads: &[&str]) -> Result<(), ConfigError> {
    for (field, neutral) in NEUTRAL.iter().filter(|(field, _)| !reads.contains(field)) {
        if let Some(value) = config.get(field)
            && !neutral.iter().any(|neutral| neutral.is(value))
        {
            return Err(ConfigError::Unsupported { field: (*field).to_owned(), value: value.to_string() });
        }
    }
    Ok(())
}
