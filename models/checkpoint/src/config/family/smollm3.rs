use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{Fields, KvHeads, Plain, list, reaches, step, window};
use crate::{ConfigError, DecoderConfig, Family, Pairing};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf { model_type: "smollm3", reads: &["no_rope_layers"], read: from_hf }),
    gguf: Some(Gguf {
        architecture: "smollm3",
        reads: &[],
        read: |keys| {
            let plain = gguf::Plain { pairing: Pairing::Interleaved, ..gguf::Plain::new(Family::SmolLm3) };
            let mut decoder = plain.read(keys)?;
            // No key says so.
            set_rotary(&mut decoder, |layer| !(layer + 1).is_multiple_of(INTERVAL));
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};

/// Distance between layers without rope.
const INTERVAL: u32 = 4;

fn from_hf(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    let family = Family::SmolLm3;
    let plain = Plain { kv_heads: KvHeads::Default(4), tied: true, rope_theta: 2e6, ..Plain::new(family) };
    let mut decoder = plain.read(config)?;
    decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
    decoder.o_bias = decoder.qkv_bias;
    let flags = list(config, "no_rope_layers")?;
    if flags.is_empty() {
        let interval = step(config, "no_rope_layer_interval", INTERVAL)?;
        set_rotary(&mut decoder, |layer| !(layer + 1).is_multiple_of(interval));
    } else if flags.len() == decoder.layers.len() {
        // In spite of the name, 1 marks the layers that rotate.
        set_rotary(&mut decoder, |layer| flags[layer as usize] != 0);
    } else {
        let value = format!("a list of {}", flags.len());
        let (field, rule) = ("no_rope_layers", "a list of num_hidden_layers");
        return Err(ConfigError::Invalid { field, value, rule });
    }
    let asked = config.bool("use_sliding_window")?.unwrap_or(false);
    let window = if asked { window(config, None)? } else { None };
    let rotary: Vec<bool> = decoder.layers.iter().map(|layer| layer.rotary).collect();
    decoder.set_reaches(reaches(config, decoder.num_layers, window, |layer| !rotary[layer as usize])?);
    Ok(decoder)
}

fn set_rotary(decoder: &mut DecoderConfig, rotary: impl Fn(u32) -> bool) {
    (0..).zip(&mut decoder.layers).for_each(|(index, layer)| layer.rotary = rotary(index));
}
