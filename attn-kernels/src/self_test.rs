//! Every kernel variant against its CPU reference, as data: for tests, and for checks of a user's own driver.
//!
//! A [`Case`] is one kernel's work with its buffers before and after. Each kernel has a module here, of the same stem as
//! its `.wgsl` file, that makes cases for any of its variants; kernels of other crates make theirs in the same way.

mod apply_sinks;
mod block_digest;
mod block_score;
mod cache_write;
mod copy_blocks;
mod gather_cache;
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
mod quantise;
mod residency;
mod retrieval;
mod top_k;
mod v4_compress;
mod xattn;

use std::ops::RangeInclusive;

use bytemuck::Pod;

use crate::cpu::{Mismatch, Tolerance};
use crate::gpu::{Bind, Gpu, GpuError, Pass};
use crate::kernel::mla_decode::LatentShape;
use crate::kernel::{KvDtype, KvShape};
use crate::source::Choice;
use crate::{Level, NamedVariant, Variant};

/// One kernel's work, and what it must leave in its buffers.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is special about it.
    pub what: &'static str,
    /// The kernel.
    pub variant: Variant,
    /// Dispatches in order: the parameter block, and the grid.
    pub dispatches: Vec<(Vec<u8>, [u32; 3])>,
    /// Bindings 1, 2, ... as they are before.
    pub buffers: Vec<Vec<u32>>,
    /// What bindings (counted from 0 in `buffers`) hold after.
    pub wants: Vec<(usize, Values)>,
    /// Lanes that every subgroup must have.
    pub subgroups: RangeInclusive<u32>,
}

/// Contents of a buffer, and how close a kernel must come.
#[derive(Clone, Debug)]
pub enum Values {
    /// The same words.
    Words(Vec<u32>),
    /// Floats of one of the cache's types.
    Floats(KvDtype, Tolerance, Vec<f32>),
    /// A paged cache and where its elements are.
    Cache(KvShape, layer::Index, Tolerance, Vec<f32>),
    /// Latents of this shape.
    Latents(LatentShape, Tolerance, Vec<f32>),
    /// f32 where these are finite; elsewhere the kernel may leave anything.
    Finite(Tolerance, Vec<f32>),
}

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The kernel did not run.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A float is too far off.
    #[error("{what}, binding {binding}: {mismatch}")]
    Floats {
        /// The case.
        what: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: usize,
        /// The worst element.
        mismatch: Mismatch,
    },
    /// A word differs.
    #[error("{what}, binding {binding}: word {index} of {len} is {got:#x}, the reference says {want:#x}")]
    Words {
        /// The case.
        what: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: usize,
        /// The first word that differs.
        index: usize,
        /// Words compared.
        len: usize,
        /// The kernel's word.
        got: u32,
        /// The reference's word.
        want: u32,
    },
}

/// Makes the cases of a variant.
pub type Cases = fn(&Variant) -> Vec<Case>;

/// How cases of each kernel are made, by the kernel's name.
const CASES: &[(&str, Cases)] = &[
    ("apply_sinks", apply_sinks::cases),
    ("block_digest", block_digest::cases),
    ("block_lse", mass_cut::block_lse),
    ("block_score", block_score::cases),
    ("cache_write", cache_write::cases),
    ("copy_blocks", copy_blocks::cases),
    ("dequantise", quantise::dequantise),
    ("fetch_pages", residency::fetch_cases),
    ("find_blocks", xattn::find_blocks),
    ("gather_cache", gather_cache::cases),
    ("hamming_score", retrieval::hamming_score),
    ("hash_codes", retrieval::hash_codes),
    ("index_logits", indexer::index_logits),
    ("index_logits_coop", indexer::index_logits),
    ("latent_write", mla_decode::latent_write),
    ("list_counts", lists::list_counts),
    ("lse_merge", lse_merge::cases),
    ("masked_attention", masked_attention::cases),
    ("mass_bound", mass_bound::cases),
    ("mass_cut", mass_cut::mass_cut),
    ("mass_merge", mass_bound::merge_cases),
    ("mla_decode", mla_decode::cases),
    ("mla_decode_coop", mla_decode::cases),
    ("nsa_block_score", retrieval::nsa_block_score),
    ("nsa_probs", retrieval::nsa_probs),
    ("paged_decode", paged_decode::cases),
    ("paged_decode_subgroup", paged_decode::cases),
    ("paged_prefill", paged_prefill::cases),
    ("paged_decode_coop", paged_decode::cases),
    ("paged_prefill_coop", paged_prefill::cases),
    ("paged_reduce", paged_reduce::cases),
    ("prefix_slots", indexer::prefix_slots),
    ("quantise", quantise::cases),
    ("residency", residency::cases),
    ("softmax_block_sum", xattn::softmax_block_sum),
    ("strided_qk", xattn::strided_qk),
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

/// Why a device runs no kernel of this variant, if it does not.
#[must_use]
pub fn skipped(gpu: &Gpu, named: &NamedVariant, case: &Case) -> Option<String> {
    if named.level == Level::Coop && !gpu.runs_coop() {
        return Some("no cooperative matrices of 16 x 16 in subgroups of 32, or bounds checks are on".into());
    }
    if named.level > gpu.level() {
        return Some(format!("the adapter's level is {}", gpu.level()));
    }
    let (lanes, most) = (case.variant.lanes(), gpu.limits().max_compute_invocations_per_workgroup);
    if lanes.is_some_and(|lanes| lanes > most) {
        return Some(format!(
            "workgroups have {most} lanes at most, {} are needed",
            lanes.unwrap_or_default()
        ));
    }
    let (smallest, largest) = (gpu.info().subgroup_min_size, gpu.info().subgroup_max_size);
    let served = case.subgroups.contains(&smallest) && case.subgroups.contains(&largest);
    (named.level == Level::Subgroup && !served)
        .then(|| format!("subgroups of {smallest} to {largest}, {:?} are needed", case.subgroups))
}

impl Case {
    /// A case of one dispatch.
    pub fn new<P: Pod>(what: &'static str, variant: &Variant, params: &P, grid: [u32; 3]) -> Self {
        Self {
            what,
            variant: variant.clone(),
            dispatches: vec![(bytemuck::bytes_of(params).into(), grid)],
            buffers: Vec::new(),
            wants: Vec::new(),
            subgroups: variant.subgroups(),
        }
    }

    /// Adds the next binding.
    #[must_use]
    pub fn binding<T: Pod>(mut self, data: &[T]) -> Self {
        self.buffers.push(bytemuck::pod_collect_to_vec(data));
        self
    }

    /// Adds the binding of these data, where there are some.
    #[must_use]
    fn optional<T: Pod>(self, data: Option<&[T]>) -> Self {
        match data {
            Some(data) => self.binding(data),
            None => self,
        }
    }

    /// Adds the next binding, all NaN, which the kernel must turn into `want`.
    #[must_use]
    pub fn output(self, tolerance: Tolerance, want: &[f32]) -> Self {
        self.updated(&vec![f32::NAN; want.len()], tolerance, want)
    }

    /// Adds the next binding, which the kernel must turn into `want`.
    #[must_use]
    pub fn updated(self, before: &[f32], tolerance: Tolerance, want: &[f32]) -> Self {
        self.cache(KvDtype::F32, before, tolerance, want)
    }

    /// Adds the next binding, all NaN, which the kernel must turn into `want` where that is finite.
    #[must_use]
    pub fn finite(mut self, tolerance: Tolerance, want: &[f32]) -> Self {
        self.wants.push((self.buffers.len(), Values::Finite(tolerance, want.into())));
        self.binding(&vec![f32::NAN; want.len()])
    }

    /// Adds the next binding, floats of `dtype`, which the kernel must turn into `want`.
    #[must_use]
    pub fn cache(mut self, dtype: KvDtype, before: &[f32], tolerance: Tolerance, want: &[f32]) -> Self {
        self.wants.push((self.buffers.len(), Values::Floats(dtype, tolerance, want.into())));
        self.binding(&layer::words(dtype, before))
    }

    /// Adds the next binding, a cache of `shape` in the layout of `index`, which the kernel must turn into `want`.
    #[must_use]
    pub fn paged(
        mut self,
        shape: &KvShape,
        index: layer::Index,
        before: &[f32],
        tolerance: Tolerance,
        want: &[f32],
    ) -> Self {
        self.wants.push((self.buffers.len(), Values::Cache(*shape, index, tolerance, want.into())));
        self.binding(&layer::cache_words(shape, index, before))
    }

    /// Adds the next binding, a cache of latents, which the kernel must turn into `want`.
    #[must_use]
    pub fn latents(
        mut self,
        shape: &LatentShape,
        before: &[f32],
        tolerance: Tolerance,
        want: &[f32],
    ) -> Self {
        self.wants.push((self.buffers.len(), Values::Latents(*shape, tolerance, want.into())));
        self.binding(&latents::latent_words(shape, before))
    }

    /// Adds the next binding, which the kernel must turn into the words of `want`.
    #[must_use]
    pub fn words<T: Pod>(self, before: &[T], want: &[T]) -> Self {
        let mut case = self.binding(before);
        case.wants.push((case.buffers.len() - 1, Values::Words(bytemuck::pod_collect_to_vec(want))));
        case
    }

    /// Runs it and compares.
    ///
    /// # Errors
    /// [`Fault`]: it did not run, or the result is not the reference's.
    pub fn run(&self, gpu: &Gpu) -> Result<(), Fault> {
        let pipeline = gpu.pipeline(&self.variant)?;
        let buffers: Vec<_> =
            self.buffers.iter().map(|words| gpu.upload(self.what, words)).collect::<Result<_, _>>()?;
        let bindings: Vec<Bind> = buffers.iter().map(Into::into).collect();
        let mut pass = Pass::new("self-test");
        for (params, grid) in &self.dispatches {
            pass.dispatch_bytes(&pipeline, params, &bindings, *grid);
        }
        let reads: Vec<_> =
            self.wants.iter().map(|(i, _)| pass.read(&buffers[*i], 0..buffers[*i].len())).collect();
        let outcome = gpu.submit(pass)?.wait()?;
        for ((index, want), read) in self.wants.iter().zip(reads) {
            want.compare(self.what, index + 1, &outcome.get(read))?;
        }
        Ok(())
    }
}

impl Values {
    fn compare(&self, what: &'static str, binding: usize, got: &[u32]) -> Result<(), Fault> {
        match self {
            Self::Words(want) => {
                assert_eq!(got.len(), want.len(), "words of result and reference");
                match got.iter().zip(want).position(|(got, want)| got != want) {
                    None => Ok(()),
                    Some(index) => {
                        let (got, want, len) = (got[index], want[index], want.len());
                        Err(Fault::Words { what, binding, index, len, got, want })
                    }
                }
            }
            Self::Cache(shape, index, tolerance, want) => tolerance
                .compare(&layer::cache_values(shape, *index, got), want)
                .map_err(|mismatch| Fault::Floats { what, binding, mismatch }),
            Self::Latents(shape, tolerance, want) => tolerance
                .compare(&latents::latent_values(shape, got), want)
                .map_err(|mismatch| Fault::Floats { what, binding, mismatch }),
            Self::Floats(dtype, tolerance, want) => tolerance
                .compare(&layer::values(*dtype, got), want)
                .map_err(|mismatch| Fault::Floats { what, binding, mismatch }),
            Self::Finite(tolerance, want) => {
                let got = layer::values(KvDtype::F32, got);
                let matters = |(got, want): (&f32, &f32)| if want.is_finite() { *got } else { *want };
                let got: Vec<f32> = got.iter().zip(want).map(matters).collect();
                tolerance.compare(&got, want).map_err(|mismatch| Fault::Floats { what, binding, mismatch })
            }
        }
    }
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

/// How many there are; a case has few.
fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("cases are small")
}
