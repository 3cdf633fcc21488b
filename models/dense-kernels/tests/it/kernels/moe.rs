//! Kernels of mixtures of experts: routers and pairs of any model, and products with their matrices to the bit.

use super::device::{assert_draw_passes, cases, gpu};
use super::properties::{after, assert_leaves_reference, assert_same_bits};
use attn_kernels::Variant;
use attn_kernels::gpu::Gpu;
use attn_kernels::self_test::{self, Case, Spec};
use dense_kernels::kernel::matmul::{self, Rows, Tiling};
use dense_kernels::kernel::moe_route::{self, ExpertSource};
use dense_kernels::kernel::moe_sort;
use dense_kernels::pack::Format;
use dense_kernels::{Activation, ExpertPacking, MoeConfig, Router, Score};
use proptest::prelude::*;

fn scores() -> impl Strategy<Value = Score> {
    prop::sample::select(vec![Score::Softmax, Score::SoftmaxOfChosen, Score::Sigmoid, Score::SqrtSoftplus])
}

prop_compose! {
    /// Routers whose groups have room for the experts chosen.
    fn routers()(
        members in 2u32..20,
        groups in prop::sample::select(vec![1u32, 2, 4, 8]),
        kept in 1u32..=8,
        group_top in 1u32..=2,
        top in 1u32..=8,
        score in scores(),
        normalise: bool,
    ) -> MoeConfig {
        let top_groups = kept.min(groups);
        MoeConfig {
            num_experts: members * groups,
            top_k: top.min(members * top_groups),
            inner_size: 32,
            shared_size: None,
            router: Router { score, groups, top_groups, group_top, normalise, scale: 2.5, correction: true },
            activation: Activation::Silu,
            biases: false,
            weighted_input: false,
            packing: ExpertPacking::Rows,
        }
    }
}

fn router(gpu: &Gpu, moe: &MoeConfig, source: ExpertSource) -> Variant {
    gpu.profile().best(|level| moe_route::variant(moe, source, level))
}

/// Logits of broken weights: NaN of both signs and both kinds, infinities, and the largest numbers.
const HOSTILE: [f32; 9] = [
    f32::NAN,
    -f32::NAN,
    f32::from_bits(0x7f80_0001),
    f32::INFINITY,
    f32::NEG_INFINITY,
    1.7e38,
    -1.7e38,
    f32::MAX,
    -0.0,
];

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn routes_rows(moe in routers(), hashed in prop::bool::weighted(0.2), seed: u64) {
        if let Some(gpu) = gpu() {
            let source = if hashed { ExpertSource::Table } else { ExpertSource::Scores };
            assert_draw_passes(gpu, router(gpu, &moe, source), seed);
        }
    }

    /// `moe_sort` takes whatever `moe_route` chooses for indices, unchecked.
    #[test]
    fn any_logits_choose_different_experts(
        moe in routers(),
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(HOSTILE.to_vec()),
            any::<u32>().prop_map(f32::from_bits),
        ], 1..64),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let variant = router(gpu, &moe, ExpertSource::Scores);
        // The first is of ranked experts, the next of hostile logits.
        let mut case = self_test::cases(&variant, &Spec::random(seed)).swap_remove(1);
        let words = words.iter().map(|logit| logit.to_bits()).cycle();
        case.buffers[0] = words.take(case.buffers[0].len()).collect();
        assert_leaves_reference(gpu, &case);
    }

    /// Pairs of an expert come in any order, but together: products take the expert of a tile for that of its pairs.
    #[test]
    fn sorts_pairs(experts in 1u32..300, seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let variant = moe_sort::variant(experts);
        assert_draw_passes(gpu, variant.clone(), seed);
        for case in self_test::cases(&variant, &Spec::random(seed)) {
            let expert = |pair: &u32| case.buffers[0][*pair as usize].min(experts - 1);
            let order = after(gpu, &case).swap_remove(2);
            prop_assert!(order.is_sorted_by_key(expert), "{}, {experts} experts", case.what);
        }
    }
}

/// A product of rows of this shape with one of several matrices each.
fn several(rows: Rows, format: Format, tiling: Tiling, shape: [u32; 3], seed: u64) -> Case {
    let variant = matmul::several(rows, format, tiling, shape[2]);
    self_test::cases(&variant, &Spec::random(seed).multiplying(shape)).remove(0)
}

#[test]
fn pairs_meet_their_experts_in_every_tiling() {
    let Some(gpu) = gpu() else { return };
    for (seed, format) in (0..).zip([Format::F32, Format::Bf16, Format::Mxfp4]) {
        let tilings = [1, 3, 70].map(|rows| Tiling::for_gpu(rows, 1, 3));
        let tilings = tilings.into_iter().chain([1, 70].map(|rows| Tiling::for_cpu(rows, 1, false)));
        let made: Vec<Case> =
            tilings.map(|tiling| several(Rows::Routed, format, tiling, [11, 21, 3], seed)).collect();
        assert_leaves_reference(gpu, &made[0]);
        made[1..].iter().for_each(|other| assert_same_bits(gpu, other, &made[0]));
    }
}

#[test]
fn every_vector_of_a_row_has_its_matrix() {
    let Some(gpu) = gpu() else { return };
    for rows in [1, 7] {
        let tiling = Tiling::for_gpu(rows, 1, 2);
        assert_leaves_reference(gpu, &several(Rows::Each, Format::F32, tiling, [rows, 21, 2], 4));
    }
}
