//! Policies by name.

use crate::{
    Entry, Phases, Policy, Spec, SpecError, dsa, layered, nsa,
    policy::{esa, flashprefill, full, gsa, gsa_ucm, kvcomp, quest, skip_softmax, streaming, vertical_slash},
    xattn,
};

/// The policies that a spec can name: the policies of this crate, and any others that the user registers.
#[derive(Clone, Debug)]
pub struct Registry {
    entries: Vec<Entry>,
}

impl Registry {
    /// The policies of this crate.
    #[must_use]
    pub fn builtin() -> Self {
        let entries = vec![
            full::ENTRY,
            streaming::ENTRY,
            vertical_slash::ENTRY,
            gsa::ENTRY,
            gsa_ucm::ENTRY,
            esa::ENTRY,
            esa::KVSTAR_ENTRY,
            kvcomp::ENTRY,
            xattn::ENTRY,
            xattn::BSA_ENTRY,
            flashprefill::ENTRY,
            skip_softmax::ENTRY,
            quest::ENTRY,
            dsa::ENTRY,
            nsa::ENTRY,
        ];
        Self { entries }
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// [`SpecError::DuplicateName`] when its name or one of its aliases is taken.
    pub fn register(&mut self, entry: Entry) -> Result<(), SpecError> {
        for &name in entry.aliases.iter().chain([&entry.name]) {
            if self.find(name).is_some() {
                return Err(SpecError::DuplicateName { name });
            }
        }
        self.entries.push(entry);
        Ok(())
    }

    /// All registered policies, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The policy with this name or alias.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        let same = |a: &str| {
            a.len() == name.len() && a.bytes().zip(name.bytes()).all(|(x, y)| canonical(x) == canonical(y))
        };
        self.entries.iter().find(|e| same(e.name) || e.aliases.iter().any(|a| same(a)))
    }

    /// Builds the policy of a spec.
    ///
    /// # Errors
    /// [`SpecError`]: for an unknown name it lists the valid names, for an unknown key the valid keys, and
    /// for a bad value what was expected.
    pub fn build(&self, spec: &Spec) -> Result<Box<dyn Policy>, SpecError> {
        let entry = self.find(&spec.name).ok_or_else(|| SpecError::UnknownName {
            name: spec.name.clone(),
            valid: self.entries.iter().map(|e| e.name).collect(),
        })?;
        let policy = layered::build(entry, spec)?;
        match &spec.decode {
            None => Ok(policy),
            Some(decode) => Ok(Box::new(Phases::new(policy.into(), self.build(decode)?.into())?)),
        }
    }
}

/// Builds a policy of this crate from the text of a spec.
///
/// ```
/// use sparse_select::build;
///
/// let policy = build("quest:page_budget=64,block_size=16")?;
/// assert_eq!((policy.name(), policy.block_size().get()), ("quest", 16));
/// let error = build("quest:pages=64").unwrap_err().to_string();
/// assert!(error.contains("page_budget"), "an error lists the keys: {error}");
/// # Ok::<(), sparse_select::SpecError>(())
/// ```
///
/// # Errors
/// As [`Spec::from_str`](core::str::FromStr::from_str) and [`Registry::build`].
pub fn build(spec: &str) -> Result<Box<dyn Policy>, SpecError> {
    Registry::builtin().build(&spec.parse()?)
}

const fn canonical(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}
