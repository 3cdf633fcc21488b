//! Metadata of GGUF files: keys `ARCHITECTURE.something`, and what the tensor table says by what is in it.

mod keys;
mod layers;
mod rope;

use self::keys::{Keys, missing};
use super::{ConfigError, DecoderConfig, Family, MAX_LAYERS, QkNorm};
use crate::{Gguf, GgufError, Role, WeightSource};

const KNOWN: &[&str] = &["llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss"];

fn family(arch: &str) -> Result<Family, ConfigError> {
    match arch {
        "llama" => Ok(Family::Llama),
        "qwen2" => Ok(Family::Qwen2),
        "qwen3" => Ok(Family::Qwen3),
        "qwen3moe" => Ok(Family::Qwen3Moe),
        "gpt-oss" => Ok(Family::GptOss),
        other => Err(ConfigError::Family { found: other.to_owned(), known: KNOWN }),
    }
}

impl DecoderConfig {
    /// Reads the metadata and the tensor table of an open file.
    ///
    /// # Errors
    /// Any [`ConfigError`] except `Io` and `Json`.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let arch = file.str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
        let (keys, family) = (Keys { file, arch }, family(arch)?);
        keys.refuse_unimplemented(family)?;

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
        let (qkv_bias, o_bias) = match family {
            Family::GptOss => (true, true),
            Family::Qwen2 => (true, file.has(Role::OBias(0))),
            _ => (file.has(Role::QBias(0)), file.has(Role::OBias(0))),
        };
        Self {
            family,
            vocab_size: vocab_size(&keys)?,
            hidden_size,
            intermediate_size: keys.need_u32("feed_forward_length")?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps,
            rope: rope::rope(&keys, family, head_dim, context_length)?,
            context_length,
            tie_embeddings: !file.has(Role::LmHead),
            qkv_bias,
            o_bias,
            qk_norm: match family {
                Family::Qwen3 | Family::Qwen3Moe => QkNorm::Rms,
                _ => QkNorm::None,
            },
            latent: None,
            indexer: None,
            compressed: None,
            hyper: None,
            scale: super::scale_of(head_dim),
            temperature: None,
            sinks: family == Family::GptOss,
            moe: layers::moe(&keys, family)?,
            layers: layers::layers(&keys, family, num_layers)?,
            eos_ids: eos_ids(file)?,
            bos_id: file.u32("tokenizer.ggml.bos_token_id")?,
        }
        .validate()
    }
}

/// The embedding has a row for each token; files may lack the key.
fn vocab_size(keys: &Keys<'_>) -> Result<u32, ConfigError> {
    let embedding = keys.file.tensors().iter().find(|tensor| tensor.name == "token_embd.weight");
    let rows = embedding.and_then(|tensor| u32::try_from(*tensor.shape.first()?).ok());
    let Some(rows) = rows else { return Ok(keys.need_u32("vocab_size")?) };
    let tokens =
        keys.file.strings("tokenizer.ggml.tokens")?.and_then(|tokens| u32::try_from(tokens.len()).ok());
    for (field, count) in
        [("vocab_size", keys.u32("vocab_size")?), ("the number of tokenizer.ggml.tokens", tokens)]
    {
        if let Some(count) = count.filter(|count| *count != rows) {
            let rule = "the number of rows of token_embd.weight";
            return Err(ConfigError::Invalid { field, value: count.to_string(), rule });
        }
    }
    Ok(rows)
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
