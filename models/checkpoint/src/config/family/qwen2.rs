use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{Plain, reaches, window_on_demand};
use crate::{Family, Role, WeightSource};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "qwen2",
        reads: &[],
        read: |config| {
            let mut decoder = Plain::new(Family::Qwen2).read(config)?;
            decoder.qkv_bias = true;
            let first = config.u32("max_window_layers")?.unwrap_or(28);
            let window = window_on_demand(config)?;
            decoder.set_reaches(reaches(config, decoder.num_layers, window, |layer| layer >= first)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "qwen2",
        reads: &[],
        read: |keys| {
            let mut decoder = gguf::Plain::new(Family::Qwen2).read(keys)?;
            (decoder.qkv_bias, decoder.o_bias) = (true, keys.file.has(Role::OBias(0)));
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};
