//! Every kernel variant against its CPU reference, as data: for tests, and for checks of a user's own driver.
//!
//! A [`Case`] is one kernel's work with its buffers before and after. Each kernel has a module here, of the same stem as
//! its `.wgsl` file, that makes cases for any of its variants; kernels of other crates make theirs in the same way.
//! Kernels whose results are indices of later ones also have [`hostile`] cases.

mod apply_sinks;
mod block_digest;
mod block_score;
mod cache_write;
mod case;
mod copy_blocks;
mod flashprefill;
mod floats;
mod gather_cache;
pub mod hostile;
mod indexer;
pub mod latents;
pub mod layer;
mod lists;
mod lse_merge;
mod masked_attention;
mod mass_bound;
mod mass_cut;
mod mla_decode;
pub mod options;
mod paged_decode;
mod paged_prefill;
mod paged_reduce;
mod prefill_reduce;
mod quantise;
mod residency;
mod retrieval;
mod top_k;
mod v4_compress;
mod xattn;

pub use case::{Case, Fault, Values};
pub use floats::{Element, FloatLayout, Format, Stored};

use crate::gpu::Gpu;
use crate::kernel::{KvDtype, KvShape};
use crate::source::Choice;
use crate::{Kernel, Level, NamedVariant, Variant};

/// Makes the cases of a variant.
pub type Cases = fn(&Variant) -> Vec<Case>;

/// Makers of the cases of each kernel, by the kernel's name.
const CASES: &[(&str, Cases)] = &[
    ("apply_sinks", apply_sinks::cases),
    ("attend_means", flashprefill::attend_means),
    ("block_digest", block_digest::cases),
    ("block_energy", flashprefill::block_energy),
    ("block_energy_coop", flashprefill::block_energy),
    ("block_lse", mass_cut::block_lse),
    ("block_mean", flashprefill::block_mean),
    ("block_means", flashprefill::block_means),
    ("block_score", block_score::cases),
    ("block_score_subgroup", block_score::cases),
    ("cache_write", cache_write::cases),
    ("copy_blocks", copy_blocks::cases),
    ("dequantise", quantise::dequantise),
    ("fetch_pages", residency::fetch_cases),
    ("find_blocks", xattn::find_blocks),
    ("gate_sum", lse_merge::gate_sum),
    ("gather_cache", gather_cache::cases),
    ("hamming_score", retrieval::hamming_score),
    ("hash_codes", retrieval::hash_codes),
    ("index_logits", indexer::index_logits),
    ("index_logits_coop", indexer::index_logits),
    ("keep_blocks", flashprefill::keep_blocks),
    ("keep_lists", lists::keep_lists),
    ("latent_write", mla_decode::latent_write),
    ("list_counts", lists::list_counts),
    ("lse_merge", lse_merge::cases),
    ("masked_attention", masked_attention::cases),
    ("mass_bound", mass_bound::cases),
    ("mass_cut", mass_cut::mass_cut),
    ("mass_merge", mass_bound::merge_cases),
    ("mla_decode", mla_decode::cases),
    ("mla_decode_coop", mla_decode::cases),
    ("nsa_attend", retrieval::nsa_attend),
    ("nsa_block_score", retrieval::nsa_block_score),
    ("nsa_probs", retrieval::nsa_probs),
    ("paged_decode", paged_decode::cases),
    ("paged_decode_subgroup", paged_decode::cases),
    ("paged_prefill", paged_prefill::cases),
    ("paged_decode_coop", paged_decode::cases),
    ("paged_prefill_coop", paged_prefill::cases),
    ("paged_reduce", paged_reduce::cases),
    ("prefill_reduce", prefill_reduce::cases),
    ("prefix_slots", indexer::prefix_slots),
    ("quantise", quantise::cases),
    ("residency", residency::cases),
    ("softmax_block_sum", xattn::softmax_block_sum),
    ("stride_queries", xattn::stride_queries),
    ("strided_qk", xattn::strided_qk),
    ("strided_qk_broadcast", xattn::strided_qk),
    ("strided_qk_coop", xattn::strided_qk),
    ("swap_blocks", copy_blocks::swap_blocks),
    ("top_k", top_k::cases),
    ("top_k_long", top_k::long_cases),
    ("top_k_peaks", top_k::peak_cases),
    ("top_k_transform", top_k::transform_cases),
    ("v4_compress", v4_compress::cases),
    ("vote_blocks", lists::vote_blocks),
];

/// The cases of a variant of this crate; none where its kernel has none.
#[must_use]
pub fn cases(variant: &Variant) -> Vec<Case> {
    cases_of(CASES, variant)
}

/// The cases that `table` makes for a variant.
#[must_use]
pub fn cases_of(table: &[(&str, Cases)], variant: &Variant) -> Vec<Case> {
    let make = table.iter().find(|(kernel, _)| *kernel == variant.kernel.name);
    make.map_or_else(Vec::new, |(_, cases)| cases(variant))
}

/// Returns what a table of cases leaves untested: kernels without a variant, and variants whose cases are none, are of another
/// variant, bind too few buffers or compare nothing.
#[must_use]
pub fn gaps(catalog: &[&Kernel], variants: &[NamedVariant], cases: Cases) -> Vec<String> {
    let listed = |kernel: &str| variants.iter().any(|named| named.variant.kernel.name == kernel);
    let unlisted = catalog.iter().filter(|kernel| !listed(kernel.name));
    let mut gaps: Vec<_> = unlisted.map(|kernel| format!("{} has no variant", kernel.name)).collect();
    for NamedVariant { name, variant } in variants {
        let made = cases(variant);
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

/// Why a device runs no kernel of this variant, if it does not.
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

/// The number that fills import slot `slot` of a variant.
///
/// # Panics
/// When the slot holds none.
#[must_use]
pub fn size(variant: &Variant, slot: &str) -> u32 {
    let found = variant.choices.iter().find_map(|(name, choice)| match choice {
        Choice::Size(n) if *name == slot => Some(*n),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("kernel {} has no number in slot {slot}", variant.kernel.name))
}

/// The module that fills import slot `slot` of a variant.
#[must_use]
pub fn module(variant: &Variant, slot: &str) -> Option<&'static str> {
    variant.choices.iter().find_map(|(name, choice)| match choice {
        Choice::Module(module) if *name == slot => Some(*module),
        _ => None,
    })
}

/// A cache of `num_kv_heads` KV heads in the shape that the slots `HEAD_DIM`, `BLOCK_SIZE` and `kv` of a variant say.
#[must_use]
pub fn shape(variant: &Variant, num_kv_heads: u32) -> KvShape {
    KvShape {
        num_kv_heads,
        head_dim: size(variant, "HEAD_DIM"),
        block_size: size(variant, "BLOCK_SIZE"),
        dtype: dtype(variant),
    }
}

/// The type that slot `kv` or `k` of a variant says; f16 where it has neither.
fn dtype(variant: &Variant) -> KvDtype {
    let kv = module(variant, "kv").or_else(|| module(variant, "k"));
    match kv.and_then(|module| module.rsplit('_').next()) {
        Some("f32") => KvDtype::F32,
        Some("fp8") => KvDtype::Fp8,
        Some("int8") => KvDtype::Int8,
        _ => KvDtype::F16,
    }
}

/// Counts items; a case has few.
fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("cases are small")
}
