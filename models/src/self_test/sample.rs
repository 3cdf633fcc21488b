//! Cases of `sample`.

use attn_kernels::Variant;
use attn_kernels::self_test::Case;
use attn_kernels::self_test::layer::floats;

use crate::cpu;
use crate::cpu::sample::{gumbel, kept};
use crate::kernel::sample::{self, SampleParams, Spec};

const VOCAB: usize = 1500;

/// Draws from the whole vocabulary.
const PLAIN: Spec = Spec { temperature: 1.0, seed_low: 1, seed_high: 2, ..Spec::GREEDY };

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    let filters = [
        Spec { temperature: 0.0, ..PLAIN },
        PLAIN,
        Spec { temperature: 0.5, ..PLAIN },
        Spec { top_k: 7, ..PLAIN },
        Spec { top_p: 0.6, ..PLAIN },
        Spec { min_p: 0.1, ..PLAIN },
        Spec { temperature: 1.5, top_k: 40, top_p: 0.8, min_p: 0.01, ..PLAIN },
    ];
    // Many ties: multiples of 1/4.
    let logits: Vec<f32> =
        floats(filters.len() * VOCAB, 1).iter().map(|x| (x * 24.0).round() / 4.0).collect();
    let rows = logits.chunks_exact(VOCAB).zip(&filters);
    let specs: Vec<Spec> = rows.map(|(logits, spec)| clear(logits, spec)).collect();
    let mut want = vec![0; specs.len()];
    cpu::sample::sample(VOCAB, &logits, &specs, &mut want);
    let (rows, vocab) = (7, 1500);
    let params = SampleParams { rows, vocab, neg_inf: f32::NEG_INFINITY, pad0: 0 };
    let case = Case::new("greedy and filtered draws", variant, &params, sample::grid(rows))
        .binding(&logits)
        .binding(&specs)
        .words(&[u32::MAX; 7], &want);
    vec![case]
}

/// `spec` at the first position whose draw does not hang on rounding: the edge of top-p is clear of sums in f32, and the
/// winner leads by more than noise and scores in f32 may err.
fn clear(logits: &[f32], spec: &Spec) -> Spec {
    let at = |position| Spec { position, ..*spec };
    let edge = |by: f32| kept(logits, &Spec { top_p: (spec.top_p + by).min(1.0), ..*spec }).len();
    assert!(spec.top_p == 1.0 || edge(1e-4) == edge(-1e-4), "{spec:?}: another top_p has a clear edge");
    let leads = |spec: &Spec| {
        let score = |id: u32| f64::from(logits[id as usize] / spec.temperature) + gumbel(spec, id);
        let mut scores: Vec<f64> = kept(logits, spec).into_iter().map(score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        spec.temperature == 0.0 || scores[0] - scores[1] > 1e-2
    };
    (0..).map(at).find(leads).expect("most positions have a clear winner")
}
