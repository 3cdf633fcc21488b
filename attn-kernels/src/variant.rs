//! A kernel with its declaration, and one specialisation of it.

use crate::kernel::{CacheSlot, KvLayout, KvShape, Stored};
use crate::profile::{Matrices, Registers};
use crate::sizes::Sizes;
use crate::slot::{Number, OneOf, Slot, WG};
use crate::source::{ComposeError, Modules, SlotContent, compose};
use crate::{Access, Binding, Level, Params, ParamsLayout};
use kvblock::KvDtype;
use std::ops::RangeInclusive;

/// Number of lanes that broadcast a load to each other.
const BROADCAST: u32 = 8;

/// Length of the text of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TextLength {
    /// The compiler knows the number of iterations of loops and unrolls them, and a lane issues several loads at once.
    Full,
    /// Like `Full`, but the loops over tiles are not unrolled, and a lane of an attention kernel issues fewer loads
    /// at once. For Intel's GPUs: their compiler moves loads up across all unrolled code, and the loaded values then
    /// exceed the 128 registers of a lane.
    Middle,
    /// Loops are not unrolled, and a lane issues one load at a time, which hides no latency. For software drivers:
    /// their compile time grows faster than the length of the text. Values that all lanes read from workgroup memory
    /// stay in registers.
    Short,
}

/// Contents of slots for [`TextLength::Middle`], in kernels that have these slots; numbers are maxima.
const MIDDLE: [(&str, SlotContent); 4] = [
    ("steps", SlotContent::Module("trips_hidden")),
    ("LATENTS_AHEAD", SlotContent::Size(1)),
    ("VALUES_AHEAD", SlotContent::Size(4)),
    ("CHUNKS_AHEAD", SlotContent::Size(2)),
];

/// Content of slots for [`TextLength::Short`], in kernels that have them.
const SHORT: [(&str, SlotContent); 4] = [
    ("trips", SlotContent::Module("trips_hidden")),
    ("AHEAD", SlotContent::Size(1)),
    ("VALUES_AHEAD", SlotContent::Size(1)),
    ("queries", SlotContent::Module("queries_shuffled")),
];

/// Vendor of the GPUs that get [`TextLength::Middle`]: Intel's PCI id.
const MIDDLE_VENDOR: u32 = 0x8086;

impl TextLength {
    /// Returns the length for GPUs of the vendor with this PCI id. `None` stands for a processor.
    #[must_use]
    pub fn of_vendor(vendor: Option<u32>) -> Self {
        match vendor {
            None => Self::Short,
            Some(MIDDLE_VENDOR) => Self::Middle,
            Some(_) => Self::Full,
        }
    }
}

/// Range that allows subgroups of any size.
pub(crate) const ANY: RangeInclusive<u32> = 1..=u32::MAX;

/// The part of a model's step that a kernel computes. Device time is summed for each part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum KernelRole {
    /// Attention itself, and merging of its partial results.
    Attention,
    /// Scores of blocks or tokens, and selection by them.
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
    /// File stem, which is also the name of the entry point.
    pub name: &'static str,
    /// The part of a step that the kernel computes.
    pub role: KernelRole,
    /// The text of the file, with unresolved imports.
    pub wgsl: &'static str,
    /// Tables of shared modules that the file may import.
    pub modules: &'static [Modules],
    /// The uniform parameter block at binding 0.
    pub params: ParamsLayout,
    /// Storage bindings in order, including the bindings that only some variants have.
    pub bindings: &'static [Binding],
    /// Function that returns the number of workgroups of a dispatch in each dimension.
    pub grid: Grid,
    /// Variants, documentation and test cases; `None` for a kernel that is in no catalogue.
    pub declared: Option<Declaration>,
}

/// Function that returns the number of workgroups of a dispatch in each dimension, for the bytes of its parameters and
/// for the variant of its pipeline.
pub type Grid = fn(&[u8], &Variant) -> [u32; 3];

/// Variants of a kernel, each with the part of its name that states its features.
pub type Listed = Vec<(String, Variant)>;

/// Declaration of a kernel for catalogues, tests and documentation.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Function that lists the variants for a model's sizes, one for each choice of modules.
    pub listed: fn(&Sizes) -> Listed,
    /// The variants, described in Markdown.
    pub variants: &'static str,
    /// Bytes of storage buffers that a dispatch moves, in Markdown.
    pub bytes: &'static str,
    /// Maker of the cases of the self-test.
    pub cases: DeclaredCases,
}

/// Maker of the cases of a kernel's self-test; without the feature `self-test` it makes none.
#[derive(Clone, Copy, Debug)]
pub struct DeclaredCases(#[cfg(feature = "self-test")] pub(crate) Option<crate::self_test::Cases>);

impl DeclaredCases {
    /// The maker of kernels without cases.
    #[cfg(not(feature = "self-test"))]
    pub const NONE: Self = Self();
    /// The maker of kernels without cases.
    #[cfg(feature = "self-test")]
    pub const NONE: Self = Self(None);

    /// Creates a maker from the function `cases`.
    #[cfg(feature = "self-test")]
    #[must_use]
    pub const fn by(cases: crate::self_test::Cases) -> Self {
        Self(Some(cases))
    }
}

/// One specialisation of a kernel: the choices for its import slots, and its `override` constants.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Contents of import slots.
    pub choices: Vec<(&'static str, SlotContent)>,
    /// `override` constants.
    pub constants: Vec<(&'static str, u32)>,
    /// Storage bindings 1, 2, ... in order, as the kernel has them with the chosen modules.
    pub bindings: Vec<Binding>,
    /// Level of adapter that the variant needs.
    pub level: Level,
    /// Range that the number of lanes of every subgroup of an adapter must lie in, from [`Level::Subgroup`] on.
    pub subgroups: RangeInclusive<u32>,
    /// Register class that the division of the work is for; `None` if the kernel has one division for all devices.
    pub registers: Option<Registers>,
    /// Whether the variant pays on software drivers only.
    pub software: bool,
    /// Layout and element type of the paged cache that the variant reads or writes; `None` if it is not made for one.
    pub cache: Option<(KvLayout, KvDtype)>,
    /// Import slot of the data that the variant is for, what users call the data, and its type: `KV`, `fp8`.
    pub data: Option<[&'static str; 3]>,
}

impl Variant {
    /// Creates the variant with the defaults of the kernel's file, for every adapter.
    #[must_use]
    pub fn new(kernel: &'static Kernel) -> Self {
        let bindings = kernel.bindings.iter().filter(|binding| !binding.optional).copied().collect();
        Self {
            kernel,
            choices: Vec::new(),
            constants: Vec::new(),
            bindings,
            level: Level::Baseline,
            subgroups: ANY,
            registers: None,
            software: false,
            cache: None,
            data: None,
        }
    }

    /// Fills import slot `slot`.
    ///
    /// # Panics
    /// When the slot is filled already, or has no module for `value`.
    #[must_use]
    pub fn set<S: Slot>(mut self, slot: S, value: S::Value) -> Self {
        let (kernel, name) = (self.kernel.name, slot.name());
        assert!(self.chosen(name).is_none(), "kernel {kernel}: slot {name} is filled twice");
        let choice = slot.choice(value);
        let choice =
            choice.unwrap_or_else(|| panic!("kernel {kernel}: slot {name} has nothing for {value:?}"));
        self.choices.push((name, choice));
        self
    }

    /// Fills the import slot of the data that the variant is for as [`set`](Self::set) does. Messages tell users of
    /// `data` of type `dtype`.
    ///
    /// # Panics
    /// As `set`.
    #[must_use]
    pub fn set_data<S: Slot>(self, slot: S, value: S::Value, [data, dtype]: [&'static str; 2]) -> Self {
        Self { data: Some([slot.name(), data, dtype]), ..self }.set(slot, value)
    }

    /// Fills the import slot of the module that reads or writes a paged cache of this shape.
    ///
    /// # Panics
    /// As [`set`](Self::set).
    #[must_use]
    pub fn over_cache(self, slot: CacheSlot, shape: &KvShape) -> Self {
        self.over_stored(slot.0, shape.stored(), shape.stored())
    }

    /// Fills import slot `slot` with the module for a cache of this layout and type.
    pub(crate) fn over_stored<S: Slot>(self, slot: S, value: S::Value, cache: Stored) -> Self {
        Self { cache: Some(cache), ..self.set_data(slot, value, ["KV", cache.1.name()]) }
    }

    /// Returns what messages call the content of the import slot `slot`, such as `KV in fp8`; `None` if it is not that
    /// of the variant's data.
    pub(crate) fn label(&self, slot: &str) -> Option<String> {
        self.data.filter(|[of, ..]| *of == slot).map(|[_, data, dtype]| format!("{data} in {dtype}"))
    }

    /// Returns the value that fills import slot `slot`; `None` if the slot has its default, or a content that stands
    /// for none of its values.
    #[must_use]
    pub fn get<S: Slot>(&self, slot: S) -> Option<S::Value> {
        slot.value(self.chosen(slot.name())?)
    }

    /// Returns the number that fills import slot `slot`.
    ///
    /// # Panics
    /// When the variant does not fill it.
    #[must_use]
    pub fn number(&self, slot: Number) -> u32 {
        let number = self.get(slot);
        number.unwrap_or_else(|| panic!("a variant of {} leaves slot {} empty", self.kernel.name, slot.0))
    }

    /// Returns the number of workgroups of a dispatch with these parameters, in each dimension.
    ///
    /// # Panics
    /// When the parameters are those of another kernel.
    #[must_use]
    pub fn grid<P: Params>(&self, params: &P) -> [u32; 3] {
        self.grid_of(bytemuck::bytes_of(params))
    }

    /// Returns the [grid](Self::grid) for parameters as bytes.
    ///
    /// # Panics
    /// As `grid`.
    #[must_use]
    pub fn grid_of(&self, params: &[u8]) -> [u32; 3] {
        let kernel = self.kernel;
        let bytes = params.len().next_multiple_of(ParamsLayout::ALIGN);
        assert_eq!(bytes, kernel.params.bytes, "parameter bytes of kernel {}", kernel.name);
        (kernel.grid)(params, self)
    }

    fn chosen(&self, name: &str) -> Option<SlotContent> {
        self.choices.iter().find(|(slot, _)| *slot == name).map(|(_, choice)| *choice)
    }

    /// Sets an `override` constant.
    ///
    /// # Panics
    /// When it is set already.
    #[must_use]
    pub fn constant(mut self, name: &'static str, value: u32) -> Self {
        let set = self.constants.iter().any(|(other, _)| *other == name);
        assert!(!set, "kernel {}: constant {name} is set twice", self.kernel.name);
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

    /// Adds the optional binding `name` if it is `present`.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[must_use]
    pub fn with_if(self, name: &str, present: bool) -> Self {
        if present { self.with(name) } else { self }
    }

    /// Sets the access by which `name` is read, in place of the kernel's declaration.
    ///
    /// # Panics
    /// When the variant has no binding of that name.
    #[must_use]
    pub fn reading(mut self, name: &str, access: Access) -> Self {
        let binding = self.bindings.iter_mut().find(|binding| binding.name == name);
        binding.unwrap_or_else(|| panic!("a variant of {} has no binding {name}", self.kernel.name)).access =
            access;
        self
    }

    /// Marks the variant as divided for lanes with `registers`.
    #[must_use]
    pub fn for_registers(self, registers: Registers) -> Self {
        Self { registers: Some(registers), ..self }
    }

    /// Marks the variant as for software drivers only, not for GPUs.
    #[must_use]
    pub fn for_software(self) -> Self {
        Self { software: true, ..self }
    }

    /// Marks the variant as needing cooperative matrices.
    #[must_use]
    pub fn with_matrices(self) -> Self {
        Self { level: Level::Coop, ..self }
    }

    /// Marks the variant as needing subgroups whose number of lanes is always in `lanes`.
    #[must_use]
    pub fn with_subgroups(self, lanes: RangeInclusive<u32>) -> Self {
        Self { level: self.level.max(Level::Subgroup), subgroups: lanes, ..self }
    }

    /// Lets lanes broadcast loads to each other, for software drivers with subgroups of at least 8 lanes.
    #[must_use]
    pub fn with_broadcasts(self) -> Self {
        self.with_subgroups(BROADCAST..=u32::MAX).for_software()
    }

    /// Fills a slot whose modules depend on the level; [`Level::Coop`] uses the module of subgroups.
    #[must_use]
    pub fn by_level(self, slot: OneOf<Level>, level: Level) -> Self {
        let variant = self.set(slot, level.min(Level::Subgroup));
        if level == Level::Baseline { variant } else { variant.with_subgroups(ANY) }
    }

    /// Number of lanes of a workgroup, if the caller chooses them: the number in slot `WG`.
    #[must_use]
    pub fn lanes(&self) -> Option<u32> {
        self.get(WG)
    }

    /// Composes the complete WGSL text, without values of `override` constants.
    ///
    /// # Errors
    /// [`ComposeError`] when an import or a slot does not exist.
    pub fn wgsl(&self) -> Result<String, ComposeError> {
        self.wgsl_of(TextLength::Full, Matrices::NVIDIA)
    }

    /// Composes the complete WGSL text in the given length, for a device with these cooperative matrices, if it has
    /// any. All lengths give the same results, except for rounding in online softmaxes that process more or fewer
    /// keys at a time.
    ///
    /// # Errors
    /// As [`wgsl`](Self::wgsl).
    pub fn wgsl_of(&self, length: TextLength, matrices: Matrices) -> Result<String, ComposeError> {
        let mut choices = self.choices.clone();
        let mut defaults = matrices.choices().to_vec();
        match length {
            TextLength::Full => {}
            TextLength::Middle => {
                choices.iter_mut().for_each(lower);
                defaults.extend(MIDDLE);
            }
            TextLength::Short => defaults.extend(SHORT),
        }
        compose(self.kernel.name, self.kernel.wgsl, self.kernel.modules, &choices, &defaults)
    }
}

/// Lowers a number that fills a slot to the maximum of [`TextLength::Middle`].
fn lower((slot, choice): &mut (&'static str, SlotContent)) {
    let largest = MIDDLE.iter().find(|(other, _)| other == slot);
    if let (SlotContent::Size(n), Some((_, SlotContent::Size(most)))) = (choice, largest) {
        *n = (*n).min(*most);
    }
}

/// Compares variants without registers, kind of driver, cache and data, which follow from the choices.
impl PartialEq for Variant {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernel, other.kernel)
            && self.choices == other.choices
            && self.constants == other.constants
            && self.bindings == other.bindings
            && self.level == other.level
            && self.subgroups == other.subgroups
    }
}

impl Eq for Variant {}

impl std::hash::Hash for Variant {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.kernel, state);
        self.choices.hash(state);
        self.constants.hash(state);
        self.bindings.hash(state);
        self.level.hash(state);
        self.subgroups.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::kernel::lse_merge::{self, LseMergeParams};
    use crate::slot::HEAD_DIM;

    #[test]
    fn a_grid_takes_parameters_of_their_own_size_and_padded() {
        let (variant, params) = (lse_merge::variant(64), LseMergeParams::new(1000));
        let mut bytes = bytemuck::bytes_of(&params).to_vec();
        assert_eq!(bytes.len(), 12);
        bytes.resize(16, 0xff);
        assert_eq!(variant.grid(&params), [63, 1, 1]);
        assert_eq!(variant.grid_of(&bytes), [63, 1, 1]);
    }

    #[test]
    fn variants_that_bind_other_buffers_are_not_the_same() {
        let plain = Variant::new(&crate::kernel::paged_reduce::KERNEL);
        let more = plain.clone().with("sinks");
        assert_ne!(plain, more);
        assert_eq!(HashSet::from([plain.clone(), more, plain]).len(), 2);
    }

    #[test]
    fn middle_texts_lower_numbers_and_fill_slots() {
        let variant = |chunks| {
            Variant::new(&crate::kernel::paged_decode::KERNEL).set(crate::slot::CHUNKS_AHEAD, chunks)
        };
        for (chunks, lowered) in [(4, 2), (1, 1)] {
            let text = variant(chunks).wgsl_of(TextLength::Middle, Matrices::NVIDIA).unwrap();
            let has = |slot, n| assert!(text.contains(&format!("const {slot}: u32 = {n}u;\n")), "{slot}");
            has("CHUNKS_AHEAD", lowered);
            has("VALUES_AHEAD", 4);
        }
    }

    #[test]
    #[should_panic(expected = "kernel lse_merge: slot HEAD_DIM is filled twice")]
    fn a_slot_is_filled_once() {
        let _ = Variant::new(&crate::kernel::lse_merge::KERNEL).set(HEAD_DIM, 64).set(HEAD_DIM, 128);
    }
}
