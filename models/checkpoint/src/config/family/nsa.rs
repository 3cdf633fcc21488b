//! The `nsa` models of flash-linear-attention: Llama with another attention, and with its own names of fields and tensors.

use serde_json::Value;

use super::{Hf, Spec};
use crate::config::hf::{Fields, Plain, unknown};
use crate::config::latent::check;
use crate::{ConfigError, DecoderConfig, Family, NsaConfig};

pub(super) const SPEC: Spec =
    Spec { hf: Some(Hf { model_type: "nsa", reads: &["hidden_act"], read }), ..Spec::NONE };

/// Fields, their names in other families, and their defaults, since saved configurations leave defaults out.
const FIELDS: [(&str, &str, f64); 9] = [
    ("hidden_size", "hidden_size", 2048.0),
    ("num_hidden_layers", "num_hidden_layers", 24.0),
    ("num_heads", "num_attention_heads", 64.0),
    ("num_kv_heads", "num_key_value_heads", 4.0),
    ("head_dim", "head_dim", 32.0),
    ("max_position_embeddings", "max_position_embeddings", 2048.0),
    ("vocab_size", "vocab_size", 32_000.0),
    ("norm_eps", "rms_norm_eps", 1e-6),
    ("rope_theta", "rope_theta", 10_000.0),
];

fn read(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    match config.str("hidden_act")? {
        None | Some("swish") => {}
        Some(other) => return Err(unknown("hidden_act", other)),
    }
    let mut decoder = Plain::new(Family::Nsa).read(&renamed(config)?)?;
    decoder.qkv_bias = config.bool("qkv_bias")?.unwrap_or(false);
    decoder.nsa = Some(NsaConfig::new(
        config.u32("block_size")?.unwrap_or(64),
        config.u32("block_counts")?.unwrap_or(16),
        config.u32("window_size")?.unwrap_or(512),
    ));
    Ok(decoder)
}

/// Returns all fields by the names of other families.
fn renamed(config: &Fields) -> Result<Fields, ConfigError> {
    let mut fields = config.0.clone();
    for (field, name, default) in FIELDS {
        let value = config.get(field).cloned().unwrap_or_else(|| number(default));
        fields.insert(name.to_owned(), value);
    }
    if config.get("intermediate_size").is_none() {
        let hidden = u64::from(config.u32("hidden_size")?.unwrap_or(2048));
        let ratio = config.u32("hidden_ratio")?.unwrap_or(4);
        check("hidden_ratio", ratio, 1 << 16, 1, "from 1 to 65536")?;
        let inner = (hidden * u64::from(ratio) * 2 / 3).next_multiple_of(256);
        fields.insert("intermediate_size".to_owned(), inner.into());
    }
    Ok(Fields(fields))
}

/// Returns a JSON number, an integer if possible.
fn number(value: f64) -> Value {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a default, small and positive"
    )]
    let whole = value as u64;
    if value.fract() > 0.0 { value.into() } else { whole.into() }
}
