//! `scan_logits`, which `sample` and `top_logits` go behind, against its reference.

use super::device::{assert_close, cases, dispatch, gpu};
use super::tensors::floats;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Buf, Gpu, Pass};
use dense_kernels::cpu;
use dense_kernels::kernel::sample::Spec;
use dense_kernels::kernel::scan_logits::{self, LANES, ScanLogitsParams, parts};
use proptest::prelude::*;

/// Results of a scan, and of how many tokens its blocks are.
pub(crate) struct Scan {
    pub(crate) each: u32,
    maxima: Buf<f32>,
    values: Buf<[f32; 4]>,
    ids: Buf<[u32; 2]>,
}

impl Scan {
    /// For `rows` rows.
    pub(crate) fn new(gpu: &Gpu, each: u32, vocab: u32, rows: u32) -> Self {
        let parts = (rows * parts(vocab, each)) as usize;
        Self {
            each,
            maxima: gpu.upload("maxima", &vec![f32::NAN; parts * LANES as usize]).unwrap(),
            values: gpu.upload("values", &vec![[f32::NAN; 4]; parts]).unwrap(),
            ids: gpu.upload("ids", &vec![[12_345_678; 2]; parts]).unwrap(),
        }
    }

    /// Scans `rows` rows of `[logits, specs]`.
    pub(crate) fn record(
        &self,
        gpu: &Gpu,
        pass: &mut Pass,
        [vocab, rows]: [u32; 2],
        [logits, specs]: [Bound; 2],
        draws: bool,
    ) {
        let parts = parts(vocab, self.each);
        let draws = u32::from(draws);
        let params = ScanLogitsParams { rows, vocab, parts, draws, neg_inf: f32::NEG_INFINITY };
        let [maxima, values, ids] = self.binds();
        let bindings = [logits, specs, maxima, values, ids];
        dispatch(gpu, pass, &scan_logits::variant(self.each), &params, &bindings);
    }

    /// Maxima, values and ids.
    pub(crate) fn binds(&self) -> [Bound; 3] {
        [(&self.maxima).into(), (&self.values).into(), (&self.ids).into()]
    }
}

/// Tokens of a block.
pub(crate) fn each() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![scan_logits::TOKENS_PER_LANE, scan_logits::TOKENS_PER_LANE_ON_CPU])
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn a_scan_finds_the_largest_and_the_candidates(
        vocab in prop_oneof![1u32..20, 250u32..260, 8190u32..8200, Just(20_000u32)],
        temperatures in prop::collection::vec(prop::sample::select(vec![0.0f32, 0.25, 1.0, 1.7]), 1..5),
        top_k in prop::sample::select(vec![0u32, 5, 20_000]),
        each in each(),
        draws: bool,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let rows = u32::try_from(temperatures.len()).unwrap();
        let spec = |temperature: &f32| Spec { temperature: *temperature, top_k, seed_low: 7, masked: 1, ..Spec::GREEDY };
        let specs: Vec<Spec> = temperatures.iter().map(spec).collect();
        // The last quarter of the vocabulary is forbidden.
        let forbidden = (vocab / 4 * 3).max(1);
        let logits: Vec<f32> = (0u32..)
            .zip(floats((rows * vocab) as usize, seed))
            .map(|(i, x)| if i % vocab < forbidden { x * 20.0 } else { f32::NEG_INFINITY })
            .collect();
        let inputs = (gpu.upload("logits", &logits).unwrap(), gpu.upload("specs", &specs).unwrap());
        let mut pass = Pass::new("scan");
        let scan = Scan::new(gpu, each, vocab, rows);
        scan.record(gpu, &mut pass, [vocab, rows], [(&inputs.0).into(), (&inputs.1).into()], draws);
        let maxima = pass.read(&scan.maxima, 0..scan.maxima.len());
        let values = pass.read(&scan.values, 0..scan.values.len());
        let ids = pass.read(&scan.ids, 0..scan.ids.len());
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let drawn = if draws { &specs[..] } else { &[] };
        let want = cpu::scan_logits::scan_logits(each, vocab as usize, &logits, drawn);
        prop_assert_eq!(done.get(maxima), want.maxima);
        for ((got, want), ids) in done.get(ids).iter().zip(&want.ids).zip(done.get(values).iter().zip(&want.values)) {
            prop_assert_eq!(got[0], want[0], "the largest");
            let (values, wanted) = ids;
            // Scores of up to 200, whose noise comes from two logarithms; sums of some thousand exponentials.
            let tolerance = Tolerance { abs: 1e-4, rel: 1e-5 };
            assert_close(&format!("{got:?} {want:?}"), tolerance, values, wanted);
            let clear = got[1] == want[1] || (values[1] - wanted[1]).abs() < 1e-4;
            prop_assert!(clear && (got[1] == u32::MAX) == (want[1] == u32::MAX), "candidates {got:?} {want:?}");
        }
    }
}
