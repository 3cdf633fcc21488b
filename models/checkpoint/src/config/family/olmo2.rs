use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{KvHeads, Plain, alike};
use crate::{BlockNorms, DecoderConfig, Family, QkNorm};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "olmo2",
        reads: &[],
        read: |config| {
            let plain = Plain { kv_heads: KvHeads::Queries, rms_norm_eps: 1e-5, ..Plain::new(Family::Olmo2) };
            let mut decoder = plain.read(config)?;
            complete(&mut decoder);
            decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
            decoder.o_bias = decoder.qkv_bias;
            decoder.set_reaches(alike(config, decoder.num_layers, None)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "olmo2",
        reads: &[],
        read: |keys| {
            let mut decoder = gguf::Plain::new(Family::Olmo2).read(keys)?;
            complete(&mut decoder);
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};

/// Sets the values that no checkpoint states.
fn complete(decoder: &mut DecoderConfig) {
    decoder.norms = BlockNorms::Behind;
    decoder.qk_norm = QkNorm::Whole;
}
