use super::{Hf, Spec};
use crate::Family;
use crate::config::hf::{KvHeads, Plain, reaches, window};

/// Specification of the family. GGUF files of these models name the llama architecture.
pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "ministral",
        reads: &[],
        read: |config| {
            let mut decoder =
                Plain { kv_heads: KvHeads::Default(8), ..Plain::new(Family::Ministral) }.read(config)?;
            let window = window(config, Some(4096))?;
            decoder.set_reaches(reaches(config, decoder.num_layers, window, |_| true)?);
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};
