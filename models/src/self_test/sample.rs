//! Cases of `sample`, and of the kernels before and behind it.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::Case;
use attn_kernels::self_test::layer::floats;

use crate::cpu;
use crate::cpu::sample::{gumbel, kept};
use crate::kernel::adjust_logits::{self, AdjustLogitsParams, AdjustRow, NO_MASK};
use crate::kernel::sample::{self, SampleParams, Spec};
use crate::kernel::top_logits::{self, TopAsk, TopLogitsParams};

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

/// Two of three rows: one with a mask and every list, one with penalties alone.
pub(super) fn adjust(variant: &Variant) -> Vec<Case> {
    let (vocab, words) = (9000u32, 282u32);
    let before: Vec<f32> = floats(3 * vocab as usize, 1).iter().map(|x| x * 20.0).collect();
    let masks: Vec<u32> = (0..words).map(|i| 0xf0f0_ffff_u32.rotate_left(i)).collect();
    let mut edits: Vec<[u32; 2]> = (0..40).map(|i| [i * 7, 0]).collect();
    edits.extend((0..300).map(|i| [i * 29, (i as f32 / 8.0 - 10.0).to_bits()]));
    edits.extend((0..900).map(|i| [i * 9 + 5, i % 4]));
    let row = AdjustRow {
        row: 2,
        mask: 0,
        suppressed: 0,
        biases: 40,
        counts: 340,
        end: 900,
        repetition: 1.25,
        presence: 0.5,
        frequency: 0.125,
        pad0: 0,
        pad1: 0,
        pad2: 0,
    };
    let rest =
        AdjustRow { row: 0, mask: NO_MASK, suppressed: 900, biases: 900, counts: 900, end: 1240, ..row };
    let rows = [row, rest];
    let mut want = before.clone();
    cpu::adjust_logits::adjust_logits(vocab as usize, &rows, &masks, &edits, &mut want);
    let params = AdjustLogitsParams { vocab, neg_inf: f32::NEG_INFINITY, pad0: 0, pad1: 0 };
    let case = Case::new("masks, biases and penalties", variant, &params, adjust_logits::grid(2, vocab))
        .binding(&rows)
        .binding(&masks)
        .binding(&edits)
        .updated(&before, Tolerance { abs: 1e-5, rel: 1e-6 }, &want);
    vec![case]
}

pub(super) fn top(variant: &Variant) -> Vec<Case> {
    let vocab = 3001;
    let logits: Vec<f32> = floats(3 * vocab, 1).iter().map(|x| (x * 80.0).round() / 4.0).collect();
    let asks = [TopAsk { row: 2, tokens: 4 }, TopAsk { row: 0, tokens: 4 }];
    let targets = [3000, 0, 256];
    let (mut ids, mut log_probs) = (Vec::new(), Vec::new());
    for ask in asks {
        let row = &logits[ask.row as usize * vocab..][..vocab];
        let found = cpu::top_logits::top_logits(row, targets[ask.row as usize], ask.tokens as usize);
        ids.extend(std::iter::once(&found.token).chain(&found.top).map(|t| t.token));
        log_probs.extend(std::iter::once(&found.token).chain(&found.top).map(|t| t.log_prob));
    }
    let params = TopLogitsParams { vocab: 3001, stride: 5, first: 0, neg_inf: f32::NEG_INFINITY };
    let case = Case::new("rows of 3001", variant, &params, top_logits::grid(2))
        .binding(&logits)
        .binding(&asks)
        .binding(&targets)
        .words(&[u32::MAX; 10], &ids)
        .output(Tolerance { abs: 2e-5, rel: 5e-6 }, &log_probs);
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
