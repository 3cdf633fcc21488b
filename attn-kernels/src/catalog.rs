//! Every kernel of this crate, the modules that they share, and the variants that reports and tests list.

mod attention;

use crate::kernel::{self, KvDtype, KvShape};
use crate::profile::Registers;
use crate::source::Modules;
use crate::{Kernel, Level, Variant};

macro_rules! modules {
    ($($folder:ident: $($name:literal),* $(,)?;)*) => {
        &[$($(($name, include_str!(concat!("../wgsl/shared/", stringify!($folder), "/", $name, ".wgsl")))),*),*]
    };
}

/// The shared modules: kernels of other crates may import them too.
pub const MODULES: Modules = modules! {
    cache: "chunk_f16", "chunk_f32", "chunk_fp8", "codes_published", "flash_at", "k_f16", "k_f32", "k_fp8", "k_index_fp8", "k_int8", "kv_f16", "kv_f32", "kv_flash_f16", "kv_flash_f32", "kv_flash_fp8", "kv_fp8", "kv_int8", "kv_keys_f16", "kv_keys_f32", "kv_keys_fp8", "kv_keys_int8", "kv_published_f16", "kv_published_f32", "kv_published_fp8", "kv_published_int8", "kv_unscaled", "v_f16", "v_f32", "v_fp8", "v_int8";
    decode: "decode_lanes", "decode_part", "lane_key", "lane_key_pair", "queries_shuffled", "queries_tile";
    keys: "context_blocks", "context_full", "entries_heads", "entries_shared", "key_span_f16", "key_span_f32", "keys_apart", "keys_broadcast_f16", "keys_broadcast_f32", "keys_paired", "keys_uniform", "pages_heads", "pages_shared", "places_blocks", "places_tokens", "spread_f16", "spread_f32", "trips_hidden", "trips_known";
    latents: "latent_codes", "latent_f16", "latent_f32", "latent_fp8", "latent_halves", "latent_int8", "latent_plain", "latent_v4", "latents_paged", "latents_two", "v4_slots", "v4_units";
    matrices: "any_subgroup", "any_workgroup", "k_coop_f16", "k_coop_index_fp8", "kv_coop_f16", "kv_coop_fp8", "kv_coop_int8", "kv_staged_codes", "kv_staged_f16", "kv_staged_fp8", "kv_staged_int8", "latent_coop_codes", "latent_coop_f16", "latent_coop_fp8", "latent_coop_int8", "latent_coop_v4", "matrices", "matrix_16", "matrix_8", "product_tile", "tile";
    numbers: "flat", "fp8_halves", "fp8_quad", "half_cut", "halves", "inverse_root", "narrow", "numbers", "pack_halves",
        "soft_cap";
    params: "block_energy_params", "index_logits_params", "mla_decode_params", "paged_prefill_params", "strided_qk_params";
    reduce: "quad_reduce", "reduce_subgroup", "reduce_tree", "row_sum";
    scores: "lists_after_slopes", "lists_first", "logit_alibi", "logit_alibi_listed", "logit_plain", "logit_softcap", "mask_causal", "mask_chunk", "mask_window", "sinks_heads", "sinks_none", "skip_none", "skip_rows";
    select: "blocks_bound", "blocks_mean", "bounds_kept", "bounds_none", "digest_mean", "digest_min_max", "digests_f16", "digests_f32", "hash_keys", "hash_queries", "order_key", "out_list", "out_positions", "radix", "scan_subgroup", "scan_tree", "score_bound", "top_k_among", "transform_none", "transform_paged", "transform_ragged";
    write: "code_fp8", "code_int8", "codes_write_published", "digests_write_f16", "digests_write_f32", "halves_exact", "halves_nearest", "halves_outward", "kv_write_f16", "kv_write_f32", "kv_write_flash_f16", "kv_write_flash_f32", "kv_write_flash_fp8", "kv_write_fp8", "kv_write_int8", "kv_write_keys_f16", "kv_write_keys_f32", "kv_write_keys_fp8", "kv_write_keys_int8", "kv_write_published_f16", "kv_write_published_f32", "kv_write_published_fp8", "kv_write_published_int8", "kv_write_scaled_fp8", "kv_write_unscaled", "latent_write_codes", "latent_write_f16", "latent_write_f32", "latent_write_fp8", "latent_write_int8", "latent_write_v4", "scale_amax", "scale_given", "scale_ue8m0";
};

/// Lists every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    vec![
        &kernel::apply_sinks::KERNEL,
        &kernel::attend_means::KERNEL,
        &kernel::block_digest::KERNEL,
        &kernel::block_energy::KERNEL,
        &kernel::block_energy_coop::KERNEL,
        &kernel::block_lse::KERNEL,
        &kernel::block_mean::KERNEL,
        &kernel::block_means::KERNEL,
        &kernel::block_score::KERNEL,
        &kernel::block_score_subgroup::KERNEL,
        &kernel::cache_write::KERNEL,
        &kernel::copy_blocks::KERNEL,
        &kernel::dequantise::KERNEL,
        &kernel::fetch_pages::KERNEL,
        &kernel::find_blocks::KERNEL,
        &kernel::gate_sum::KERNEL,
        &kernel::gather_cache::KERNEL,
        &kernel::hamming_score::KERNEL,
        &kernel::hash_codes::KERNEL,
        &kernel::index_logits::KERNEL,
        &kernel::index_logits_coop::KERNEL,
        &kernel::keep_blocks::KERNEL,
        &kernel::keep_lists::KERNEL,
        &kernel::latent_write::KERNEL,
        &kernel::list_counts::KERNEL,
        &kernel::lse_merge::KERNEL,
        &kernel::masked_attention::KERNEL,
        &kernel::mass_bound::KERNEL,
        &kernel::mass_cut::KERNEL,
        &kernel::mass_merge::KERNEL,
        &kernel::mla_decode::KERNEL,
        &kernel::mla_decode_coop::KERNEL,
        &kernel::nsa_attend::KERNEL,
        &kernel::nsa_block_score::KERNEL,
        &kernel::nsa_probs::KERNEL,
        &kernel::paged_decode::KERNEL,
        &kernel::paged_decode_coop::KERNEL,
        &kernel::paged_decode_subgroup::KERNEL,
        &kernel::paged_prefill::KERNEL,
        &kernel::paged_prefill_coop::KERNEL,
        &kernel::paged_reduce::KERNEL,
        &kernel::prefill_reduce::KERNEL,
        &kernel::prefix_slots::KERNEL,
        &kernel::quantise::KERNEL,
        &kernel::residency::KERNEL,
        &kernel::softmax_block_sum::KERNEL,
        &kernel::stride_queries::KERNEL,
        &kernel::strided_qk::KERNEL,
        &kernel::strided_qk_broadcast::KERNEL,
        &kernel::strided_qk_coop::KERNEL,
        &kernel::swap_blocks::KERNEL,
        &kernel::top_k::KERNEL,
        &kernel::top_k_long::KERNEL,
        &kernel::top_k_peaks::KERNEL,
        &kernel::top_k_transform::KERNEL,
        &kernel::v4_compress::KERNEL,
        &kernel::vote_blocks::KERNEL,
    ]
}

/// A variant as reports and file names call it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedVariant {
    /// The kernel's name, and after a hyphen what is special: `paged_decode-f16`.
    pub name: String,
    /// The variant, at sizes that are usual in models.
    pub variant: Variant,
}

impl NamedVariant {
    /// The kernel's name, `-` and `part`; without a part the kernel's name.
    #[must_use]
    pub fn new(part: &str, variant: Variant) -> Self {
        let kernel = variant.kernel.name;
        let name = if part.is_empty() { kernel.into() } else { format!("{kernel}-{part}") };
        Self { name, variant }
    }

    /// Level of adapter that it needs.
    #[must_use]
    pub fn level(&self) -> Level {
        self.variant.level
    }
}

/// Lists one variant of every kernel for each choice of modules, by name; sizes are those of typical models.
#[must_use]
pub fn variants() -> Vec<NamedVariant> {
    variants_of(128)
}

/// Returns [`variants`] of heads of `head_dim` elements: software drivers compile small ones much faster.
#[must_use]
pub fn variants_of(head_dim: u32) -> Vec<NamedVariant> {
    use kernel::{cache_write, copy_blocks, lse_merge, prefill_reduce};
    let num_heads = 32;
    let shape = |dtype| KvShape { num_kv_heads: 8, head_dim, block_size: 16, dtype };
    let types = [("f16", shape(KvDtype::F16)), ("f32", shape(KvDtype::F32))];
    let named = NamedVariant::new;

    let mut all = Vec::new();
    all.push(named("", kernel::apply_sinks::variant(head_dim)));
    all.extend(types.map(|(part, shape)| named(part, cache_write::variant(&shape))));
    all.push(named("", copy_blocks::variant()));
    all.push(named("", kernel::swap_blocks::variant()));
    all.extend(code_variants(head_dim));
    all.push(named("", kernel::fetch_pages::variant()));
    all.push(named("", kernel::residency::variant(&types[0].1, 64)));
    all.push(named("", kernel::gate_sum::variant(head_dim)));
    all.push(named("", lse_merge::variant(head_dim)));
    all.push(named("", prefill_reduce::variant(head_dim)));
    all.extend(attention::variants(num_heads, &types));
    all.extend(selection(&types, num_heads));
    all
}

/// The kernels that make codes of 8 bits, and back.
fn code_variants(width: u32) -> Vec<NamedVariant> {
    use kernel::quantise::{self, Code, Scale};
    let named = |part: &str, variant: Result<Variant, kernel::LaunchError>| {
        NamedVariant::new(part, variant.expect("a multiple of 4"))
    };
    vec![
        named("fp8", quantise::variant(width, Code::Fp8, Scale::Given)),
        named("fp8-rows", quantise::variant(width, Code::Fp8, Scale::PerRow)),
        named("fp8-ue8m0", quantise::variant(width, Code::Fp8, Scale::Ue8m0)),
        named("int8-rows", quantise::variant(width, Code::Int8, Scale::PerRow)),
        named("fp8", kernel::dequantise::variant(width, Code::Fp8)),
        named("int8", kernel::dequantise::variant(width, Code::Int8)),
    ]
}

/// The kernels that select what attention reads.
fn selection(types: &[(&str, KvShape)], num_heads: u32) -> Vec<NamedVariant> {
    use kernel::block_digest::{self, Digest};
    use kernel::block_score;
    use kernel::hash_codes::{self, HashSource};
    use kernel::index_logits::{self, IndexKeys};
    use kernel::stride_queries::StrideType;
    use kernel::top_k::{self, Output, Transform};
    use kernel::v4_compress::EntryShape;
    use kernel::{index_logits_coop, strided_qk_broadcast, top_k_long, top_k_peaks, top_k_transform};
    let named = NamedVariant::new;
    let mut all = Vec::new();
    // Keys of every type; numbers of 8 bits are of the same shape.
    let coded = [("fp8", KvDtype::Fp8), ("int8", KvDtype::Int8)];
    let coded = coded.map(|(part, dtype)| (part, KvShape { dtype, ..types[0].1 }));
    let all_types = [types, &coded].concat();
    for (part, digest) in [("min_max", Digest::MinMax), ("mean", Digest::Mean)] {
        for (dtype, shape) in &all_types {
            all.push(named(&format!("{part}-{dtype}"), block_digest::variant(shape, digest)));
        }
        for (dtype, shape) in types {
            let variant = block_score::variant(shape, num_heads, digest, 64);
            all.push(named(&format!("{part}-{dtype}"), variant));
        }
    }
    for (dtype, shape) in &all_types {
        all.push(named(&format!("values-{dtype}"), block_digest::of_values(shape)));
    }
    // Digests beside caches of codes are as those beside f16, but for bounds of int8 that f16 cannot hold.
    for (dtype, shape) in all_types.iter().filter(|(_, shape)| shape.dtype != KvDtype::Fp8) {
        all.push(named(&format!("bounds-{dtype}"), block_score::with_bounds(shape, num_heads, 64)));
    }
    for (dtype, shape) in all_types.iter().filter(|(_, shape)| shape.dtype != KvDtype::Fp8) {
        let pages = block_score::variant(shape, num_heads, Digest::MinMax, shape.block_size);
        // Heads of 64 and 128 alone.
        all.extend(kernel::block_score_subgroup::of(&pages).map(|variant| named(dtype, variant)));
    }
    let outputs = [
        ("list", Output::List),
        ("positions", Output::Positions(Transform::None)),
        ("paged", Output::Positions(Transform::Paged)),
        ("ragged", Output::Positions(Transform::Ragged)),
    ];
    for (prefix, level) in [("", Level::Baseline), ("subgroup-", Level::Subgroup)] {
        all.extend(outputs.map(|(part, output)| {
            NamedVariant::new(&format!("{prefix}{part}"), top_k::variant(output, level))
        }));
        all.extend(outputs.map(|(part, output)| {
            NamedVariant::new(&format!("{prefix}{part}"), top_k_long::variant(output, level))
        }));
    }
    all.extend(outputs.map(|(part, output)| named(&format!("software-{part}"), top_k::software(output))));
    all.push(named("", top_k_peaks::variant()));
    for (name, to) in [("f16", StrideType::F16), ("f32", StrideType::F32)] {
        all.push(named(name, kernel::stride_queries::variant(types[0].1.head_dim, 8, to)));
    }
    for (dtype, shape) in &all_types {
        all.push(named(dtype, kernel::strided_qk::variant(shape, 8, 128)));
    }
    for (dtype, shape) in all_types.iter().filter(|(_, shape)| strided_qk_broadcast::serves(shape, 8, 128)) {
        all.push(named(dtype, strided_qk_broadcast::variant(shape, 8, 128)));
    }
    all.push(named("f16", kernel::strided_qk_coop::variant(&types[0].1, 8, 128)));
    all.push(named("", kernel::softmax_block_sum::variant(8, 128)));
    all.push(named("software", kernel::softmax_block_sum::software(8, 128)));
    all.push(named("", kernel::find_blocks::variant(4)));
    all.push(named("software", kernel::find_blocks::software(4)));
    all.push(named("", kernel::vote_blocks::variant()));
    for (dtype, shape) in &all_types {
        all.push(named(dtype, kernel::block_mean::variant(shape, 128)));
        all.push(named(dtype, kernel::block_means::variant(shape, 128)));
    }
    all.push(named("", kernel::attend_means::variant(&types[0].1, 128, Registers::Many)));
    all.push(named("lean", kernel::attend_means::variant(&types[0].1, 128, Registers::Few)));
    all.push(named("", kernel::block_energy::variant(&types[0].1, 128)));
    all.push(named("", kernel::block_energy_coop::variant(&types[0].1, 128)));
    all.push(named("", kernel::keep_blocks::variant(4)));
    all.push(named("", kernel::keep_lists::variant()));
    all.push(named("", kernel::list_counts::variant()));
    all.push(named("", kernel::mass_bound::variant()));
    all.push(named("", kernel::mass_merge::variant()));
    for (dtype, shape) in &all_types {
        all.push(named(dtype, kernel::block_lse::variant(shape, num_heads, 64)));
    }
    all.push(named("", kernel::mass_cut::variant(num_heads / types[0].1.num_kv_heads)));
    all.push(named("", kernel::hamming_score::variant(&types[0].1, 128, 4)));
    for (dtype, shape) in &all_types {
        all.push(named(&format!("keys-{dtype}"), hash_codes::variant(shape, HashSource::Keys)));
    }
    all.push(named("queries", hash_codes::variant(&types[0].1, HashSource::Queries)));
    all.push(named("", kernel::nsa_block_score::variant(32, 16, 64)));
    for (dtype, shape) in types {
        all.push(named(dtype, kernel::nsa_probs::variant(shape, 32, 16)));
        all.push(named(dtype, kernel::nsa_attend::variant(shape, 64)));
    }
    for (part, windows) in [("c4", 2), ("c128", 1)] {
        let entries = EntryShape { dim: 512, rope: 64, windows };
        all.push(named(part, kernel::v4_compress::variant(&entries)));
    }
    let published = IndexKeys::Fp8 { head_dim: 128, page: 64 };
    all.push(named("fp8", index_logits::variant(&published)));
    let f16 = IndexKeys::Cached(KvShape { num_kv_heads: 1, ..types[0].1 });
    for (part, keys) in [("fp8", published), ("f16", f16)] {
        all.push(named(part, index_logits_coop::variant(&keys)));
    }
    for (dtype, shape) in types {
        let keys = IndexKeys::Cached(KvShape { num_kv_heads: 1, ..*shape });
        all.push(named(dtype, index_logits::variant(&keys)));
    }
    all.push(named("", kernel::prefix_slots::variant()));
    all.push(named("paged", top_k_transform::variant(Transform::Paged)));
    all.push(named("ragged", top_k_transform::variant(Transform::Ragged)));
    all
}
