//! `config.json` and `generation_config.json` of Hugging Face checkpoints.
//!
//! Defaults are those of the `transformers` configuration classes: a key that is absent there means its default.

mod deepseek;
mod deepseek_v4;
mod fields;
mod layers;
mod moe;
mod rope;

use std::path::Path;

use serde_json::{Map, Value};

use self::fields::Fields;
use super::{ConfigError, DecoderConfig, Family, MAX_LAYERS, QkNorm};

const KNOWN: &[&str] = &[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gpt_oss",
    "llama4_text",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
];

/// Fields of [`NEUTRAL`] that a family reads.
fn read_by(family: Family) -> &'static [&'static str] {
    match family {
        Family::Qwen3Moe => &["num_experts", "num_local_experts"],
        Family::GptOss => &["num_experts", "num_local_experts", "swiglu_limit"],
        Family::DeepseekV3 | Family::DeepseekV32 => &["num_local_experts", "n_shared_experts"],
        Family::DeepseekV4 => &[
            "num_local_experts",
            "n_shared_experts",
            "scoring_func",
            "swiglu_limit",
            "partial_rotary_factor",
        ],
        Family::Llama4 => &["num_local_experts", "no_rope_layers", "attention_chunk_size"],
        _ => &[],
    }
}

/// Fields of related models that change the result; each is taken only with the value that changes nothing.
const NEUTRAL: &[(&str, &[Neutral])] = &[
    ("hidden_act", &[Neutral::Text("silu")]),
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
    ("quantization_config", &[]),
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

impl DecoderConfig {
    /// Reads `config.json` of `dir`, and `generation_config.json` if it is there.
    ///
    /// # Errors
    /// Any [`ConfigError`] except those of GGUF.
    pub fn from_hf_dir(dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let read = |name| {
            let path = dir.as_ref().join(name);
            std::fs::read_to_string(&path).map_err(|source| ConfigError::Io { path, source })
        };
        let generation = match read("generation_config.json") {
            Err(ConfigError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        Self::from_hf_json(&read("config.json")?, generation.as_deref())
    }

    /// Reads the text of `config.json` and, where it exists, of `generation_config.json`.
    ///
    /// # Errors
    /// Any [`ConfigError`] except `Io` and those of GGUF.
    pub fn from_hf_json(config: &str, generation_config: Option<&str>) -> Result<Self, ConfigError> {
        let config = Fields(serde_json::from_str(config)?);
        let generation = Fields(generation_config.map_or(Ok(Map::new()), serde_json::from_str)?);
        let family = family(&config)?;
        refuse_unimplemented(&config, family)?;

        let hidden_size = config.need_u32("hidden_size")?;
        let num_heads = config.need_u32("num_attention_heads")?;
        let num_kv_heads = match config.u32("num_key_value_heads")? {
            Some(n) => n,
            None if family == Family::Llama => num_heads,
            None if family == Family::DeepseekV4 => 1,
            None => return Err(ConfigError::Missing { field: "num_key_value_heads" }),
        };
        let latent = match family {
            Family::DeepseekV3 | Family::DeepseekV32 => Some(deepseek::latent(&config)?),
            _ => None,
        };
        let num_kv_heads = if latent.is_some() { 1 } else { num_kv_heads };
        let head_dim = match config.u32("head_dim")? {
            _ if latent.is_some() => latent.map_or(0, |latent| latent.nope_dim + latent.rope_dim),
            Some(n) => n,
            // `null` asks for the quotient, absence is the default of the configuration class.
            None => match family {
                Family::Qwen3 | Family::Llama4 if !config.0.contains_key("head_dim") => 128,
                Family::GptOss if !config.0.contains_key("head_dim") => 64,
                Family::DeepseekV4 => 512,
                _ if !hidden_size.is_multiple_of(num_heads.max(1)) => {
                    let (field, value) = ("hidden_size", hidden_size.to_string());
                    return Err(ConfigError::Invalid {
                        field,
                        value,
                        rule: "a multiple of num_attention_heads",
                    });
                }
                _ => hidden_size / num_heads.max(1),
            },
        };
        let num_layers = config.need_u32("num_hidden_layers")?;
        if num_layers > MAX_LAYERS {
            let (field, value, max) = ("num_hidden_layers", num_layers, MAX_LAYERS);
            return Err(ConfigError::TooLarge { field, value, max });
        }
        let context_length = config.need_u32("max_position_embeddings")?;
        let (rope, compressed) = match family {
            Family::DeepseekV4 => {
                let (rope, compressed) =
                    deepseek_v4::compressed(&config, num_layers, head_dim, context_length)?;
                (rope, Some(compressed))
            }
            _ => {
                let rotary_dims = latent.map_or(head_dim, |latent| latent.rope_dim);
                (rope::rope(&config, family, rotary_dims, context_length)?, None)
            }
        };
        let (indexer, hyper) = match family {
            Family::DeepseekV4 => (Some(deepseek_v4::indexer(&config)?), Some(deepseek_v4::hyper(&config)?)),
            Family::DeepseekV32 => (Some(deepseek::indexer(&config)?), None),
            _ => (None, None),
        };
        let attention_bias = config.bool("attention_bias")?.unwrap_or(false);
        let eos_ids = match generation.ids("eos_token_id")? {
            ids if ids.is_empty() => config.ids("eos_token_id")?,
            ids => ids,
        };
        let bias = match family {
            Family::Llama | Family::Qwen3 | Family::Qwen3Moe | Family::Llama4 => {
                (attention_bias, attention_bias)
            }
            Family::GptOss => {
                let bias = config.bool("attention_bias")?.unwrap_or(true);
                (bias, bias)
            }
            Family::DeepseekV3 | Family::DeepseekV32 | Family::DeepseekV4 if attention_bias => {
                let (field, value) = ("attention_bias".to_owned(), "true".to_owned());
                return Err(ConfigError::Unsupported { field, value });
            }
            Family::DeepseekV3 | Family::DeepseekV32 | Family::DeepseekV4 => (false, false),
            Family::Qwen2 => (true, false),
            Family::Mistral => (false, false),
        };
        Self {
            family,
            vocab_size: config.need_u32("vocab_size")?,
            hidden_size,
            intermediate_size: config.need_u32(match family {
                Family::Llama4 => "intermediate_size_mlp",
                // All layers have experts.
                Family::DeepseekV4 => "moe_intermediate_size",
                _ => "intermediate_size",
            })?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps: config.f32("rms_norm_eps")?.unwrap_or(match family {
                Family::GptOss | Family::Llama4 => 1e-5,
                _ => 1e-6,
            }),
            rope,
            context_length,
            tie_embeddings: config.bool("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: bias.0,
            o_bias: bias.1,
            qk_norm: match family {
                Family::Qwen3 | Family::Qwen3Moe => QkNorm::Rms,
                Family::Llama4 if config.bool("use_qk_norm")?.unwrap_or(true) => QkNorm::Unweighted,
                _ => QkNorm::None,
            },
            scale: match &latent {
                Some(latent) => deepseek::scale(&config, latent)?,
                None => super::scale_of(head_dim),
            },
            latent,
            indexer,
            compressed,
            hyper,
            temperature: layers::temperature(&config, family)?,
            sinks: matches!(family, Family::GptOss | Family::DeepseekV4),
            moe: moe::moe(&config, family)?,
            layers: layers::layers(&config, family, num_layers)?,
            eos_ids,
            bos_id: config.ids("bos_token_id")?.first().copied(),
        }
        .validate()
    }
}

fn is_mxfp4(config: &Fields) -> bool {
    let method = config.get("quantization_config").and_then(|quantization| quantization.get("quant_method"));
    method.and_then(Value::as_str) == Some("mxfp4")
}

fn family(config: &Fields) -> Result<Family, ConfigError> {
    match config.str("model_type")?.ok_or(ConfigError::Missing { field: "model_type" })? {
        "llama" => Ok(Family::Llama),
        "mistral" => Ok(Family::Mistral),
        "qwen2" => Ok(Family::Qwen2),
        "qwen3" => Ok(Family::Qwen3),
        "qwen3_moe" => Ok(Family::Qwen3Moe),
        "gpt_oss" => Ok(Family::GptOss),
        "llama4_text" => Ok(Family::Llama4),
        "deepseek_v3" => Ok(Family::DeepseekV3),
        "deepseek_v32" => Ok(Family::DeepseekV32),
        "deepseek_v4" => Ok(Family::DeepseekV4),
        other => Err(ConfigError::Family { found: other.to_owned(), known: KNOWN }),
    }
}

fn refuse_unimplemented(config: &Fields, family: Family) -> Result<(), ConfigError> {
    for (field, neutral) in NEUTRAL.iter().filter(|(field, _)| !read_by(family).contains(field)) {
        // The one quantised layout that safetensors come in and that the reader knows.
        if *field == "quantization_config" && family == Family::GptOss && is_mxfp4(config) {
            continue;
        }
        if let Some(value) = config.get(field)
            && !neutral.iter().any(|neutral| neutral.is(value))
        {
            return Err(ConfigError::Unsupported { field: (*field).to_owned(), value: value.to_string() });
        }
    }
    Ok(())
}
