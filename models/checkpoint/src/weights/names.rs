//! Naming conventions of tensors, and parts of tensors.

use std::fmt;

use super::Role;

/// A tensor of a compressor, for vectors of `dim` elements and `windows` windows per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressorPart {
    /// Values to sum, `[windows * dim, hidden_size]`.
    Kv,
    /// Logits of the weights of that sum, in the same shape.
    Gate,
    /// Bias of the logits by position in a window, `[ratio, windows * dim]`.
    Bias,
    /// RMS norm of entries, `[dim]`.
    Norm,
}

/// A tensor of a hyper-connection, which computes `mixes` numbers from `streams` streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HyperPart {
    /// Projection to the mixing coefficients, `[mixes, streams * hidden_size]`.
    Mix,
    /// Bias of the mixing coefficients, `[mixes]`.
    Base,
    /// Factor of each kind of coefficient, `[3]`; `[1]` in the merge before the output head.
    Scale,
}

/// Naming convention of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face: `model.layers.0.self_attn.q_proj.weight`.
    Hf,
    /// GGUF: `blk.0.attn_q.weight`.
    Gguf,
}

impl Naming {
    /// Returns the name of `role`, or `None` if the format has no such tensor. If families differ, it is the most common one.
    pub fn name(self, role: Role) -> Option<String> {
        self.names(role).next()
    }

    /// Returns all names that families use for `role`.
    pub fn names(self, role: Role) -> impl Iterator<Item = String> {
        let names = role.all_names();
        let full = move |prefix: &str, name: &str| match (names.layer, role) {
            (Some(layer), Role::ExpertGate(_, e) | Role::ExpertUp(_, e) | Role::ExpertDown(_, e)) => {
                format!("{prefix}.{layer}.{}", name.replace("{}", &e.to_string()))
            }
            (Some(layer), _) => format!("{prefix}.{layer}.{name}"),
            (None, _) => name.to_owned(),
        };
        let (prefix, own, published, nsa): (_, _, &[&str], &[&str]) = match self {
            Self::Hf => ("model.layers", names.hf, names.published, names.nsa),
            Self::Gguf => ("blk", names.gguf, &[], &[]),
        };
        let published = published
            .iter()
            .flat_map(move |name| ["model.layers", "layers"].map(|prefix| full(prefix, name)));
        own.iter().chain(nsa).map(move |name| full(prefix, name)).chain(published)
    }
}

impl CompressorPart {
    /// Selects the names of this part from those of all parts.
    pub(super) fn pick(self, names: &[&'static [&'static str]; 4]) -> &'static [&'static str] {
        names[self as usize]
    }
}

impl HyperPart {
    /// Selects the names of this part from those of all parts.
    pub(super) fn pick(self, names: &[&'static [&'static str]; 3]) -> &'static [&'static str] {
        names[self as usize]
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hf => "safetensors",
            Self::Gguf => "GGUF",
        })
    }
}
