//! Import slots of kernels, each with the type of its values: a slot is named once, and only takes values that it has
//! a module for. [`Variant::set`](crate::Variant::set) fills one, [`Variant::get`](crate::Variant::get) reads it
//! back.

use crate::Level;
use crate::source::SlotContent;

/// An import slot.
pub trait Slot {
    /// The type of the slot's values.
    type Value: Copy + std::fmt::Debug;

    /// Name of the slot in `#import NAME = default`.
    fn name(&self) -> &'static str;

    /// Returns the content for a value, if the slot has one.
    fn choice(&self, value: Self::Value) -> Option<SlotContent>;

    /// Returns the value of a content, if it belongs to this slot.
    fn value(&self, choice: SlotContent) -> Option<Self::Value>;
}

/// Slot of a number, which may be the size of a function-local array.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub &'static str);

/// Slot of a number that is 1 for true and 0 for false.
#[derive(Clone, Copy, Debug)]
pub struct Flag(pub &'static str);

/// Slot of a shared module, one for each value.
#[derive(Clone, Copy, Debug)]
pub struct OneOf<T: 'static> {
    name: &'static str,
    modules: &'static [(T, &'static str)],
}

impl<T> OneOf<T> {
    /// Creates the slot `name`, which `modules` fill, one for each value. Values that share a module are read back as
    /// the first of them.
    #[must_use]
    pub const fn new(name: &'static str, modules: &'static [(T, &'static str)]) -> Self {
        Self { name, modules }
    }
}

impl Slot for Number {
    type Value = u32;

    fn name(&self) -> &'static str {
        self.0
    }

    fn choice(&self, value: u32) -> Option<SlotContent> {
        Some(SlotContent::Size(value))
    }

    fn value(&self, choice: SlotContent) -> Option<u32> {
        match choice {
            SlotContent::Size(n) => Some(n),
            SlotContent::Module(_) => None,
        }
    }
}

impl Slot for Flag {
    type Value = bool;

    fn name(&self) -> &'static str {
        self.0
    }

    fn choice(&self, value: bool) -> Option<SlotContent> {
        Some(SlotContent::Size(value.into()))
    }

    fn value(&self, choice: SlotContent) -> Option<bool> {
        match choice {
            SlotContent::Size(n) => Some(n != 0),
            SlotContent::Module(_) => None,
        }
    }
}

impl<T: Copy + PartialEq + std::fmt::Debug> Slot for OneOf<T> {
    type Value = T;

    fn name(&self) -> &'static str {
        self.name
    }

    fn choice(&self, value: T) -> Option<SlotContent> {
        let module = self.modules.iter().find(|(of, _)| *of == value);
        module.map(|(_, module)| SlotContent::Module(module))
    }

    fn value(&self, choice: SlotContent) -> Option<T> {
        let value = self.modules.iter().find(|(_, module)| choice == SlotContent::Module(module));
        value.map(|(value, _)| *value)
    }
}

macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        $($(#[$meta])* pub const $name: Number = Number(stringify!($name));)*
    };
}

numbers! {
    /// Loads that a lane issues at once.
    AHEAD,
    /// Tokens of a block that is not of the cache; in units that a text names.
    BLOCK,
    /// Tokens of a block of the cache.
    BLOCK_SIZE,
    /// Chunks of its keys that a lane loads at a time.
    CHUNKS_AHEAD,
    /// Query heads of a KV head that share each read.
    GROUP,
    /// Elements of a head.
    HEAD_DIM,
    /// Query heads for which each load of a key, digest or latent is used.
    HEADS,
    /// Elements of a latent without its rope part.
    LATENT,
    /// Loads with which a lane stages its part of the workgroup's reads.
    LOADS,
    /// Blocks of the cache in a block that is selected as a whole.
    PAGES,
    /// Number of parts that the work is divided into; each kernel's text says which.
    PARTS,
    /// Elements of the rope part of a latent.
    ROPE,
    /// Rows of a workgroup or lane; a text says which.
    ROWS,
    /// Tokens of a block that is selected as a whole.
    SELECT_BLOCK,
    /// Lanes that share a row.
    SHARE,
    /// Pieces of a head or row, each as wide as a load or a matrix.
    SPANS,
    /// Tokens from one sampled token to the next.
    STRIDE,
    /// Lanes of a subgroup.
    SUBGROUP,
    /// Subgroups of a workgroup.
    SUBGROUPS,
    /// Number of lanes of a workgroup, for kernels whose host chooses it.
    WG,
    /// Elements of a row, or matrices side by side; a text says which.
    WIDTH,
}

/// Reduction over a workgroup.
pub const REDUCE: OneOf<Level> =
    OneOf::new("reduce", &[(Level::Baseline, "reduce_tree"), (Level::Subgroup, "reduce_subgroup")]);
/// Prefix sums over a workgroup.
pub const SCAN: OneOf<Level> =
    OneOf::new("scan", &[(Level::Baseline, "scan_tree"), (Level::Subgroup, "scan_subgroup")]);
