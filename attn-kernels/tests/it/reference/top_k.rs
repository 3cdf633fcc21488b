//! `top_k`, and `top_k_peaks` with `top_k_long`, against their references: exact, so equal to the last index.

use super::device::{cases, gpu};
use super::properties::{after, assert_leaves_reference, params};
use attn_kernels::Level;
use attn_kernels::gpu::{Buf, Gpu, Pass};
use attn_kernels::kernel::top_k::{self, Output, TopKBuffers, TopKParams, Transform};
use attn_kernels::kernel::top_k_long;
use attn_kernels::kernel::top_k_peaks;
use attn_kernels::kernel::top_k_transform::{self, TopKTransformParams};
use attn_kernels::launch::{TopK, TopKLimits};
use attn_kernels::self_test::{Case, ScoreRows, Values};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::usual;

/// Maximum number of scores of a row of `top_k::software`.
const SOFTWARE_SCORES: usize = 1 << 18;

const OUTPUTS: [Output; 4] = [
    Output::List,
    Output::Positions(Transform::None),
    Output::Positions(Transform::Paged),
    Output::Positions(Transform::Ragged),
];

/// Fails if a kernel selects other than its reference, which is exact, from rows `(scores, k)`.
fn check(gpu: &Gpu, rows: &[(Vec<f32>, u32)], page_size: u32, copies: u32, outputs: &[Output]) {
    let longest = rows.iter().map(|(scores, _)| scores.len()).max();
    let rows = ScoreRows::of(rows, page_size, copies);
    assert_leaves_reference(gpu, &rows.peaks("peaks", &top_k_peaks::variant()));
    for &output in outputs {
        let software = top_k::software(output);
        if longest <= Some(SOFTWARE_SCORES) && gpu.profile().runs(&software) {
            assert_leaves_reference(gpu, &rows.short("small workgroups", &software));
        }
        let levels = [Level::Baseline, Level::Subgroup];
        for level in levels.into_iter().filter(|level| *level <= gpu.profile().top_k_level()) {
            assert_leaves_reference(gpu, &rows.short("short rows", &top_k::variant(output, level)));
            assert_leaves_reference(gpu, &rows.long("long rows", &top_k_long::variant(output, level)));
        }
    }
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-4.0f32..4.0).powi(3)).collect()
}

#[test]
fn rows_round_tiles_and_k() {
    let Some(gpu) = gpu() else { return };
    let lens = [0, 1, 2, 255, 256, 257, 1023, 1024, 1025, 5000];
    let rows: Vec<_> =
        lens.iter().flat_map(|&len| [0, 1, 2, 256, 1024].map(|k| (random(len, 3), k))).collect();
    check(gpu, &rows, 16, 3, &OUTPUTS);
}

#[test]
fn scores_that_differ_in_few_bits() {
    let Some(gpu) = gpu() else { return };
    let bits =
        |at: u32, n: u32| (0..n).map(|i| f32::from_bits(at + i.wrapping_mul(2_654_435_761) % 1024)).collect();
    let special = vec![
        f32::NAN,
        f32::NEG_INFINITY,
        -0.0,
        0.0,
        f32::INFINITY,
        -1.0,
        f32::MIN_POSITIVE / 2.0,
        -f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        0.0,
    ];
    let rows: Vec<(Vec<f32>, u32)> = vec![
        // The lowest ten bits alone, ties among them; of both signs.
        (bits(0x3f80_0000, 3000), 700),
        (bits(0xbf80_0000, 3000), 700),
        // All equal: the first ones.
        (vec![1.5; 2000], 1999),
        (vec![f32::NEG_INFINITY; 300], 7),
        (special.clone(), 1),
        (special.clone(), 5),
        (special.clone(), 8),
        (special, 11),
    ];
    check(gpu, &rows, 1, 1, &OUTPUTS);
}

/// Blocks that are always selected have scores that no other reaches: as many as are kept, fewer, more, or all.
#[test]
fn scores_of_which_some_are_forced() {
    let Some(gpu) = gpu() else { return };
    let forced = |len: usize, infinite: usize, largest: usize| {
        let mut scores = random(len, 5);
        let every = len / (infinite + largest).max(1);
        for i in 0..infinite + largest {
            scores[i * every] = if i < infinite { f32::INFINITY } else { f32::MAX };
        }
        scores
    };
    let rows: Vec<_> = [(3000, 1, 0), (3000, 0, 5), (3000, 1, 40), (20_000, 1, 300), (900, 450, 450)]
        .into_iter()
        .flat_map(|(len, infinite, largest)| {
            [1, 5, 41, 301, 700].map(|k| (forced(len, infinite, largest), k))
        })
        .collect();
    check(gpu, &rows, 16, 1, &OUTPUTS);
}

#[test]
fn many_of_very_many() {
    let Some(gpu) = gpu() else { return };
    // The forms of the result differ after the choice, which takes a software driver seconds.
    let outputs = usual(1, &OUTPUTS);
    let most = top_k::MAX_SCORES as usize;
    let rows = [(random(most, 1), 4096), (random(40_000, 2), 2048), (random(3, 3), 2048)];
    check(gpu, &rows, 64, 1, outputs);
    let most = SOFTWARE_SCORES;
    let rows = [(random(most, 4), 4096), (random(most, 5), (1 << 18) - 1)];
    check(gpu, &rows, 64, 1, outputs);
}

/// Neighbours that are alike: the chosen groups hold nothing but what is selected, or hardly any of it.
#[test]
fn scores_that_hang_together() {
    let Some(gpu) = gpu() else { return };
    let wave = |len: u32, period: f32| (0..len).map(|i| (i as f32 / period).sin()).collect::<Vec<f32>>();
    let peak = |at: usize| (0..20_000).map(|i| if i / 16 == at { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    let rows = [(wave(20_000, 500.0), 2048), (wave(20_000, 2.6), 300), (peak(77), 16), (peak(1249), 17)];
    check(gpu, &rows, 16, 1, &OUTPUTS);
}

#[test]
fn fused_transforms_are_the_separate_ones() {
    let Some(gpu) = gpu() else { return };
    let rows = ScoreRows::of(&[(random(1000, 1), 70), (random(30, 2), 70), (random(100, 3), 70)], 8, 1);
    let fused = |transform| {
        let output = Output::Positions(transform);
        rows.short("fused", &top_k::best(gpu.profile(), output))
    };
    let mut positions = fused(Transform::None);
    positions.buffers = after(gpu, &positions);
    let TopKParams { rows, out_stride, page_size, .. } = params(&positions);
    for transform in [Transform::None, Transform::Paged, Transform::Ragged] {
        let params = TopKTransformParams { rows, out_stride, page_size };
        let variant = top_k_transform::variant(transform);
        let fused = fused(transform);
        assert_leaves_reference(gpu, &fused);
        let Values::Words(want) = &fused.wants[0].1 else { panic!("positions are words") };
        let separate = Case::new("separate", &variant, &params)
            .binding(&positions.buffers[1])
            .binding(&positions.buffers[2])
            .words(&positions.buffers[3], want);
        assert_leaves_reference(gpu, &separate);
    }
}

/// The launch of both kernels reserves its own scratch.
#[test]
fn the_longest_row_decides_which_kernels_choose() {
    let Some(gpu) = gpu() else { return };
    let mut top_k = TopK::new(gpu, Output::List).unwrap();
    for (longest, dispatches) in [(300, 1), (top_k_peaks::LONG as usize - 1, 1), (20_000, 2), (17_000, 2)] {
        let rows = [(random(longest, 1), 70), (random(30, 2), 70), (random(200, 3), 70)];
        let case = ScoreRows::of(&rows, 1, 1).short("lists", &top_k::best(gpu.profile(), Output::List));
        let params: TopKParams = params(&case);
        let limits = TopKLimits { max_scores: u32::try_from(longest).unwrap(), max_k: 70 };
        top_k.reserve(gpu, params.rows, limits).unwrap();
        let buffers = [0, 1, 2, 3].map(|at| gpu.upload("top_k", &case.buffers[at]).unwrap());
        let [scores, rows, table, out] = buffers.each_ref().map(Buf::bind);
        let mut pass = Pass::new("top_k");
        let buffers_of = TopKBuffers { scores: scores.cast(), rows: rows.cast(), table: table.cast(), out };
        top_k.record(&mut pass, &params, limits, buffers_of);
        assert_eq!(pass.dispatches(), dispatches, "{longest} scores");
        let read = pass.read(&buffers[3], 0..buffers[3].len());
        let got: Vec<u32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        let Values::Words(want) = &case.wants[0].1 else { panic!("lists are words") };
        assert_eq!(got, *want, "{longest} scores");
    }
}

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn selects_as_the_reference_does(
        rows in prop::collection::vec(
            (prop::collection::vec((-40i16..40).prop_map(|x| f32::from(x) / 16.0), 0..2500), 0u32..2600),
            1..6,
        ),
        log_page in 0u32..8,
        copies in 1u32..4,
    ) {
        if let Some(gpu) = gpu() {
            check(gpu, &rows, 1 << log_page, copies, &OUTPUTS);
        }
    }
}
