//! Naming conventions of tensors.

use std::fmt;

use super::Role;

/// Naming convention of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face: `model.layers.0.self_attn.q_proj.weight`.
    Hf,
    /// GGUF: `blk.0.attn_q.weight`.
    Gguf,
}

impl Naming {
    /// Returns the name of `role`; `None` if the format has no such tensor. If model families use different names,
    /// returns the most common one.
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

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hf => "safetensors",
            Self::Gguf => "GGUF",
        })
    }
}
