//! A kernel, and one specialisation of it.

use crate::source::{Choice, ComposeError, Modules, compose};
use std::ops::RangeInclusive;

/// Lanes that broadcast a load to each other.
const BROADCAST: u32 = 8;

/// How a kernel uses one binding of group 0. Binding 0 is always the uniform parameter block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
}

/// A kernel: one `.wgsl` file, with the file's stem as name and entry point.
#[derive(Debug)]
pub struct Kernel {
    /// File stem and entry point.
    pub name: &'static str,
    /// The text of the file, imports unresolved.
    pub wgsl: &'static str,
    /// Tables that the file may import from.
    pub modules: &'static [Modules],
    /// Size of the uniform parameter block at binding 0.
    pub params_bytes: usize,
    /// Storage bindings 1, 2, ... in order.
    pub bindings: &'static [Access],
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
    /// Storage bindings 1, 2, ... in order: the kernel's, unless the modules chosen add some.
    pub bindings: &'static [Access],
}

impl Variant {
    /// The kernel with the defaults of its file.
    #[must_use]
    pub fn new(kernel: &'static Kernel) -> Self {
        Self { kernel, choices: Vec::new(), constants: Vec::new(), bindings: kernel.bindings }
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

    /// Sets the storage bindings of a variant whose modules add some.
    #[must_use]
    pub fn bindings(mut self, bindings: &'static [Access]) -> Self {
        self.bindings = bindings;
        self
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
    }
}

impl Eq for Variant {}

impl std::hash::Hash for Variant {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.kernel, state);
        self.choices.hash(state);
        self.constants.hash(state);
    }
}
