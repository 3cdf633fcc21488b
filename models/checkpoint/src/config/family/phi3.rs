use super::{Gguf, Hf, Spec};
use crate::config::gguf;
use crate::config::hf::{Fields, KvHeads, Plain, alike, refuse_biases, section, window};
use crate::{Family, Reach};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "phi3",
        reads: &["partial_rotary_factor", "original_max_position_embeddings"],
        read: |config| {
            refuse_biases(config)?;
            let plain = Plain {
                kv_heads: KvHeads::Queries,
                rms_norm_eps: 1e-5,
                partial_rotary: Some(1.0),
                rope: |config, site| {
                    let section = with_original(config, section(config)?.unwrap_or_default());
                    site.rope(config, &section)
                },
                ..Plain::new(Family::Phi3)
            };
            let mut decoder = plain.read(config)?;
            decoder.set_reaches(alike(config, decoder.num_layers, window(config, None)?)?);
            Ok(decoder)
        },
    }),
    gguf: Some(Gguf {
        architecture: "phi3",
        reads: &["attention.sliding_window"],
        read: |keys| {
            let mut decoder = gguf::Plain::new(Family::Phi3).read(keys)?;
            if let Some(window) = keys.u32("attention.sliding_window")?.filter(|window| *window > 0) {
                decoder.set_reaches(vec![Reach::Window(window); decoder.num_layers as usize]);
            }
            Ok(decoder)
        },
    }),
    ..Spec::NONE
};

/// Adds the original context to the rope section, since these configurations store it outside.
fn with_original(config: &Fields, mut section: Fields) -> Fields {
    const FIELD: &str = "original_max_position_embeddings";
    if section.get("long_factor").is_some() && section.get(FIELD).is_none() {
        let original = config.get(FIELD).cloned().unwrap_or_else(|| 4096.into());
        section.0.insert(FIELD.into(), original);
    }
    section
}
