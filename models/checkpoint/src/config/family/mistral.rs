use super::{Hf, Spec};
use crate::Family;
use crate::config::hf::{Plain, alike, window};

/// Specification of the family. GGUF files of these models name the llama architecture.
pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "mistral",
        reads: &[],
        read: |config| {
            let mut decoder = Plain::new(Family::Mistral).read(config)?;
            decoder.set_reaches(alike(config, decoder.num_layers, window(config, Some(4096))?)?);
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};
