use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{KvHeads, Plain, alike};
use crate::{Family, Pairing};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "llama",
        reads: &[],
        read: |config| {
            let plain = Plain { kv_heads: KvHeads::Queries, ..Plain::new(Family::Llama) };
            let mut decoder = plain.read(config)?;
            decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
            decoder.o_bias = decoder.qkv_bias;
            decoder.set_reaches(alike(config, decoder.num_layers, None)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "llama",
        reads: &[],
        // Files hold rows of queries and keys so that neighbours turn together.
        read: |keys| {
            gguf::Plain { pairing: Pairing::Interleaved, ..gguf::Plain::new(Family::Llama) }.read(keys)
        },
    }),
    ..Spec::NONE
};
