//! Host side of each kernel: parameters, bindings, specialisation, grid. Each kernel has a module with the name of its
//! `.wgsl` file and of its CPU reference.

pub mod apply_sinks;
pub mod attend_means;
pub mod attention;
pub mod block_digest;
pub mod block_energy;
pub mod block_energy_coop;
pub mod block_lse;
pub mod block_mean;
pub mod block_means;
pub mod block_score;
pub mod block_score_subgroup;
pub mod cache_write;
pub mod chunked_local;
pub mod chunked_prefix;
pub mod copy_blocks;
pub mod dequantise;
mod error;
pub mod fetch_pages;
pub mod find_blocks;
pub mod flashprefill;
pub mod gate_sum;
pub mod gather_cache;
pub mod hamming_score;
pub mod hash_codes;
pub mod index_logits;
pub mod index_logits_coop;
pub mod keep_blocks;
pub mod keep_lists;
pub mod latent_write;
pub mod list_counts;
pub mod lse_merge;
pub mod masked_attention;
pub mod mass_bound;
pub mod mass_cut;
pub mod mass_merge;
pub mod mla_decode;
pub mod mla_decode_coop;
pub mod nsa_attend;
pub mod nsa_block_score;
pub mod nsa_probs;
pub mod paged_decode;
pub mod paged_decode_coop;
pub mod paged_decode_subgroup;
pub mod paged_prefill;
pub mod paged_prefill_coop;
pub mod paged_reduce;
pub mod prefill_reduce;
pub mod prefix_slots;
pub mod quantise;
pub mod residency;
pub mod softmax_block_sum;
pub mod stride_queries;
pub mod strided_qk;
pub mod strided_qk_broadcast;
pub mod strided_qk_coop;
pub mod swap_blocks;
pub mod top_k;
pub mod top_k_long;
pub mod top_k_peaks;
pub mod top_k_transform;
pub mod v4_compress;
pub mod vote_blocks;
pub mod xattn;

pub use error::LaunchError;
pub use kvblock::KvDtype;

use crate::slot::{OneOf, Slot};
use crate::source::SlotContent;
use error::Launch;

/// Order of the elements of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KvLayout {
    /// The engine's layout: K `[num_blocks, num_kv_heads, head_dim / x, block_size, x]` with `x = 16 / bytes`, of codes 8, V
    /// `[num_blocks, num_kv_heads, block_size, head_dim]`.
    #[default]
    Native,
    /// The layout of the PagedAttention paper and of early vLLM: values have their tokens last, V `[num_blocks, num_kv_heads,
    /// head_dim, block_size]`; K is as in the engine's, but codes are in groups of 8. int8 has its scales after the codes of
    /// a block and head in both. Supported by `cache_write`, `gather_cache`, `masked_attention`, `paged_decode` without
    /// matrices and `paged_prefill`.
    V0,
    /// The layout of FlashAttention's paged kernels and of vLLM's `reshape_and_cache_flash`, K and V `[num_blocks,
    /// block_size, num_kv_heads, head_dim]`, to exchange caches with other programs. Supported by `cache_write` and
    /// `gather_cache`, for all types but int8, whose scales have no place in it.
    Flash,
}

impl KvLayout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Native, Self::V0, Self::Flash];
}

/// A type of cache: order and type of its elements.
type Stored = (KvLayout, KvDtype);

/// Reads keys and values.
pub(crate) const KV: OneOf<Stored> = OneOf::new(
    "kv",
    &[
        ((KvLayout::Native, KvDtype::F16), "kv_f16"),
        ((KvLayout::Native, KvDtype::F32), "kv_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "kv_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "kv_int8"),
        ((KvLayout::V0, KvDtype::F16), "kv_published_f16"),
        ((KvLayout::V0, KvDtype::F32), "kv_published_f32"),
        ((KvLayout::V0, KvDtype::Fp8), "kv_published_fp8"),
        ((KvLayout::V0, KvDtype::Int8), "kv_published_int8"),
    ],
);

/// Reads only keys, with the factor of codes; fp8 at a scale of 1.
pub(crate) const KEYS: OneOf<Stored> = OneOf::new(
    "k",
    &[
        ((KvLayout::Native, KvDtype::F16), "k_f16"),
        ((KvLayout::Native, KvDtype::F32), "k_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "k_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "k_int8"),
    ],
);

/// Reads values where a kernel reads keys; fp8 at a scale of 1.
pub(crate) const VALUES: OneOf<Stored> = OneOf::new(
    "k",
    &[
        ((KvLayout::Native, KvDtype::F16), "v_f16"),
        ((KvLayout::Native, KvDtype::F32), "v_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "v_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "v_int8"),
    ],
);

/// Slots of kernels that read or write a paged cache.
const CACHES: [OneOf<Stored>; 7] = [
    KV,
    KEYS,
    VALUES,
    cache_write::WRITE,
    gather_cache::FLASH,
    paged_decode_coop::STAGED,
    paged_prefill_coop::STAGED,
];

/// The layout and type of the paged cache that a variant reads or writes, if it is made for one.
#[cfg(feature = "self-test")]
pub(crate) fn stored(variant: &crate::Variant) -> Option<Stored> {
    CACHES.into_iter().find_map(|slot| variant.get(slot))
}

/// The type of cache that a module reads or writes, if it is made for one.
pub(crate) fn cached_by(module: SlotContent) -> Option<KvDtype> {
    let stored = CACHES.into_iter().find_map(|slot| slot.value(module)).map(|(_, dtype)| dtype);
    let latents = [mla_decode::ELEMENT, mla_decode_coop::ELEMENT, latent_write::ELEMENT];
    let latents = || latents.into_iter().find_map(|slot| slot.value(module)).map(mla_decode::Element::dtype);
    let published = || index_logits::PUBLISHED.value(module).is_some();
    let by_matrices = || index_logits_coop::PUBLISHED.value(module);
    stored
        .or_else(latents)
        .or_else(|| published().then_some(KvDtype::Fp8))
        .or_else(|| by_matrices().map(|published| if published { KvDtype::Fp8 } else { KvDtype::F16 }))
}

/// Shape of a paged cache: one K and one V buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KvShape {
    /// KV heads.
    pub num_kv_heads: u32,
    /// Elements per head, a multiple of 8.
    pub head_dim: u32,
    /// Tokens per block, a power of two.
    pub block_size: u32,
    /// Element type.
    pub dtype: KvDtype,
    /// Order of the elements.
    pub layout: KvLayout,
}

impl KvShape {
    /// Order and type of the elements.
    #[must_use]
    pub const fn stored(&self) -> (KvLayout, KvDtype) {
        (self.layout, self.dtype)
    }

    /// Neighbouring elements of a key in the K cache: 16 bytes, of codes 8.
    #[must_use]
    pub fn key_chunk(&self) -> usize {
        if self.dtype == KvDtype::F32 { 4 } else { 8 }
    }

    /// Bytes of one block in one of the two buffers.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        let scales = if self.dtype == KvDtype::Int8 { size_of::<f32>() } else { 0 };
        let token = self.head_dim as usize * self.dtype.bytes() as usize + scales;
        self.num_kv_heads as usize * self.block_size as usize * token
    }

    /// Elements of one block in one of the two buffers.
    #[must_use]
    pub fn block_elements(&self) -> usize {
        self.num_kv_heads as usize * self.block_size as usize * self.head_dim as usize
    }

    /// Index in the K buffer, scales left out, of element `dim` of the key at `offset` in `block`.
    #[must_use]
    pub fn k_index(&self, block: usize, head: usize, offset: usize, dim: usize) -> usize {
        if self.layout == KvLayout::Flash {
            return self.flash_index(block, head, offset, dim);
        }
        let x = self.key_chunk();
        let chunk = self.block_head(block, head) * (self.head_dim as usize / x) + dim / x;
        (chunk * self.block_size as usize + offset) * x + dim % x
    }

    /// Index in the V buffer, scales left out, of element `dim` of the value at `offset` in `block`.
    #[must_use]
    pub fn v_index(&self, block: usize, head: usize, offset: usize, dim: usize) -> usize {
        match self.layout {
            KvLayout::Native => {
                let token = self.block_head(block, head) * self.block_size as usize + offset;
                token * self.head_dim as usize + dim
            }
            KvLayout::V0 => {
                let row = self.block_head(block, head) * self.head_dim as usize + dim;
                row * self.block_size as usize + offset
            }
            KvLayout::Flash => self.flash_index(block, head, offset, dim),
        }
    }

    fn flash_index(&self, block: usize, head: usize, offset: usize, dim: usize) -> usize {
        let token = block * self.block_size as usize + offset;
        (token * self.num_kv_heads as usize + head) * self.head_dim as usize + dim
    }

    fn block_head(&self, block: usize, head: usize) -> usize {
        block * self.num_kv_heads as usize + head
    }

    /// Checks the requirements of all attention kernels, for `num_heads` query heads.
    ///
    /// # Errors
    /// Head sizes that are not multiples of 8 up to 512, block sizes that are not powers of two from 4 to 256, and query
    /// heads that KV heads do not divide.
    pub fn validate(&self, num_heads: u32) -> Result<(), LaunchError> {
        let launch = Launch("paged cache");
        for (what, size) in [
            ("number of KV heads", self.num_kv_heads),
            ("number of query heads", num_heads),
            ("head size", self.head_dim),
        ] {
            launch.not_zero(what, size)?;
        }
        launch.multiple("head size", self.head_dim, 8)?;
        launch.at_most("head size", self.head_dim.into(), 512)?;
        launch.power_of_two("block size", self.block_size)?;
        launch.multiple("block size", self.block_size, 4)?;
        launch.at_most("block size", self.block_size.into(), 256)?;
        launch.multiple("number of query heads", num_heads, self.num_kv_heads)
    }

    /// Pages of a block of `select_block` tokens that is selected as a whole.
    ///
    /// # Panics
    /// When it is not whole pages, or of none.
    pub(crate) fn pages_of(&self, select_block: u32) -> u32 {
        let page = self.block_size;
        assert!(
            select_block >= page && select_block.is_multiple_of(page),
            "selection block {select_block} is not a multiple of page size {page}"
        );
        select_block / page
    }

    /// Asserts the properties that kernels rely on, whatever the query heads.
    ///
    /// # Panics
    /// When [`Self::validate`] refuses it.
    pub(crate) fn check(&self) {
        self.validate(self.num_kv_heads).unwrap_or_else(|error| panic!("{error}: unchecked"));
    }
}

/// A grid of `workgroups` in one dimension, folded if one dimension of a dispatch cannot hold it; kernels unfold it with the
/// shared module `flat` or by row.
#[must_use]
pub fn flat_grid(workgroups: u32) -> [u32; 3] {
    [workgroups.min(65_535), workgroups.div_ceil(65_535), 1]
}

/// Counts the query heads of a KV head that one lane or workgroup serves: the largest divisor of the group up to
/// `most`.
pub(crate) fn heads_together(group: u32, most: u32) -> u32 {
    (1..=most.min(group)).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)
}
