//! The families of models, one file each: what their checkpoints state in addition to common fields, and what they leave out.
//!
//! A family is a [`Spec`]. The readers of both formats find it by its name, refuse fields that change the result and that it does
//! not read, have it read the rest, and validate what comes of that.

mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt_oss;
mod granite;
mod llama;
mod llama4;
mod ministral;
mod ministral3;
mod mistral;
mod nsa;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod smollm3;

use super::gguf::Keys;
use super::hf::Fields;
use super::{ConfigError, DecoderConfig};

macro_rules! families {
    ($($variant:ident, $module:ident, $doc:literal;)*) => {
        /// A family of models with the same forward pass.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Family {
            $(#[doc = $doc] $variant,)*
        }

        impl Family {
            /// Every family.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the family as its checkpoints describe it.
            pub(crate) fn spec(self) -> &'static Spec {
                match self {
                    $(Self::$variant => &$module::SPEC,)*
                }
            }
        }
    };
}

families! {
    Llama, llama, "Llama 2, 3, and what is trained in their shape (SmolLM2).";
    Mistral, mistral, "Mistral 7B: Llama with a sliding window.";
    Ministral, ministral, "Ministral: Mistral with a window in some layers.";
    Ministral3, ministral3, "Ministral 3: Llama with YaRN and a factor on queries that grows with the position.";
    Qwen2, qwen2, "Qwen2: Llama with biases on the query, key and value projections.";
    Qwen3, qwen3, "Qwen3: Llama with RMS norms on query and key heads.";
    Qwen3Moe, qwen3_moe, "Qwen3 with experts.";
    Gemma2, gemma2, "Gemma 2: windows in every other layer, norms around both halves, bounds on scores and logits.";
    Gemma3, gemma3, "Gemma 3: windows with a rotation of their own, norms around both halves, GELU gates.";
    Phi3, phi3, "Phi 3 mini with 4k, Phi 4: Llama with fused projections, and a window in some.";
    SmolLm3, smollm3, "SmolLM3: Llama of which every fourth layer does not rotate.";
    Granite, granite, "Granite 3: Llama with factors on embeddings, scores, what blocks add, and logits.";
    Olmo2, olmo2, "OLMo 2: norms behind both halves, and of all heads as one.";
    Glm4, glm4, "GLM 4: half of a head rotates, norms around both halves, fused gates and ups.";
    GptOss, gpt_oss, "gpt-oss: windows in every other layer, sinks, biases and experts.";
    Llama4, llama4, "Llama 4: chunked attention, layers that do not rotate, and a shared expert.";
    Nsa, nsa, "NSA of flash-linear-attention: Llama with gates over means of blocks, selected blocks and a window.";
    DeepseekV2, deepseek_v2, "DeepSeek V2: latent attention, queries that may have no latent, and experts in groups.";
    DeepseekV3, deepseek_v3, "DeepSeek V3: latent attention, and experts in groups.";
    DeepseekV32, deepseek_v32, "DeepSeek V3.2: the same to tokens that an indexer chooses.";
    DeepseekV4, deepseek_v4, "DeepSeek V4: windows and compressed entries, experts by token id, and several residual streams.";
}

impl Family {
    /// Returns the `model_type` of the family in `config.json`; `None` if such checkpoints are not supported.
    #[must_use]
    pub fn model_type(self) -> Option<&'static str> {
        self.spec().hf.as_ref().map(|hf| hf.model_type)
    }

    /// Returns the name of the architecture in GGUF metadata; `None` if such files are not supported.
    #[must_use]
    pub fn architecture(self) -> Option<&'static str> {
        self.spec().gguf.as_ref().map(|gguf| gguf.architecture)
    }
}

/// Names of models that differ from a family only in their sizes.
const ALIASES: &[(&str, &str)] = &[("kimi_k2", "deepseek_v3")];

/// A family, as its checkpoints describe it.
pub(crate) struct Spec {
    /// The family's `config.json`, if supported.
    pub(super) hf: Option<Hf>,
    /// The family's metadata in GGUF files, if supported.
    pub(super) gguf: Option<Gguf>,
    /// Function that says whether a tensor of safetensors is ignored, because it belongs to layers that draft tokens.
    pub(crate) unread: fn(&DecoderConfig, &str) -> bool,
}

impl Spec {
    /// A family without any supported format.
    pub(super) const NONE: Self = Self { hf: None, gguf: None, unread: |_, _| false };
}

/// A family in `config.json`.
pub(super) struct Hf {
    pub(super) model_type: &'static str,
    /// Fields that the family reads. In other families they must have neutral values.
    pub(super) reads: &'static [&'static str],
    pub(super) read: fn(&Fields) -> Result<DecoderConfig, ConfigError>,
}

/// A family in GGUF metadata.
pub(super) struct Gguf {
    pub(super) architecture: &'static str,
    /// Keys that the family reads, without the prefix `ARCHITECTURE.`. In other families they must have neutral values.
    pub(super) reads: &'static [&'static str],
    pub(super) read: fn(&Keys<'_>) -> Result<DecoderConfig, ConfigError>,
}

impl Hf {
    /// Finds the family named `found`.
    pub(super) fn find(found: &str) -> Result<&'static Self, ConfigError> {
        let all = Family::ALL.iter().filter_map(|family| family.spec().hf.as_ref());
        let alias = ALIASES.iter().find(|(alias, _)| *alias == found).map_or(found, |(_, name)| *name);
        all.clone().find(|hf| hf.model_type == alias).ok_or_else(|| ConfigError::Family {
            found: found.to_owned(),
            known: all.map(|hf| hf.model_type).collect(),
        })
    }
}

impl Gguf {
    /// Finds the family named `found`.
    pub(super) fn find(found: &str) -> Result<&'static Self, ConfigError> {
        let all = Family::ALL.iter().filter_map(|family| family.spec().gguf.as_ref());
        all.clone().find(|gguf| gguf.architecture == found).ok_or_else(|| ConfigError::Family {
            found: found.to_owned(),
            known: all.map(|gguf| gguf.architecture).collect(),
        })
    }
}
