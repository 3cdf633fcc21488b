//! Cases of `sample`, and of the kernels before and after it.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::hostile::{self, Indices, Order};
use attn_kernels::self_test::{Case, Size, Spec as Choices};

use crate::cpu;
use crate::cpu::sample::{gumbel, kept};
use crate::kernel::adjust_logits::{AdjustLogitsParams, AdjustRow, NO_MASK};
use crate::kernel::sample::{NOT_FINITE, SampleParams, Spec};
use crate::kernel::scan_logits::{self, ScanLogitsParams, TOKENS_PER_LANE};
use crate::kernel::top_logits::{TopLogitsParams, TopRequest};

/// Size of the vocabulary: two parts.
const VOCAB: usize = 9000;

/// Draws from the whole vocabulary.
const PLAIN: Spec = Spec { temperature: 1.0, seed_low: 1, seed_high: 2, ..Spec::GREEDY };

/// Number of parts of a row of a timed case.
fn parts_of(size: &Size) -> u32 {
    scan_logits::parts(size.vocab, TOKENS_PER_LANE)
}

pub(crate) fn cases(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        let (&Size { batch: rows, vocab, .. }, parts) = (size, parts_of(size));
        let params = SampleParams { rows, vocab, parts, neg_inf: f32::NEG_INFINITY };
        let case =
            Case::new("draws without filters", variant, &params).costs(f64::from(rows * parts * 28), 0.0);
        let case = case.floats_of(rows * vocab).binding(&vec![PLAIN; rows as usize]);
        let case = case.floats_of(rows * parts).floats_of(4 * rows * parts);
        return vec![case.binding(&vec![[0u32; 2]; (rows * parts) as usize]).words_of(rows)];
    }
    let filters = [
        Spec { temperature: 0.0, ..PLAIN },
        PLAIN,
        Spec { temperature: 0.5, ..PLAIN },
        Spec { top_k: 7, ..PLAIN },
        Spec { top_p: 0.6, ..PLAIN },
        Spec { min_p: 0.1, ..PLAIN },
        Spec { temperature: 1.5, top_k: 40, top_p: 0.81, min_p: 0.01, ..PLAIN },
    ];
    // Many ties: multiples of 1/4.
    let logits: Vec<f32> =
        choices.floats(filters.len() * VOCAB, 1).iter().map(|x| (x * 24.0).round() / 4.0).collect();
    let rows = logits.chunks_exact(VOCAB).zip(&filters);
    let specs: Vec<Spec> = rows.map(|(logits, spec)| clear(logits, spec)).collect();
    let mut want = vec![0; specs.len()];
    cpu::sample::sample(VOCAB, &logits, &specs, &mut want);
    let scan = cpu::scan_logits::scan_logits(TOKENS_PER_LANE, VOCAB, &logits, &specs);
    let params = SampleParams { rows: 7, vocab: 9000, parts: 2, neg_inf: f32::NEG_INFINITY };
    let case = Case::new("greedy and filtered draws", variant, &params)
        .binding(&logits)
        .binding(&specs)
        .binding(&scan.maxima)
        .binding(&scan.values)
        .binding(&scan.ids)
        .words(&[u32::MAX; 7], &want);
    let mut cases = vec![case];
    // `top_logits` has the tokens as indices, and takes the last one for none.
    let tokens =
        Indices { order: Order::Different, stride: 1, limits: vec![9000; 7], none: Some(NOT_FINITE) };
    for floats in [&[0][..], &[2], &[3], &[0, 2, 3]] {
        cases.extend(hostile::cases(&cases[0], floats, &[(5, tokens.clone())]));
    }
    cases
}

pub(crate) fn scan(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        let (&Size { batch: rows, vocab, .. }, parts) = (size, parts_of(size));
        let params = ScanLogitsParams { rows, vocab, parts, draws: 1, neg_inf: f32::NEG_INFINITY };
        let case = Case::new("rows to draw from", variant, &params).floats_of(rows * vocab);
        let case = case.binding(&vec![PLAIN; rows as usize]).floats_of(rows * parts);
        return vec![case.floats_of(4 * rows * parts).words_of(2 * rows * parts)];
    }
    let specs =
        [PLAIN, Spec { temperature: 0.5, top_p: 0.5, ..PLAIN }, Spec { top_k: 3, ..PLAIN }, Spec::GREEDY];
    let logits: Vec<f32> = choices.floats(4 * VOCAB, 1).iter().map(|x| x * 8.0).collect();
    let rows = logits.chunks_exact(VOCAB).zip(&specs);
    let specs: Vec<Spec> = rows.map(|(logits, spec)| clear_in_parts(logits, spec)).collect();
    let case = |what, specs: &[Spec], draws| {
        let scan = cpu::scan_logits::scan_logits(
            TOKENS_PER_LANE,
            VOCAB,
            &logits,
            if draws == 1 { specs } else { &[] },
        );
        let params = ScanLogitsParams { rows: 4, vocab: 9000, parts: 2, draws, neg_inf: f32::NEG_INFINITY };
        Case::new(what, variant, &params)
            .binding(&logits)
            .binding(specs)
            .output(Tolerance::EXACT, &scan.maxima)
            .output(Tolerance { abs: 1e-4, rel: 1e-5 }, scan.values.as_flattened())
            .words(&[[12_345_678; 2]; 8], &scan.ids)
    };
    let mut cases =
        vec![case("rows to draw from", &specs, 1), case("rows without draws", &[Spec::GREEDY], 0)];
    let limits = vec![9000; cases[0].buffers[4].len()];
    // A part without a number to draw by leaves what was there.
    let tokens = Indices { order: Order::Different, stride: 1, limits, none: Some(u32::MAX) };
    cases.extend(hostile::cases(&cases[0], &[0], &[(4, tokens)]));
    cases
}

/// Cases with edits of two of three rows: one has a mask and every list, one has penalties alone.
pub(crate) fn adjust(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        return vec![timed_adjust(variant, size)];
    }
    let (vocab, words) = (9000u32, 282u32);
    let before: Vec<f32> = choices.floats(3 * vocab as usize, 1).iter().map(|x| x * 20.0).collect();
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
    };
    let rest =
        AdjustRow { row: 0, mask: NO_MASK, suppressed: 900, biases: 900, counts: 900, end: 1240, ..row };
    let rows = [row, rest];
    let mut want = before.clone();
    cpu::adjust_logits::adjust_logits(vocab as usize, &rows, &masks, &edits, &mut want);
    let params = AdjustLogitsParams { rows: 2, vocab, neg_inf: f32::NEG_INFINITY };
    let case = Case::new("masks, biases and penalties", variant, &params)
        .binding(&rows)
        .binding(&masks)
        .binding(&edits)
        .updated(&before, Tolerance { abs: 1e-5, rel: 1e-6 }, &want);
    vec![case]
}

/// Masks of all rows, and penalties on 900 tokens of each, in a case that is only timed.
fn timed_adjust(variant: &Variant, size: &Size) -> Case {
    let &Size { batch, vocab, .. } = size;
    let words = vocab.div_ceil(32);
    let row = |row| AdjustRow {
        row,
        mask: row * words,
        suppressed: 0,
        biases: 0,
        counts: 0,
        end: 900,
        repetition: 1.25,
        presence: 0.5,
        frequency: 0.125,
    };
    let rows: Vec<AdjustRow> = (0..batch).map(row).collect();
    let edits: Vec<[u32; 2]> = (0..900).map(|i| [i * (vocab / 900), 1]).collect();
    let params = AdjustLogitsParams { rows: batch, vocab, neg_inf: f32::NEG_INFINITY };
    let (masks, logits) = (f64::from(batch * words), f64::from(batch * vocab));
    let case = Case::new("masks and penalties", variant, &params).costs(4.0 * masks + 8.0 * logits, 0.0);
    case.binding(&rows).words_of(batch * words).binding(&edits).floats_of(batch * vocab)
}

pub(crate) fn top(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        let (&Size { batch: requests, vocab, .. }, parts) = (size, parts_of(size));
        let rows: Vec<TopRequest> = (0..requests).map(|row| TopRequest { row, tokens: 4 }).collect();
        let params = TopLogitsParams { vocab, parts, stride: 5, first: 0, requests };
        let case = Case::new("the likeliest of rows", variant, &params).floats_of(requests * vocab);
        let case = case.binding(&rows).binding(&vec![0u32; requests as usize]);
        let case = case.floats_of(requests * parts).floats_of(4 * requests * parts);
        return vec![case.words_of(5 * requests).floats_of(5 * requests)];
    }
    let vocab = VOCAB;
    let logits: Vec<f32> = choices.floats(3 * vocab, 1).iter().map(|x| (x * 80.0).round() / 4.0).collect();
    let requests = [TopRequest { row: 2, tokens: 4 }, TopRequest { row: 0, tokens: 4 }];
    let targets = [8999, 0, 256].map(|target| choices.number(target, 0..=8999));
    let (mut ids, mut log_probs) = (Vec::new(), Vec::new());
    for request in requests {
        let row = &logits[request.row as usize * vocab..][..vocab];
        let found = cpu::top_logits::top_logits(row, targets[request.row as usize], request.tokens as usize);
        ids.extend(std::iter::once(&found.token).chain(&found.top).map(|t| t.token));
        log_probs.extend(std::iter::once(&found.token).chain(&found.top).map(|t| t.log_prob));
    }
    let scan = cpu::scan_logits::scan_logits(TOKENS_PER_LANE, vocab, &logits, &[]);
    let params = TopLogitsParams { vocab: 9000, parts: 2, stride: 5, first: 0, requests: 2 };
    let case = Case::new("the likeliest of rows", variant, &params)
        .binding(&logits)
        .binding(&requests)
        .binding(&targets)
        .binding(&scan.maxima)
        .binding(&scan.values)
        .words(&[u32::MAX; 10], &ids)
        .output(Tolerance { abs: 2e-5, rel: 5e-6 }, &log_probs);
    let mut cases = vec![case];
    // The host reads the ids of rows of finite logits alone: of others, only their places matter.
    let any =
        Indices { order: Order::Different, stride: 1, limits: vec![u32::MAX; 10], none: Some(u32::MAX) };
    for floats in [&[0][..], &[3], &[0, 3, 4]] {
        cases.extend(hostile::cases(&cases[0], floats, &[(5, any.clone())]));
    }
    cases
}

/// Returns `spec` at the first top-p and position whose draw does not depend on rounding: the mass of the kept tokens
/// differs enough from top-p, and the winner leads by more than the errors of noise and scores in f32.
fn clear(logits: &[f32], spec: &Spec) -> Spec {
    let edge = |top_p: f32| kept(logits, &Spec { top_p, ..*spec }).len();
    let is_clear = |top_p: &f32| *top_p == 1.0 || edge((top_p + 1e-4).min(1.0)) == edge(top_p - 1e-4);
    let mut lower = (0_u8..100).map(|n| spec.top_p - f32::from(n) / 1024.0);
    let top_p = lower.find(is_clear).expect("one of some top_p has a clear edge");
    let at = |position| Spec { position, top_p, ..*spec };
    let leads = |spec: &Spec| {
        let score = |id: u32| f64::from(logits[id as usize] / spec.temperature) + gumbel(spec, id);
        let mut scores: Vec<f64> = kept(logits, spec).into_iter().map(score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        spec.temperature == 0.0 || scores[0] - scores[1] > 1e-2
    };
    (0..).map(at).find(leads).expect("most positions have a clear winner")
}

/// Returns `spec` at the first position where the candidate of every part leads by more than rounding errors.
fn clear_in_parts(logits: &[f32], spec: &Spec) -> Spec {
    let leads = |spec: &Spec| {
        let mut parts = (0..).zip(logits.chunks(8192)).map(|(part, logits)| {
            let score = |(id, logit): (u32, &f32)| f64::from(logit / spec.temperature) + gumbel(spec, id);
            let mut scores: Vec<f64> = (part * 8192..).zip(logits).map(score).collect();
            scores.sort_by(|a, b| b.total_cmp(a));
            scores[0] - scores[1] > 1e-2
        });
        spec.temperature == 0.0 || parts.all(|clear| clear)
    };
    (0..)
        .map(|position| Spec { position, ..*spec })
        .find(leads)
        .expect("most positions have clear candidates")
}
