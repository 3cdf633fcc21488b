//! `config.json` and `generation_config.json` of Hugging Face checkpoints.
//!
//! Defaults are those of the `transformers` configuration classes: a key that is absent there means its default.

use std::path::Path;

use serde_json::{Map, Value};

use super::{
    ConfigError, DecoderConfig, Family, LayerConfig, MAX_LAYERS, QkNorm, Reach, Rope, RopeScaling,
    rope::yarn_mscale,
};

const KNOWN: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];

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
        refuse_unimplemented(&config)?;

        let hidden_size = config.need_u32("hidden_size")?;
        let num_heads = config.need_u32("num_attention_heads")?;
        let num_kv_heads = match config.u32("num_key_value_heads")? {
            Some(n) => n,
            None if family == Family::Llama => num_heads,
            None => return Err(ConfigError::Missing { field: "num_key_value_heads" }),
        };
        let head_dim = match config.u32("head_dim")? {
            Some(n) => n,
            None if family == Family::Qwen3 => 128,
            None => hidden_size / num_heads.max(1),
        };
        let num_layers = config.need_u32("num_hidden_layers")?;
        if num_layers > MAX_LAYERS {
            let (field, value, max) = ("num_hidden_layers", num_layers, MAX_LAYERS);
            return Err(ConfigError::TooLarge { field, value, max });
        }
        let context_length = config.need_u32("max_position_embeddings")?;
        let attention_bias = config.bool("attention_bias")?.unwrap_or(false);
        let eos_ids = match generation.ids("eos_token_id")? {
            ids if ids.is_empty() => config.ids("eos_token_id")?,
            ids => ids,
        };
        let bias = match family {
            Family::Llama | Family::Qwen3 => (attention_bias, attention_bias),
            Family::Qwen2 => (true, false),
            Family::Mistral => (false, false),
        };
        Self {
            family,
            vocab_size: config.need_u32("vocab_size")?,
            hidden_size,
            intermediate_size: config.need_u32("intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            #[expect(clippy::cast_possible_truncation, reason = "the forward pass runs in f32")]
            rms_norm_eps: config.f64("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: rope(&config, head_dim, context_length)?,
            context_length,
            tie_embeddings: config.bool("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: bias.0,
            o_bias: bias.1,
            qk_norm: if family == Family::Qwen3 { QkNorm::Rms } else { QkNorm::None },
            layers: layers(&config, family, num_layers)?,
            eos_ids,
            bos_id: config.ids("bos_token_id")?.first().copied(),
        }
        .validate()
    }
}

fn family(config: &Fields) -> Result<Family, ConfigError> {
    match config.str("model_type")?.ok_or(ConfigError::Missing { field: "model_type" })? {
        "llama" => Ok(Family::Llama),
        "mistral" => Ok(Family::Mistral),
        "qwen2" => Ok(Family::Qwen2),
        "qwen3" => Ok(Family::Qwen3),
        other => Err(ConfigError::Family { found: other.to_owned(), known: KNOWN }),
    }
}

fn refuse_unimplemented(config: &Fields) -> Result<(), ConfigError> {
    for (field, neutral) in NEUTRAL {
        if let Some(value) = config.get(field)
            && !neutral.iter().any(|neutral| neutral.is(value))
        {
            return Err(ConfigError::Unsupported { field: (*field).to_owned(), value: value.to_string() });
        }
    }
    Ok(())
}

fn layers(config: &Fields, family: Family, num_layers: u32) -> Result<Vec<LayerConfig>, ConfigError> {
    let with =
        |window: Option<u32>| LayerConfig { reach: window.map_or(Reach::Full, Reach::Window), rotary: true };
    let qwen = matches!(family, Family::Qwen2 | Family::Qwen3);
    let window = match family {
        Family::Llama => None,
        // `null` switches the window off, absence is the default of the configuration class.
        Family::Mistral if !config.0.contains_key("sliding_window") => Some(4096),
        Family::Mistral => config.u32("sliding_window")?,
        Family::Qwen2 | Family::Qwen3 if !config.bool("use_sliding_window")?.unwrap_or(false) => None,
        Family::Qwen2 | Family::Qwen3 => Some(config.u32("sliding_window")?.unwrap_or(4096)),
    };
    if window == Some(0) {
        return Err(ConfigError::Invalid { field: "sliding_window", value: "0".into(), rule: "at least 1" });
    }
    let Some(layer_types) = config.get("layer_types") else {
        let first = if qwen { config.u32("max_window_layers")?.unwrap_or(28) } else { 0 };
        return Ok((0..num_layers).map(|layer| with(window.filter(|_| layer >= first))).collect());
    };
    let layers = layer_types.as_array().ok_or_else(|| mismatch("layer_types", "a list", layer_types))?;
    if layers.len() != num_layers as usize {
        let value = format!("a list of {}", layers.len());
        let rule = "a list of num_hidden_layers";
        return Err(ConfigError::Invalid { field: "layer_types", value, rule });
    }
    let of_layer = |layer: &Value| match layer.as_str() {
        Some("full_attention") => Ok(with(None)),
        Some("sliding_attention") if window.is_some() => Ok(with(window)),
        _ => Err(ConfigError::Unsupported { field: "layer_types".into(), value: layer.to_string() }),
    };
    layers.iter().map(of_layer).collect()
}

/// New configurations hold all of it in `rope_parameters`, old ones in `rope_theta` and `rope_scaling`.
fn rope(config: &Fields, head_dim: u32, context_length: u32) -> Result<Rope, ConfigError> {
    let empty = Fields(Map::new());
    let section = match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
        (Some(new), _) => new,
        (None, Some(old)) => old,
        (None, None) => empty,
    };
    if let Some(value) = section.get("partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
        return Err(ConfigError::Unsupported {
            field: "partial_rotary_factor".into(),
            value: value.to_string(),
        });
    }
    let theta = match section.f64("rope_theta")? {
        Some(theta) => theta,
        None => config.f64("rope_theta")?.unwrap_or(10_000.0),
    };
    let kind = match section.str("rope_type")? {
        Some(kind) => kind,
        None => section.str("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: section.need_f64("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: section.need_f64("factor")?,
            low_freq_factor: section.need_f64("low_freq_factor")?,
            high_freq_factor: section.need_f64("high_freq_factor")?,
            original_context: section.need_f64("original_max_position_embeddings")?,
        },
        "yarn" => yarn(&section, context_length.into())?,
        _ => return Err(ConfigError::Unsupported { field: "rope_type".into(), value: format!("{kind:?}") }),
    };
    Ok(Rope { theta, rotary_dims: head_dim, interleaved: false, scaling })
}

fn yarn(section: &Fields, context_length: f64) -> Result<RopeScaling, ConfigError> {
    let original_context = section.f64("original_max_position_embeddings")?.unwrap_or(context_length);
    let factor = section.f64("factor")?.unwrap_or(context_length / original_context);
    let mscale = (section.f64("mscale")?, section.f64("mscale_all_dim")?);
    let attention_factor = match (section.f64("attention_factor")?, mscale) {
        (Some(given), _) => given,
        // Zero counts as absent, as it is false in Python.
        (None, (Some(m), Some(all))) if m != 0.0 && all != 0.0 => {
            yarn_mscale(factor, m) / yarn_mscale(factor, all)
        }
        (None, _) => yarn_mscale(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: section.f64("beta_fast")?.unwrap_or(32.0),
        beta_slow: section.f64("beta_slow")?.unwrap_or(1.0),
        attention_factor,
        truncate: section.bool("truncate")?.unwrap_or(true),
    })
}

/// A JSON object whose fields are read by type; `null` is as good as absent.
struct Fields(Map<String, Value>);

impl Fields {
    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn typed<'a, T>(
        &'a self,
        field: &str,
        want: &'static str,
        as_type: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        as_type(value).map(Some).ok_or_else(|| mismatch(field, want, value))
    }

    fn u32(&self, field: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(field, "an integer of 32 bits", as_u32)
    }

    fn need_u32(&self, field: &'static str) -> Result<u32, ConfigError> {
        self.u32(field)?.ok_or(ConfigError::Missing { field })
    }

    fn f64(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a number", Value::as_f64)
    }

    fn need_f64(&self, field: &'static str) -> Result<f64, ConfigError> {
        self.f64(field)?.ok_or(ConfigError::Missing { field })
    }

    fn bool(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    fn str(&self, field: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(field, "a string", Value::as_str)
    }

    fn object(&self, field: &str) -> Result<Option<Fields>, ConfigError> {
        self.typed(field, "an object", |value| Some(Fields(value.as_object()?.clone())))
    }

    /// Token ids: one, or a list.
    fn ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        let ids = self.typed(field, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(as_u32).collect(),
            id => Some(vec![as_u32(id)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

fn as_u32(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn mismatch(field: &str, want: &'static str, found: &Value) -> ConfigError {
    ConfigError::FieldType {
        field: field.to_owned(),
        want,
        found: found.to_string().chars().take(60).collect(),
    }
}
