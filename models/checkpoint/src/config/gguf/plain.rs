//! Keys of all architectures.

use super::keys::Keys;
use super::rope::rope;
use crate::config::MAX_LAYERS;
use crate::{ConfigError, DecoderConfig, Family, Gguf, GgufError, Pairing, Role, Sizes, WeightSource};

/// Reader of the keys that all architectures have.
pub(in crate::config) struct Plain {
    pub(in crate::config) family: Family,
    /// Elements that form a rotated pair.
    pub(in crate::config) pairing: Pairing,
    /// Placeholder for the head size, if the family computes the size from other keys; `None` for all other families.
    pub(in crate::config) head_dim: Option<u32>,
}

impl Plain {
    pub(in crate::config) const fn new(family: Family) -> Self {
        Self { family, pairing: Pairing::Halves, head_dim: None }
    }

    /// Reads a configuration in which all layers are dense and have full attention.
    pub(in crate::config) fn read(&self, keys: &Keys<'_>) -> Result<DecoderConfig, ConfigError> {
        let sizes = sizes(keys, self.head_dim)?;
        let file = keys.file;
        let mut decoder = DecoderConfig::plain(self.family, sizes);
        #[expect(clippy::cast_possible_truncation, reason = "stored as f32, widened by the reader")]
        let rms_norm_eps = keys.need_f64("attention.layer_norm_rms_epsilon")? as f32;
        decoder.rms_norm_eps = rms_norm_eps;
        decoder.rope = rope(keys, sizes.head_dim, sizes.context_length)?;
        decoder.rope.pairing = self.pairing;
        decoder.tie_embeddings = !file.has(Role::LmHead);
        decoder.qkv_bias = file.has(Role::QBias(0));
        decoder.o_bias = file.has(Role::OBias(0));
        decoder.eos_ids = eos_ids(file)?;
        decoder.bos_id = file.u32("tokenizer.ggml.bos_token_id")?;
        Ok(decoder)
    }
}

fn sizes(keys: &Keys<'_>, known: Option<u32>) -> Result<Sizes, ConfigError> {
    let hidden_size = keys.need_u32("embedding_length")?;
    let num_heads = keys.need_u32("attention.head_count")?;
    let head_dim = match (known, keys.u32("attention.key_length")?) {
        (Some(n), _) | (None, Some(n)) => n,
        (None, None) => hidden_size / num_heads.max(1),
    };
    let values = keys.u32("attention.value_length")?.filter(|_| known.is_none());
    if let Some(value) = values.filter(|&n| n != head_dim) {
        return Err(keys.unsupported("attention.value_length", &value.to_string()));
    }
    let num_layers = keys.need_u32("block_count")?;
    if num_layers > MAX_LAYERS {
        return Err(ConfigError::TooLarge { field: "num_layers", value: num_layers, max: MAX_LAYERS });
    }
    Ok(Sizes {
        vocab_size: vocab_size(keys)?,
        hidden_size,
        intermediate_size: keys.need_u32("feed_forward_length")?,
        num_layers,
        num_heads,
        num_kv_heads: keys.u32("attention.head_count_kv")?.unwrap_or(num_heads),
        head_dim,
        context_length: keys.need_u32("context_length")?,
    })
}

/// Returns the number of rows of the embedding; files may lack the key.
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

/// Returns the tokens that end a text, a turn or a message. A file may state one of them or several.
fn eos_ids(file: &Gguf) -> Result<Vec<u32>, GgufError> {
    let mut ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(id) = file.u32(&format!("tokenizer.ggml.{key}"))?
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    if file.value("tokenizer.ggml.eot_token_id").is_none() {
        let named = named_ends(file)?;
        ids.extend(named.into_iter().filter(|id| !ids.contains(id)).collect::<Vec<_>>());
    }
    Ok(ids)
}

/// Names of tokens that end a turn, for files that do not state them; llama.cpp uses the same names.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// Returns the ids of control tokens that end a turn, judging by their names.
fn named_ends(file: &Gguf) -> Result<Vec<u32>, GgufError> {
    const CONTROL: i64 = 3;
    let Some(tokens) = file.strings("tokenizer.ggml.tokens")? else { return Ok(Vec::new()) };
    let types = file.ints("tokenizer.ggml.token_type")?;
    let control = |id: usize| types.as_ref().is_some_and(|types| types.get(id) == Some(&CONTROL));
    // Where answers end by this, the other ends one of several messages of an answer (gpt-oss).
    let in_messages = tokens.iter().any(|token| *token == "<|return|>");
    let ends = |token: &str| ENDS.contains(&token) && !(in_messages && token == "<|end|>");
    let found = tokens.iter().enumerate().filter(|(id, token)| ends(token) && control(*id));
    Ok(found.filter_map(|(id, _)| u32::try_from(id).ok()).collect())
}
