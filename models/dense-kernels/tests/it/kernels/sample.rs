//! `sample` after the scan that feeds it: against its reference, as far as rounding leaves one answer, and against the
//! probabilities that it should draw with.

use super::device::{cases, gpu};
use super::properties::after;
use attn_kernels::gpu::Gpu;
use attn_kernels::self_test::Case;
use dense_kernels::cpu;
use dense_kernels::cpu::sample::{gumbel, kept};
use dense_kernels::kernel::sample::{self, SampleParams, Spec};
use dense_kernels::kernel::scan_logits::{
    self, LANES, ScanLogitsParams, TOKENS_PER_LANE, TOKENS_PER_LANE_ON_CPU, parts,
};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Draws from the whole vocabulary.
const PLAIN: Spec = Spec { temperature: 1.0, seed_low: 1, seed_high: 2, ..Spec::GREEDY };

fn draw(gpu: &Gpu, vocab: usize, logits: &[f32], specs: &[Spec]) -> Vec<u32> {
    draw_behind(gpu, TOKENS_PER_LANE, vocab, logits, specs)
}

/// Draws after a scan in blocks of `each` tokens.
fn draw_behind(gpu: &Gpu, each: u32, vocab: usize, logits: &[f32], specs: &[Spec]) -> Vec<u32> {
    let [rows, vocab] = [specs.len(), vocab].map(|n| u32::try_from(n).unwrap());
    let (parts, neg_inf) = (parts(vocab, each), f32::NEG_INFINITY);
    let of_parts = (rows * parts) as usize;
    let params = ScanLogitsParams { rows, vocab, parts, draws: 1, neg_inf };
    let scan = Case::new("scan", &scan_logits::variant(each), &params)
        .binding(logits)
        .binding(specs)
        .binding(&vec![f32::NAN; of_parts * LANES as usize])
        .binding(&vec![[f32::NAN; 4]; of_parts])
        .binding(&vec![[12_345_678; 2]; of_parts]);
    let params = SampleParams { rows, vocab, parts, neg_inf };
    let draws = Case::new("draws", &sample::variant(each), &params);
    let draws = Case { buffers: after(gpu, &scan), ..draws }.binding(&vec![u32::MAX; rows as usize]);
    after(gpu, &draws).swap_remove(5)
}

/// Logits with many ties: multiples of 1/4.
fn logits(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-24i8..24).into()).map(|x: f32| x / 4.0).collect()
}

/// The drawn token may be in the set, and wins against all tokens that are surely in it: sums and noise in f32 move the
/// edge of top-p and the scores by some 1e-6.
fn check(spec: &Spec, logits: &[f32], drawn: u32) -> Result<(), TestCaseError> {
    let share = |by: f32| Spec { top_p: spec.top_p + by, min_p: spec.min_p * (1.0 - by), ..*spec };
    let may = if spec.top_p < 1.0 { kept(logits, &share(1e-4)) } else { kept(logits, spec) };
    prop_assert!(may.contains(&drawn), "{drawn} is outside the {} tokens of {spec:?}", may.len());
    let score = |id: &u32| f64::from(logits[*id as usize] / spec.temperature) + gumbel(spec, *id);
    let surely = kept(logits, &share(-1e-4));
    let best = surely.iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap();
    prop_assert!(score(&drawn) >= score(best) - 1e-4, "{drawn} loses against {best} under {spec:?}");
    Ok(())
}

fn specs() -> impl Strategy<Value = Spec> {
    let temperature = prop::sample::select(vec![0.25f32, 1.0, 1.7]);
    let top_p = prop_oneof![Just(1.0f32), 0.01f32..0.999];
    let min_p = prop_oneof![Just(0.0f32), 0.001f32..0.9];
    let top_k = prop_oneof![Just(0u32), 1u32..20, 1u32..2000];
    (temperature, top_p, min_p, top_k, any::<[u32; 3]>()).prop_map(|(temperature, top_p, min_p, top_k, n)| {
        Spec { temperature, top_p, min_p, top_k, seed_low: n[0], seed_high: n[1], position: n[2], masked: 0 }
    })
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let Some(gpu) = gpu() else { return };
    for vocab in [1, 2, 255, 256, 257, 1000, 8192, 8193, 70_000] {
        let logits = logits(vocab * 3, 5);
        let specs = [Spec { temperature: 0.0, ..PLAIN }; 3];
        let mut want = [0; 3];
        cpu::sample::sample(vocab, &logits, &specs, &mut want);
        assert_eq!(draw(gpu, vocab, &logits, &specs), want, "vocabulary of {vocab}");
    }
}

#[test]
fn top_k_of_more_tokens_than_min_p_leaves_keeps_min_p() {
    let Some(gpu) = gpu() else { return };
    let logits: Vec<f32> = (0..100).map(|i| if i < 3 { 8.0 } else { 7.0 }).collect();
    let specs: Vec<Spec> =
        (0..200).map(|position| Spec { min_p: 0.5, top_k: 40, position, ..PLAIN }).collect();
    let drawn = draw(gpu, 100, &logits.repeat(200), &specs);
    assert!(drawn.iter().all(|id| *id < 3), "{drawn:?}");
}

#[test]
fn the_smallest_top_p_keeps_the_likeliest_token() {
    let Some(gpu) = gpu() else { return };
    let logits = logits(300, 9);
    let spec = Spec { top_p: 0.0, ..PLAIN };
    assert_eq!(draw(gpu, 300, &logits, &[spec]), [kept(&logits, &PLAIN)[0]]);
}

/// The largest noise that the hash can give is finite: it does not beat a token that is 30 nats likelier.
#[test]
fn the_largest_noise_is_finite() {
    let Some(gpu) = gpu() else { return };
    let spec = |position| Spec { position, ..PLAIN };
    let position =
        (0..1 << 26).find(|p| gumbel(&spec(*p), 1) > 16.5).expect("one in 2^23 has the largest noise");
    assert_eq!(draw(gpu, 2, &[30.0, 0.0], &[spec(position)]), [0]);
}

/// Frequencies of 4000 draws: the sum of `(seen - expected)^2 / expected` is about the number of tokens less one, and
/// above 30 once in some thousand seeds for up to 8 tokens; the seed is fixed.
#[test]
fn frequencies_are_the_probabilities() {
    let Some(gpu) = gpu() else { return };
    let logits = [1.0f32, 0.0, -0.5, 2.0, 1.5, -1.0, 0.25, 1.25];
    let filters = [
        PLAIN,
        Spec { temperature: 0.5, ..PLAIN },
        Spec { top_k: 3, ..PLAIN },
        Spec { top_p: 0.7, ..PLAIN },
        Spec { min_p: 0.3, ..PLAIN },
    ];
    let draws = 4000;
    for spec in filters {
        let specs: Vec<Spec> = (0..draws).map(|position| Spec { position, ..spec }).collect();
        let drawn = draw(gpu, logits.len(), &logits.repeat(draws as usize), &specs);
        let kept = kept(&logits, &spec);
        let mass = |id: u32| f64::from(logits[id as usize] / spec.temperature).exp();
        let all: f64 = kept.iter().map(|id| mass(*id)).sum();
        let chi2: f64 = kept
            .iter()
            .map(|id| {
                let expected = f64::from(draws) * mass(*id) / all;
                let seen = drawn.iter().filter(|d| *d == id).count() as f64;
                (seen - expected).powi(2) / expected
            })
            .sum();
        assert!(drawn.iter().all(|id| kept.contains(id)), "{spec:?} draws from {kept:?} only");
        assert!(chi2 < 30.0, "{spec:?}: chi squared is {chi2:.1} over {} tokens", kept.len());
    }
}

proptest! {
    #![proptest_config(cases(24))]
    #[test]
    fn draws_as_the_reference_does(
        specs in prop::collection::vec(specs(), 1..6),
        vocab in prop_oneof![1usize..20, 250usize..260, Just(1500usize), 8190usize..8200, Just(20_000usize)],
        each in prop::sample::select(vec![TOKENS_PER_LANE, TOKENS_PER_LANE_ON_CPU]),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let logits = logits(vocab * specs.len(), seed);
        let drawn = draw_behind(gpu, each, vocab, &logits, &specs);
        for ((spec, logits), drawn) in specs.iter().zip(logits.chunks_exact(vocab)).zip(drawn) {
            check(spec, logits, drawn)?;
        }
    }
}
