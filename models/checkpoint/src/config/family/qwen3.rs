use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{HeadDim, Plain, reaches, window_on_demand};
use crate::{Family, QkNorm};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "qwen3",
        reads: &[],
        read: |config| {
            let plain = Plain { head_dim: HeadDim::Default(128), ..Plain::new(Family::Qwen3) };
            let mut decoder = plain.read(config)?;
            decoder.qk_norm = QkNorm::Rms;
            decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
            decoder.o_bias = decoder.qkv_bias;
            let first = config.u32("max_window_layers")?.unwrap_or(28);
            let window = window_on_demand(config)?;
            decoder.set_reaches(reaches(config, decoder.num_layers, window, |layer| layer >= first)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "qwen3",
        reads: &[],
        read: |keys| {
            let mut decoder = gguf::Plain::new(Family::Qwen3).read(keys)?;
            decoder.qk_norm = QkNorm::Rms;
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};
