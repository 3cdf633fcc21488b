//! Every dense kernel with the cases that a spec draws. A seed makes them all, so that nothing is gained by shrinking it.

use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::Spec;
use attn_kernels::{Level, NamedVariant, Variant};
use dense_kernels::kernel::hyper_collapse::{self, Reader};
use dense_kernels::kernel::matmul::Epilogue;
use dense_kernels::kernel::matmul_coop::{self, Activations, TilePlan};
use dense_kernels::kernel::{
    ExpertTerms, bias, glu, hyper_expand, index_query_fp8, index_write, index_write_fp8, log_prob,
    moe_combine, norm_heads, rms_norm, rope, state_write, variants,
};
use dense_kernels::pack::Format;
use dense_kernels::{Activation, Pairing};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::Config;

use crate::every;
use crate::kernels::device::{assert_draw_passes, assert_passes, cases, described, gpu};
use crate::kernels::tensors::dtypes;

proptest! {
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(1) })]

    /// By default the seed also draws which ninth of the variants it is: a software driver compiles again for other sizes, and
    /// `self_test` runs all of them.
    #[test]
    fn every_variant_computes_what_its_reference_does(seed: u64) {
        if let Some(gpu) = gpu() {
            let every = every(9) as u64;
            let variants = variants().into_iter().filter(|named| named.level() <= Level::Subgroup);
            let drawn = (seed % every..).zip(variants).filter(|(n, _)| n.is_multiple_of(every));
            drawn.for_each(|(_, named)| assert_passes(gpu, &named, &Spec::random(seed)));
        }
    }

    /// Ragged shapes of any storage type, in the tiles that are fastest by the model of a device.
    #[test]
    fn products_by_matrices_are_those_of_their_reference(
        dtype in dtypes(),
        epilogue in select(vec![Epilogue::Store, Epilogue::Add, Epilogue::SiluMul]),
        (rows, cols, super_blocks) in (1u32..=300, 1u32..=600, 1u32..=4),
        seed: u64,
    ) {
        if let Some(gpu) = crate::adapter::gpu() {
            let shape = [rows, cols, 8 * super_blocks];
            let tile = TilePlan::fastest(gpu.profile(), shape, epilogue, 0).tile;
            let variant = matmul_coop::variant(Format::from(dtype), epilogue, Activations::F32, tile);
            let name = described(&variant);
            assert_passes(&gpu, &NamedVariant { name, variant }, &Spec::random(seed).multiplying(shape));
        }
    }

    /// Matrices cannot be bounds-checked.
    #[test]
    fn kernels_of_matrices_compute_what_their_references_do(seed: u64) {
        if let Some(gpu) = crate::adapter::gpu() {
            let variants = variants().into_iter().filter(|named| named.level() == Level::Coop);
            variants.for_each(|named| assert_passes(&gpu, &named, &Spec::random(seed)));
        }
    }
}

/// Runs the cases of a variant that `seed` draws, whether a list has it or not.
fn check(variant: Variant, seed: u64) {
    if let Some(gpu) = gpu() {
        assert_draw_passes(gpu, variant, seed);
    }
}

/// The level of kernels that add up over a workgroup.
fn level() -> Level {
    gpu().map_or(Level::Baseline, |gpu| gpu.level().min(Level::Subgroup))
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn norms_rows(gather: bool, lanes in select(vec![64u32, 256]), centred: bool, seed: u64) {
        let form = if gather { rms_norm::NormForm::Gather } else { rms_norm::NormForm::Store };
        check(rms_norm::variant(form, lanes, level()), seed);
        let norm = if centred { norm_heads::Norm::Layer } else { norm_heads::Norm::Rms };
        check(norm_heads::variant(norm, level()), seed);
    }

    #[test]
    fn adds_biases_scores_targets_and_writes_states(add: bool, seed: u64) {
        check(bias::variant(if add { bias::BiasForm::Add } else { bias::BiasForm::Store }), seed);
        check(log_prob::variant(), seed);
        check(state_write::variant(), seed);
    }

    #[test]
    fn turns_heads(
        head_dim in select(vec![16u32, 64, 80, 128]),
        pairing in select(vec![Pairing::Halves, Pairing::Interleaved]),
        seed: u64,
    ) {
        check(rope::variant(head_dim, pairing), seed);
    }

    #[test]
    fn mixes_streams(streams in 1u32..7, head: bool, begin: bool, seed: u64) {
        let reader = if head { Reader::Head } else { Reader::Block };
        check(hyper_collapse::variant(streams, reader, level()), seed);
        let form = if begin { hyper_expand::StreamForm::Begin } else { hyper_expand::StreamForm::Add };
        check(hyper_expand::variant(streams, form), seed);
    }

    #[test]
    fn writes_index_keys(chunks in 1u32..5, block_size in select(vec![4u32, 16, 64]), half: bool, seed: u64) {
        let dtype = if half { KvDtype::F16 } else { KvDtype::F32 };
        let layout = KvLayout::Native;
        check(index_write::variant(&KvShape { num_kv_heads: 1, head_dim: chunks * 8, block_size, dtype, layout }), seed);
    }

    #[test]
    fn rounds_index_vectors_to_fp8(log_dim in 3u32..9, page in select(vec![4u32, 16, 64]), seed: u64) {
        check(index_write_fp8::variant(1 << log_dim, page), seed);
        check(index_query_fp8::variant(1 << log_dim), seed);
    }

    #[test]
    fn gates_and_combines_experts(top in 1u32..9, kind in 0usize..3, biased: bool, weighted: bool, seed: u64) {
        let terms = ExpertTerms { biased, weighted };
        let activation = [
            Activation::Silu,
            Activation::LimitedSilu { limit: 0.5 },
            Activation::LimitedSwiglu { alpha: 1.702, limit: 0.75 },
        ][kind];
        check(glu::variant(activation, terms), seed);
        check(moe_combine::variant(top, terms), seed);
    }
}
