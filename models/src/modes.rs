//! Modes of attention and of the KV cache, and the models that they work with.
//!
//! [`Mode::lacks`] is the one table: the decoder refuses from it, `doctor` prints it, and the table of the documentation
//! is compared with it. What depends on the device or on a size, not on the kind of model, is checked where it is used.

use std::fmt;

use crate::{DecoderConfig, ModelError, Reach};

/// Attention of a model, as far as modes differ by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionForm {
    /// Keys and values by heads; every layer attends to all tokens, or some do beside windows and chunks.
    Heads,
    /// Keys and values by heads, in sliding windows or chunks alone.
    Windows,
    /// Latents that all heads share (MLA).
    Latents,
    /// Latents, of which an indexer chooses tokens.
    IndexedLatents,
    /// Windows beside entries that stand for several tokens each (DeepSeek V4).
    Compressed,
    /// Means of blocks, selected blocks and a window, as the model was trained with (NSA).
    Native,
}

impl AttentionForm {
    /// Every value, in the order of the table.
    pub const ALL: [Self; 6] =
        [Self::Heads, Self::Windows, Self::Latents, Self::IndexedLatents, Self::Compressed, Self::Native];

    /// Finds the form of a model.
    #[must_use]
    pub fn of(config: &DecoderConfig) -> Self {
        match (config.latent.is_some(), config.indexer.is_some(), config.compressed.is_some()) {
            (_, _, true) => Self::Compressed,
            _ if config.nsa.is_some() => Self::Native,
            (true, true, _) => Self::IndexedLatents,
            (true, false, _) => Self::Latents,
            (false, ..) if config.layers.iter().any(|layer| layer.reach == Reach::Full) => Self::Heads,
            (false, ..) => Self::Windows,
        }
    }
}

impl fmt::Display for AttentionForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heads => "full attention",
            Self::Windows => "windows or chunks alone",
            Self::Latents => "latents (MLA)",
            Self::IndexedLatents => "latents with an indexer",
            Self::Compressed => "compressed attention",
            Self::Native => "native sparse attention (NSA)",
        })
    }
}

/// Mode that a decoder may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Attention to the blocks that a policy selects.
    Sparse,
    /// Keys and values, or latents, in codes of 8 bits.
    CodedKv,
    /// A context larger than the device's pool, streamed from memory of the host.
    HostKv,
    /// A context in memory of the host, of which the device gets the blocks that a policy selects.
    SparseHostKv,
}

impl Mode {
    /// Every value, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Sparse, Self::SparseHostKv, Self::CodedKv, Self::HostKv];

    /// Why the mode does not work with a form of attention: what it needs and the form lacks. `None` where it works.
    #[must_use]
    pub fn lacks(self, form: AttentionForm) -> Option<&'static str> {
        use AttentionForm::{Compressed, Heads, IndexedLatents, Latents, Native, Windows};
        match (self, form) {
            (_, Heads) | (Self::CodedKv, _) => None,
            (Self::HostKv, Windows | Latents) => None,
            (Self::Sparse | Self::SparseHostKv, Windows | Latents | IndexedLatents | Compressed) => {
                Some("layers of full attention to keys and values")
            }
            (Self::HostKv, IndexedLatents) => Some(
                "attention to all latents: an indexer scores every token and attends to few of them, anywhere",
            ),
            (Self::Sparse | Self::SparseHostKv, Native) => {
                Some("a choice that is left to a policy: the model selects its blocks itself")
            }
            (Self::HostKv, Native) => {
                Some("attention to all keys in turn: means of all blocks choose the few that are attended")
            }
            (Self::HostKv, Compressed) => {
                Some("one cache a layer: compressed attention keeps windows, entries and states beside")
            }
        }
    }

    /// Refuses the mode to a model that lacks what it needs.
    pub(crate) fn check(self, config: &DecoderConfig) -> Result<(), ModelError> {
        let form = AttentionForm::of(config);
        self.lacks(form).map_or(Ok(()), |lacks| Err(ModelError::Mode { mode: self, form, lacks }))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sparse => "a sparse policy",
            Self::CodedKv => "a KV cache in codes",
            Self::HostKv => "KV in memory of the host",
            Self::SparseHostKv => "a sparse policy over KV in memory of the host",
        })
    }
}
