//! Host side of each kernel: parameters, bindings, specialisation, grid. Each kernel has a module, with the same name
//! as its `.wgsl` file and its CPU reference.

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
mod kv_shape;
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
pub use kv_shape::{CacheSlot, KvLayout, KvShape};
pub(crate) use kv_shape::{KEYS, KV, Stored, VALUES};
pub use kvblock::KvDtype;

/// Returns a grid of `workgroups` in one dimension, or in two if one dimension of a dispatch cannot hold so many.
/// Kernels unfold the grid with the shared module `flat` or by row.
#[must_use]
pub fn flat_grid(workgroups: u32) -> [u32; 3] {
    [workgroups.min(65_535), workgroups.div_ceil(65_535), 1]
}

/// Number of query heads of a KV head that one lane or workgroup serves: the largest divisor of `group` that is at
/// most `most`.
pub(crate) fn heads_together(group: u32, most: u32) -> u32 {
    (1..=most.min(group)).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)
}
