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

    /// Returns the content that stands for a value; `None` if the slot has no content for it.
    fn choice(&self, value: Self::Value) -> Option<SlotContent>;

    /// Returns the value that a content stands for; `None` if the content does not belong to this slot.
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
    /// Creates the slot `name`, with a module in `modules` for each value. If values share a module, the slot reads
    /// back as the first of these values.
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
    /// Number of loads that a lane issues at once.
    AHEAD,
    /// Number of tokens of a block that is not a block of the cache; the kernel's text may name another unit.
    BLOCK,
    /// Number of tokens of a block of the cache.
    BLOCK_SIZE,
    /// Number of chunks of its keys that a lane loads at a time.
    CHUNKS_AHEAD,
    /// Number of query heads of a KV head that share each read.
    GROUP,
    /// Number of elements of a head.
    HEAD_DIM,
    /// Number of query heads for which each load of a key, digest or latent is used.
    HEADS,
    /// Number of elements of a latent without its rope part.
    LATENT,
    /// Number of loads in which a lane stages its share of what the workgroup reads.
    LOADS,
    /// Number of cache blocks in a block that is selected as a whole.
    PAGES,
    /// Number of parts that the work is divided into; each kernel's text says which.
    PARTS,
    /// Number of elements of the rope part of a latent.
    ROPE,
    /// Number of rows of a workgroup or of a lane; each kernel's text says which.
    ROWS,
    /// Number of tokens of a block that is selected as a whole.
    SELECT_BLOCK,
    /// Number of lanes that share a row.
    SHARE,
    /// Number of pieces of a head or row, each as wide as a load or a matrix.
    SPANS,
    /// Number of tokens from one sampled token to the next.
    STRIDE,
    /// Number of lanes of a subgroup.
    SUBGROUP,
    /// Number of subgroups of a workgroup.
    SUBGROUPS,
    /// Number of lanes of a workgroup, in kernels whose caller chooses the number.
    WG,
    /// Number of elements of a row, or of matrices side by side; each kernel's text says which.
    WIDTH,
}

/// Reduction over a workgroup.
pub const REDUCE: OneOf<Level> =
    OneOf::new("reduce", &[(Level::Baseline, "reduce_tree"), (Level::Subgroup, "reduce_subgroup")]);
/// Prefix sums over a workgroup.
pub const SCAN: OneOf<Level> =
    OneOf::new("scan", &[(Level::Baseline, "scan_tree"), (Level::Subgroup, "scan_subgroup")]);
