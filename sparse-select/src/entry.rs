//! Entries of policies in a registry: names, keys and constructor.

use crate::{Key, Params, Policy, SpecError};

/// Builds a policy from its checked parameters.
pub type Build = fn(&Params<'_>) -> Result<Box<dyn Policy>, SpecError>;

/// A policy that can be built from a spec.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Name in a spec.
    pub name: &'static str,
    /// Names in published configurations. In all names, case is ignored and `_` equals `-`.
    pub aliases: &'static [&'static str],
    /// Parameters with their defaults.
    pub keys: &'static [Key],
    /// The constructor.
    pub build: Build,
}

impl Entry {
    /// A policy without aliases.
    #[must_use]
    pub const fn new(name: &'static str, keys: &'static [Key], build: Build) -> Self {
        Self { name, aliases: &[], keys, build }
    }

    /// Sets the names in published configurations.
    #[must_use]
    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}
