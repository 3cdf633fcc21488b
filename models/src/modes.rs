//! Modes of attention and of the KV cache, and the models that they work with.
//!
//! [`Mode::lacks`] is the one table: the decoder refuses from it, `doctor` prints it, and the table of the documentation
//! is compared with it. What depends on the device or on a size, not on the kind of model, is checked where it is used.

use std::fmt;

use crate::{DecoderConfig, Reach};

/// Form of a model's attention, as far as modes depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionForm {
    /// Keys and values per head. All layers have full attention, or some have windows or chunks instead.
    Heads,
    /// Keys and values per head, in sliding windows or chunks alone.
    Windows,
    /// Latents that all heads share (MLA).
    Latents,
    /// Latents, with an indexer that selects tokens.
    IndexedLatents,
    /// Windows, and entries that represent several tokens each (DeepSeek V4).
    Compressed,
    /// Means of blocks, selected blocks and a window, as the model was trained with (NSA).
    Native,
}

impl AttentionForm {
    /// All forms, in the order of the documentation's table of modes.
    pub const ALL: [Self; 6] =
        [Self::Heads, Self::Windows, Self::Latents, Self::IndexedLatents, Self::Compressed, Self::Native];

    /// Returns the form of a model.
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

/// Mode of a decoder that may be requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Attention to the blocks that a policy selects.
    Sparse,
    /// Keys and values, or latents, as 8-bit codes.
    CodedKv,
    /// A context larger than the device's pool, streamed from host memory.
    HostKv,
    /// A context in host memory, from which the device gets the blocks that a policy selects.
    SparseHostKv,
}

impl Mode {
    /// All values, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Sparse, Self::SparseHostKv, Self::CodedKv, Self::HostKv];

    /// Returns what the mode needs and a form of attention lacks; `None` if it works.
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
