//! Comparison of every kernel variant with its CPU reference, as data: for tests, and for checks of a user's own driver.
//!
//! A [`Case`] is one kernel's work with its buffers before and after. Each kernel has a module here, of the same stem as
//! its `.wgsl` file, that makes cases for any of its variants; kernels of other crates make theirs in the same way. A
//! [`Spec`] chooses what a variant leaves open: data, rows, lengths, heads.
//! Kernels whose results are indices of later ones also have [`hostile`] cases.

pub(crate) mod apply_sinks;
pub(crate) mod block_digest;
mod block_lists;
pub(crate) mod block_score;
pub(crate) mod cache_write;
mod case;
pub(crate) mod copy_blocks;
pub(crate) mod flashprefill;
mod floats;
pub(crate) mod gather_cache;
pub mod hostile;
pub(crate) mod indexer;
pub mod latents;
pub mod layer;
pub(crate) mod lists;
pub(crate) mod lse_merge;
pub(crate) mod masked_attention;
pub(crate) mod mass_bound;
pub(crate) mod mass_cut;
pub(crate) mod mla_decode;
pub mod options;
pub(crate) mod paged_decode;
pub(crate) mod paged_prefill;
pub(crate) mod paged_reduce;
pub(crate) mod prefill_reduce;
pub(crate) mod quantise;
pub(crate) mod residency;
pub(crate) mod retrieval;
mod spec;
pub(crate) mod top_k;
pub(crate) mod v4_compress;
pub(crate) mod xattn;

pub use case::{Case, Fault, Random, Values};
pub use floats::{Element, FloatLayout, Format, Stored};
pub use spec::{Size, Spec};
pub use top_k::ScoreRows;

use crate::gpu::Gpu;
use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::slot::{self, Slot};
use crate::{Kernel, Level, NamedVariant, Variant};

/// Function that makes the cases of a variant that a spec chooses.
pub type Cases = fn(&Variant, &Spec) -> Vec<Case>;

/// The cases of a variant that `spec` chooses, by the declaration of its kernel: one, if the kernel knows the sizes of
/// [`Spec::sized`].
#[must_use]
pub fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    variant.kernel.declared.map_or_else(Vec::new, |declared| declared.cases.of(variant, spec))
}

impl crate::declare::DeclaredCases {
    /// Makes the cases of a variant of the kernel that `spec` chooses.
    #[must_use]
    pub fn of(self, variant: &Variant, spec: &Spec) -> Vec<Case> {
        self.0.map_or_else(Vec::new, |cases| cases(variant, spec))
    }
}

/// Returns the gaps of a table of cases: kernels without a variant, and variants whose cases are none, are of another
/// variant, bind too few buffers or compare nothing.
#[must_use]
pub fn gaps(catalog: &[&Kernel], variants: &[NamedVariant], cases: Cases) -> Vec<String> {
    let listed = |kernel: &str| variants.iter().any(|named| named.variant.kernel.name == kernel);
    let unlisted = catalog.iter().filter(|kernel| !listed(kernel.name));
    let mut gaps: Vec<_> = unlisted.map(|kernel| format!("{} has no variant", kernel.name)).collect();
    for NamedVariant { name, variant } in variants {
        let made = cases(variant, &Spec::default());
        if made.is_empty() {
            gaps.push(format!("{name} has no cases"));
        }
        let whole = |case: &Case| {
            case.variant == *variant && case.buffers.len() == variant.bindings.len() && !case.wants.is_empty()
        };
        let partial = made.iter().filter(|case| !whole(case));
        gaps.extend(
            partial.map(|case| format!("{name}: {} is of another variant or lacks buffers", case.what)),
        );
    }
    gaps
}

/// Returns the reason why a device runs no kernel of this variant; `None` if it does.
#[must_use]
pub fn skipped(gpu: &Gpu, named: &NamedVariant, case: &Case) -> Option<String> {
    if named.level() == Level::Coop && !gpu.runs_coop() {
        return Some("no cooperative matrices that kernels are written for, or bounds checks are on".into());
    }
    if named.level() > gpu.level() {
        return Some(format!("the adapter's level is {}", gpu.level()));
    }
    let (lanes, most) = (case.variant.lanes(), gpu.profile().workgroup_lanes);
    if lanes.is_some_and(|lanes| lanes > most) {
        return Some(format!(
            "workgroups have {most} lanes at most, {} are needed",
            lanes.unwrap_or_default()
        ));
    }
    let [smallest, largest] = gpu.profile().subgroups;
    (!gpu.profile().has_subgroups(named.level(), &case.subgroups))
        .then(|| format!("subgroups of {smallest} to {largest}, {:?} are needed", case.subgroups))
}

/// Returns the value in import slot `slot` of a variant.
///
/// # Panics
/// When nothing of this slot does.
#[must_use]
pub fn filled<S: Slot>(variant: &Variant, slot: S) -> S::Value {
    let name = slot.name();
    variant.get(slot).unwrap_or_else(|| panic!("kernel {} has no {name}", variant.kernel.name))
}

/// A cache of `num_kv_heads` KV heads in the shape that the slots of a variant state: f16 if they state no type.
#[must_use]
pub fn shape(variant: &Variant, num_kv_heads: u32) -> KvShape {
    let (layout, dtype) = cached(variant);
    KvShape {
        num_kv_heads,
        head_dim: filled(variant, slot::HEAD_DIM),
        block_size: filled(variant, slot::BLOCK_SIZE),
        dtype,
        layout,
    }
}

/// Number of bytes of a token's keys and values.
fn token_bytes(shape: &KvShape) -> f64 {
    2.0 * shape.block_bytes() as f64 / f64::from(shape.block_size)
}

/// Layout and type of the cache that a variant reads or writes.
fn cached(variant: &Variant) -> (KvLayout, KvDtype) {
    variant.cache.unwrap_or((KvLayout::Native, KvDtype::F16))
}

/// Counts items, as u32.
fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("cases are small")
}
