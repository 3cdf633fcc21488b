//! A kernel, and one specialisation of it.

use crate::source::{Choice, ComposeError, Modules, compose};
use crate::{Binding, ParamsLayout};
use std::ops::RangeInclusive;

/// Lanes that broadcast a load to each other.
const BROADCAST: u32 = 8;

/// The part of a model's step that a kernel computes, by which device time is summed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Role {
    /// Attention itself, and merging of its partial results.
    Attention,
    /// Scores of blocks or tokens, and the choice among them.
    Selection,
    /// Writes, copies and conversions of cached keys and values.
    Cache,
    /// Products with weights, norms, activations, experts.
    Dense,
    /// Logits, and the tokens drawn from them.
    Sampling,
    /// Work outside of a model's step.
    Other,
}

/// A kernel: one `.wgsl` file, with the file's stem as name and entry point.
#[derive(Debug)]
pub struct Kernel {
    /// File stem and entry point.
    pub name: &'static str,
    /// The part of a step that it computes.
    pub role: Role,
    /// The text of the file, imports unresolved.
    pub wgsl: &'static str,
    /// Tables that the file may import from.
    pub modules: &'static [Modules],
    /// The uniform parameter block at binding 0.
    pub params: ParamsLayout,
    /// Storage bindings in order, those that only some variants have among them.
    pub bindings: &'static [Binding],
}

/// One specialisation of a kernel: what fills its import slots, and its `override` constants.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Import slots.
    pub choices: Vec<(&'static str, Choice)>,
    /// `override` constants.
    pub constants: Vec<(&'static str, u32)>,
    /// Storage bindings 1, 2, ... in order: those of the kernel that the modules chosen have.
    pub bindings: Vec<Binding>,
}

impl Variant {
    /// The kernel with the defaults of its file.
    #[must_use]
    pub fn new(kernel: &'static Kernel) -> Self {
        let bindings = kernel.bindings.iter().filter(|binding| !binding.optional).copied().collect();
        Self { kernel, choices: Vec::new(), constants: Vec::new(), bindings }
    }

    /// Fills import slot `slot` with a shared module.
    #[must_use]
    pub fn module(mut self, slot: &'static str, module: &'static str) -> Self {
        self.choices.push((slot, Choice::Module(module)));
        self
    }

    /// Fills import slot `slot` with a number that may size a function-local array.
    #[must_use]
    pub fn size(mut self, slot: &'static str, n: u32) -> Self {
        self.choices.push((slot, Choice::Size(n)));
        self
    }

    /// Sets an `override` constant.
    #[must_use]
    pub fn constant(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }

    /// Adds the optional binding `name`.
    ///
    /// # Panics
    /// When the kernel declares none of that name.
    #[must_use]
    pub fn with(mut self, name: &str) -> Self {
        let declared = self.kernel.bindings.iter().any(|binding| binding.name == name);
        assert!(declared, "kernel {} has no binding {name}", self.kernel.name);
        let here = |binding: &&Binding| binding.name == name || self.bindings.contains(binding);
        self.bindings = self.kernel.bindings.iter().filter(here).copied().collect();
        self
    }

    /// Adds the optional binding `name` where it is `present`.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[must_use]
    pub fn with_if(self, name: &str, present: bool) -> Self {
        if present { self.with(name) } else { self }
    }

    /// Lanes that all subgroups of an adapter must have: the number in slot `SUBGROUP`, where the kernel has that slot; at
    /// least 8 for modules that broadcast; otherwise any.
    #[must_use]
    pub fn subgroups(&self) -> RangeInclusive<u32> {
        let lanes = self.choices.iter().find_map(|(slot, choice)| match choice {
            Choice::Size(lanes) if *slot == "SUBGROUP" => Some(*lanes..=*lanes),
            Choice::Module(module) if module.contains("broadcast") => Some(BROADCAST..=u32::MAX),
            _ => None,
        });
        lanes.unwrap_or(1..=u32::MAX)
    }

    /// Lanes of a workgroup, where the caller chooses them: the number in slot `WG`.
    #[must_use]
    pub fn lanes(&self) -> Option<u32> {
        self.choices.iter().find_map(|(slot, choice)| match choice {
            Choice::Size(lanes) if *slot == "WG" => Some(*lanes),
            _ => None,
        })
    }

    /// The complete WGSL text, `override` constants still open.
    ///
    /// # Errors
    /// [`ComposeError`] when an import or a slot does not exist.
    pub fn wgsl(&self) -> Result<String, ComposeError> {
        compose(self.kernel.name, self.kernel.wgsl, self.kernel.modules, &self.choices)
    }
}

impl PartialEq for Variant {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernel, other.kernel)
            && self.choices == other.choices
            && self.constants == other.constants
            && self.bindings == other.bindings
    }
}

impl Eq for Variant {}

impl std::hash::Hash for Variant {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.kernel, state);
        self.choices.hash(state);
        self.constants.hash(state);
        self.bindings.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn variants_that_bind_other_buffers_are_not_the_same() {
        let plain = Variant::new(&crate::kernel::paged_reduce::KERNEL);
        let more = plain.clone().with("sinks");
        assert_ne!(plain, more);
        assert_eq!(HashSet::from([plain.clone(), more, plain]).len(), 2);
    }
}
