//! What the host knows of a kernel is what its WGSL says.

#[path = "layout/checks.rs"]
mod checks;

use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::paged_decode::Lanes;
use attn_kernels::kernel::paged_decode_subgroup;
use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::kernel::{block_digest, block_score, top_k, top_k_long, top_k_peaks, top_k_transform};
use attn_kernels::kernel::{cache_write, copy_blocks, lse_merge, paged_decode, paged_prefill, paged_reduce};
use attn_kernels::kernel::{find_blocks, index_logits, prefix_slots, softmax_block_sum, strided_qk};
use attn_kernels::kernel::{hamming_score, hash_codes, nsa_block_score, nsa_probs, v4_compress};
use attn_kernels::reflect::interface;
use attn_kernels::{catalog, variants};
use checks::{Layout, layout};
use std::path::Path;

fn layouts() -> Vec<Layout> {
    use attn_kernels::kernel::apply_sinks::ApplySinksParams;
    use attn_kernels::kernel::block_lse::BlockLseParams;
    use attn_kernels::kernel::dequantise::DequantiseParams;
    use attn_kernels::kernel::fetch_pages::FetchPagesParams;
    use attn_kernels::kernel::gather_cache::GatherCacheParams;
    use attn_kernels::kernel::latent_write::LatentWriteParams;
    use attn_kernels::kernel::list_counts::ListCountsParams;
    use attn_kernels::kernel::masked_attention::MaskedAttentionParams;
    use attn_kernels::kernel::mass_bound::MassBoundParams;
    use attn_kernels::kernel::mass_cut::MassCutParams;
    use attn_kernels::kernel::mass_merge::MassMergeParams;
    use attn_kernels::kernel::mla_decode::MlaDecodeParams;
    use attn_kernels::kernel::quantise::QuantiseParams;
    use attn_kernels::kernel::residency::ResidencyParams;
    use attn_kernels::kernel::swap_blocks::SwapBlocksParams;
    use attn_kernels::kernel::vote_blocks::VoteBlocksParams;
    use block_digest::BlockDigestParams;
    use block_score::BlockScoreParams;
    use cache_write::CacheWriteParams;
    use copy_blocks::CopyBlocksParams;
    use find_blocks::FindBlocksParams;
    use hamming_score::HammingScoreParams;
    use hash_codes::HashCodesParams;
    use index_logits::IndexLogitsParams;
    use lse_merge::LseMergeParams;
    use nsa_block_score::NsaBlockScoreParams;
    use nsa_probs::NsaProbsParams;
    use paged_decode::PagedDecodeParams;
    use paged_prefill::PagedPrefillParams;
    use paged_reduce::PagedReduceParams;
    use prefix_slots::PrefixSlotsParams;
    use softmax_block_sum::SoftmaxBlockSumParams;
    use strided_qk::StridedQkParams;
    use top_k::TopKParams;
    use top_k_long::TopKLongParams;
    use top_k_peaks::TopKPeaksParams;
    use top_k_transform::TopKTransformParams;
    use v4_compress::V4CompressParams;
    vec![
        layout!(BlockDigestParams: num_kv_heads touched pad0 pad1),
        layout!(BlockScoreParams: num_heads num_kv_heads q_stride heads_a_set score_stride sink_blocks recent_blocks
            recent_full scale infinity logit_scale pad0),
        layout!(ApplySinksParams: first_row rows num_heads pad0),
        layout!(CacheWriteParams: rows num_kv_heads row_stride k_start v_start k_scale v_scale pad0),
        layout!(CopyBlocksParams: block_quads pad0 pad1 pad2),
        layout!(SwapBlocksParams: block_quads pad0 pad1 pad2),
        layout!(QuantiseParams: rows row_stride first scale),
        layout!(DequantiseParams: rows row_stride first pad0),
        layout!(GatherCacheParams: num_kv_heads list_stride k_scale v_scale most_keys pad0 pad1 pad2),
        layout!(MaskedAttentionParams: num_heads num_kv_heads q_stride list_stride mask_stride rows scale k_scale v_scale
            pad0 pad1 pad2),
        layout!(FetchPagesParams: num_kv_heads num_slots page_quads workgroups fetch touched pad0 pad1),
        layout!(ResidencyParams: first_ask asks num_kv_heads list_stride block_size first_page num_pages num_slots now
            most write_pages pad0),
        layout!(FindBlocksParams: num_kv_heads query_blocks key_blocks sum_stride current causal out_stride first_list
            votes units pad0 pad1),
        layout!(LatentWriteParams: rows row_stride latent_start rope_start),
        layout!(MlaDecodeParams: num_heads q_stride max_partitions reduced scale list_stride first_list compressed_stride first_key num_keys pad0 pad1),
        layout!(HammingScoreParams: num_kv_heads score_stride sink_tokens recent_tokens must_select num_must infinity pad0
            pad1),
        layout!(HashCodesParams: num_kv_heads entries group q_stride first_channel channels bits first_word words pad0
            pad1 pad2),
        layout!(IndexLogitsParams: num_heads logit_stride neg_inf pad0),
        layout!(ListCountsParams: list_stride first pad0 pad1),
        layout!(LseMergeParams: rows neg_inf pad0 pad1),
        layout!(MassBoundParams: num_heads num_kv_heads select_block list_stride max_partitions bound_stride first_list first_share
            share_stride partition_size pad0 pad1),
        layout!(MassCutParams: num_heads num_kv_heads stride select_block list_stride turn odds pad0),
        layout!(BlockLseParams: num_heads num_kv_heads q_stride stride scale first pad0 pad1),
        layout!(MassMergeParams: layers rows share_stride pad0),
        layout!(NsaBlockScoreParams: num_heads num_kv_heads prob_stride score_stride stride init_blocks local_blocks
            infinity),
        layout!(NsaProbsParams: num_heads num_kv_heads q_stride prob_stride scale pad0 pad1 pad2),
        layout!(PagedDecodeParams: num_heads num_kv_heads q_stride max_partitions partition_size scale reduced list_stride first_list first_key num_keys softcap k_scale v_scale pad0 pad1),
        layout!(PagedPrefillParams: num_heads num_kv_heads q_stride first_key scale neg_inf num_keys list_stride window softcap k_scale v_scale),
        layout!(PagedReduceParams: num_heads num_kv_heads max_partitions list_stride first_list partition_size pad0 pad1),
        layout!(PrefixSlotsParams: block_size pad0 pad1 pad2),
        layout!(SoftmaxBlockSumParams: rows part_stride sum_stride first_row real_first real_end key_start columns
            causal pad0 pad1 pad2),
        layout!(StridedQkParams: num_heads num_kv_heads q_stride q_first q_len front first_row rows key_start kv_len
            table part_stride scale causal pad0 pad1),
        layout!(TopKParams: rows out_stride copies page_size),
        layout!(TopKLongParams: rows out_stride copies page_size max_groups max_chosen pad0 pad1),
        layout!(TopKPeaksParams: rows max_groups pad0 pad1),
        layout!(TopKTransformParams: rows out_stride page_size pad0),
        layout!(V4CompressParams: ratio state_block page eps),
        layout!(VoteBlocksParams: voters in_stride votes blocks end copies out_stride first_list),
    ]
}

#[test]
fn uniform_structs_are_the_host_structs() {
    checks::structs(&layouts(), &variants());
}

#[test]
fn bindings_are_those_of_the_wgsl() {
    checks::bindings(&variants());
}

#[test]
fn every_file_is_in_the_catalog_and_has_variants() {
    let wgsl = Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl");
    checks::files(&wgsl, &catalog(), &variants());
}

#[test]
fn workgroup_memory_of_paged_decode_fits_at_every_head_size() {
    for head_dim in (8..=256).step_by(8).chain([512]) {
        for num_heads in [1, 2, 3, 4, 6, 7, 8, 16] {
            let shape = KvShape { num_kv_heads: 1, head_dim, block_size: 16, dtype: KvDtype::F16 };
            // Places of single tokens take the most.
            let tokens = Attention { context: Context::Tokens, ..Attention::default() };
            for lanes in [Lanes::Workgroup, Lanes::Subgroup(8), Lanes::Subgroup(32)] {
                if matches!(lanes, Lanes::Subgroup(lanes) if !paged_decode_subgroup::serves(&shape, lanes)) {
                    continue;
                }
                let variant = paged_decode::variant(&shape, num_heads, lanes, &tokens);
                let bytes = interface(&variant).unwrap().workgroup_bytes;
                let what = format!("head size {head_dim}, {num_heads} heads a KV head, {lanes:?}");
                assert!(bytes <= 16_384, "{what}: {bytes} bytes");
            }
        }
    }
}
