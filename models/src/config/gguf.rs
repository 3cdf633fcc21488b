//! Metadata of GGUF files: keys `ARCHITECTURE.something`, and what the tensor table says by what is in it.

use super::{
    ConfigError, DecoderConfig, Family, LayerConfig, MAX_LAYERS, Mlp, QkNorm, Reach, Rope, RopeScaling,
    rope::yarn_mscale,
};
use crate::{Gguf, GgufError, Role, Value, WeightSource};

const KNOWN: &[&str] = &["llama", "qwen2", "qwen3"];

/// Keys, after the architecture, that change the result; each is taken only with the value that changes nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("attention.sliding_window", 0.0),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 0.0),
    ("embedding_scale", 0.0),
    ("residual_scale", 0.0),
    ("use_parallel_residual", 0.0),
];

impl DecoderConfig {
    /// Reads the metadata and the tensor table of an open file.
    ///
    /// # Errors
    /// Any [`ConfigError`] except `Io` and `Json`.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let keys = Keys {
            file,
            arch: file.str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?,
        };
        let family = match keys.arch {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            other => return Err(ConfigError::Family { found: other.to_owned(), known: KNOWN }),
        };
        keys.refuse_unimplemented()?;

        let hidden_size = keys.need_u32("embedding_length")?;
        let num_heads = keys.need_u32("attention.head_count")?;
        let num_kv_heads = keys.u32("attention.head_count_kv")?.unwrap_or(num_heads);
        let head_dim = match keys.u32("attention.key_length")? {
            Some(n) => n,
            None => hidden_size / num_heads.max(1),
        };
        if let Some(value) = keys.u32("attention.value_length")?.filter(|&n| n != head_dim) {
            return Err(keys.unsupported("attention.value_length", &value.to_string()));
        }
        let num_layers = keys.need_u32("block_count")?;
        if num_layers > MAX_LAYERS {
            return Err(ConfigError::TooLarge { field: "num_layers", value: num_layers, max: MAX_LAYERS });
        }
        let context_length = keys.need_u32("context_length")?;
        #[expect(clippy::cast_possible_truncation, reason = "stored as f32, widened by the reader")]
        let rms_norm_eps = keys.need_f64("attention.layer_norm_rms_epsilon")? as f32;
        Self {
            family,
            vocab_size: keys.vocab_size()?,
            hidden_size,
            intermediate_size: keys.need_u32("feed_forward_length")?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps,
            rope: keys.rope(family, head_dim, context_length)?,
            context_length,
            tie_embeddings: !file.has(Role::LmHead),
            qkv_bias: file.has(Role::QBias(0)),
            o_bias: file.has(Role::OBias(0)),
            qk_norm: if file.has(Role::QNorm(0)) { QkNorm::Rms } else { QkNorm::None },
            latent: None,
            indexer: None,
            compressed: None,
            hyper: None,
            scale: super::scale_of(head_dim),
            temperature: None,
            sinks: false,
            moe: None,
            layers: vec![
                LayerConfig { reach: Reach::Full, rotary: true, mlp: Mlp::Dense };
                num_layers as usize
            ],
            eos_ids: eos_ids(file)?,
            bos_id: file.u32("tokenizer.ggml.bos_token_id")?,
        }
        .validate()
    }
}

/// End of text, of turn and of message: some converters give one of them, some several.
fn eos_ids(file: &Gguf) -> Result<Vec<u32>, GgufError> {
    let mut ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(id) = file.u32(&format!("tokenizer.ggml.{key}"))?
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn missing(key: impl Into<String>) -> GgufError {
    GgufError::MissingKey { key: key.into() }
}

struct Keys<'a> {
    file: &'a Gguf,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn u32(&self, name: &str) -> Result<Option<u32>, GgufError> {
        self.file.u32(&self.key(name))
    }

    fn need_u32(&self, name: &str) -> Result<u32, GgufError> {
        self.u32(name)?.ok_or_else(|| missing(self.key(name)))
    }

    fn f64(&self, name: &str) -> Result<Option<f64>, GgufError> {
        self.file.float(&self.key(name))
    }

    fn need_f64(&self, name: &str) -> Result<f64, GgufError> {
        self.f64(name)?.ok_or_else(|| missing(self.key(name)))
    }

    fn unsupported(&self, name: &str, value: &str) -> ConfigError {
        ConfigError::Unsupported { field: self.key(name), value: value.to_owned() }
    }

    fn refuse_unimplemented(&self) -> Result<(), ConfigError> {
        for &(name, neutral) in NEUTRAL {
            let Some(value) = self.file.value(&self.key(name)) else { continue };
            #[expect(clippy::cast_precision_loss, reason = "only compared with small whole numbers")]
            let number = match *value {
                Value::Unsigned(n) => Some(n as f64),
                Value::Signed(n) => Some(n as f64),
                Value::Float(x) => Some(x),
                Value::Bool(b) => Some(f64::from(u8::from(b))),
                _ => None,
            };
            if number != Some(neutral) {
                return Err(self.unsupported(name, &value.to_string()));
            }
        }
        Ok(())
    }

    /// The embedding has a row for each token; files may lack the key.
    fn vocab_size(&self) -> Result<u32, ConfigError> {
        let embedding = self.file.tensors().iter().find(|tensor| tensor.name == "token_embd.weight");
        let rows = embedding.and_then(|tensor| u32::try_from(*tensor.shape.first()?).ok());
        match rows {
            Some(rows) => Ok(rows),
            None => Ok(self.need_u32("vocab_size")?),
        }
    }

    fn rope(&self, family: Family, head_dim: u32, context_length: u32) -> Result<Rope, ConfigError> {
        Ok(Rope {
            theta: self.f64("rope.freq_base")?.unwrap_or(10_000.0),
            rotary_dims: self.u32("rope.dimension_count")?.unwrap_or(head_dim),
            interleaved: family == Family::Llama,
            scaling: self.rope_scaling(context_length)?,
        })
    }

    fn rope_scaling(&self, context_length: u32) -> Result<RopeScaling, ConfigError> {
        let factor = match self.f64("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.f64("rope.scale_linear")?,
        }
        // Zero and one are written for "none".
        .filter(|&factor| factor != 0.0 && factor != 1.0);
        let kind_key = self.key("rope.scaling.type");
        // Files older than the type key have a linear factor, if any.
        let kind = self.file.str(&kind_key)?.unwrap_or("linear");
        if self.file.has(Role::RopeFactors) {
            if factor.is_some() {
                return Err(
                    self.unsupported("rope.scaling.type", &format!("{kind} beside rope_freqs.weight"))
                );
            }
            let factors = self.file.tensor(Role::RopeFactors);
            let factors = factors.map_err(|source| ConfigError::RopeFactors { source })?;
            return Ok(RopeScaling::Factors(factors.to_f32()));
        }
        let Some(factor) = factor else { return Ok(RopeScaling::None) };
        Ok(match kind {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor },
            "yarn" => {
                let original = self.u32("rope.scaling.original_context_length")?.unwrap_or(context_length);
                let multiplier = self.f64("rope.scaling.attn_factor")?.unwrap_or(1.0);
                RopeScaling::Yarn {
                    factor,
                    original_context: original.into(),
                    beta_fast: self.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    attention_factor: multiplier * yarn_mscale(factor, 1.0),
                    truncate: true,
                }
            }
            _ => return Err(self.unsupported("rope.scaling.type", kind)),
        })
    }
}
