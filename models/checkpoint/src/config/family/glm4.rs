use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{HeadDim, Plain, alike};
use crate::{BlockNorms, Family, Pairing};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "glm4",
        reads: &["partial_rotary_factor"],
        read: |config| {
            let plain = Plain {
                head_dim: HeadDim::Default(128),
                rms_norm_eps: 1.5625e-7,
                partial_rotary: Some(0.5),
                pairing: Pairing::Interleaved,
                ..Plain::new(Family::Glm4)
            };
            let mut decoder = plain.read(config)?;
            decoder.norms = BlockNorms::Around;
            decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(true);
            decoder.set_reaches(alike(config, decoder.num_layers, None)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "glm4",
        reads: &[],
        read: |keys| {
            let plain = gguf::Plain { pairing: Pairing::Interleaved, ..gguf::Plain::new(Family::Glm4) };
            let mut decoder = plain.read(keys)?;
            decoder.norms = BlockNorms::Around;
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};
