//! Cases of `sample`, and of the kernels before and after it.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::hostile::{self, Indices, Order};
use attn_kernels::self_test::{Case, Size, Spec as Choices, filled};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::cast::u32_of;
use crate::cpu;
use crate::cpu::sample::{gumbel, kept};
use crate::cpu::scan_logits::scan_logits;
use crate::kernel::adjust_logits::{AdjustLogitsParams, AdjustRow, NO_MASK};
use crate::kernel::sample::{NOT_FINITE, SampleParams, Spec};
use crate::kernel::scan_logits::{EACH, LANES, ScanLogitsParams, TOKENS_PER_LANE, parts};
use crate::kernel::top_logits::{MAX_TOP, TopLogitsParams, TopRequest};

/// Size of the vocabulary: two parts.
const VOCAB: usize = 9000;

/// Draws from the whole vocabulary.
const PLAIN: Spec = Spec { temperature: 1.0, seed_low: 1, seed_high: 2, ..Spec::GREEDY };

/// Tolerance of a quotient or product and two differences, with WGSL's division of 2.5 units: some units of 40 * 2^-24.
const ADJUSTED: Tolerance = Tolerance { abs: 2e-5, rel: 1e-6 };

/// Number of parts of a row of a timed case.
fn parts_of(variant: &Variant, size: &Size) -> u32 {
    parts(size.vocab, filled(variant, EACH))
}

pub(crate) fn cases(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        let (&Size { batch: rows, vocab, .. }, parts) = (size, parts_of(variant, size));
        let params = SampleParams { rows, vocab, parts, neg_inf: f32::NEG_INFINITY };
        let case = Case::new("draws without filters", variant, &params);
        let case = case.costs(f64::from(rows * parts * 28), 0.0).floats_of(rows * vocab);
        let case = case.binding(&vec![PLAIN; rows as usize]);
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

/// Chooses a size of a vocabulary: [`VOCAB`] by default, else one near the edges of workgroups, blocks and parts.
fn vocabulary(choices: &Choices) -> u32 {
    let usual = u32_of(VOCAB);
    let edges = [(1, 40), (250, 260), (1500, 1500), (8190, 8200), (20_000, 20_000)];
    let (least, most) = choices.one_of((usual, usual), &edges);
    choices.number(usual, least..=most)
}

pub(crate) fn scan(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        let (&Size { batch: rows, vocab, .. }, parts) = (size, parts_of(variant, size));
        let params = ScanLogitsParams { rows, vocab, parts, draws: 1, neg_inf: f32::NEG_INFINITY };
        let case = Case::new("rows to draw from", variant, &params).floats_of(rows * vocab);
        let case = case.binding(&vec![PLAIN; rows as usize]).floats_of(rows * parts);
        return vec![case.floats_of(4 * rows * parts).words_of(2 * rows * parts)];
    }
    let (each, vocab) = (filled(variant, EACH), vocabulary(choices));
    // Tokens from this one on are forbidden.
    let end = choices.one_of(vocab, &[vocab, (vocab / 4 * 3).max(1)]);
    let masked = u32::from(end < vocab);
    let usual =
        [PLAIN, Spec { temperature: 0.5, top_p: 0.5, ..PLAIN }, Spec { top_k: 3, ..PLAIN }, Spec::GREEDY];
    let specs = choices.list(&usual, 5, |choices| {
        let temperature = choices.one_of(0.0, &[0.0, 0.25, 1.0, 1.7]);
        Spec { temperature, top_k: choices.one_of(0, &[0, 5, 20_000]), masked, ..PLAIN }
    });
    let (rows, loud) = (u32_of(specs.len()), choices.one_of(8.0, &[8.0, 20.0]));
    let logit = |(i, x)| if i % vocab < end { x * loud } else { f32::NEG_INFINITY };
    let logits: Vec<f32> = (0..).zip(choices.floats((rows * vocab) as usize, 1)).map(logit).collect();
    let of_rows = logits.chunks_exact(vocab as usize).zip(&specs);
    let specs: Vec<Spec> = of_rows.map(|(logits, spec)| clear_in_parts(each, logits, spec)).collect();
    let parts = parts(vocab, each);
    let case = |what, specs: &[Spec], draws| {
        let scan = scan_logits(each, vocab as usize, &logits, if draws == 1 { specs } else { &[] });
        let params = ScanLogitsParams { rows, vocab, parts, draws, neg_inf: f32::NEG_INFINITY };
        Case::new(what, variant, &params)
            .binding(&logits)
            .binding(specs)
            .output(Tolerance::EXACT, &scan.maxima)
            .output(Tolerance { abs: 1e-4, rel: 1e-5 }, scan.values.as_flattened())
            .words(&vec![[12_345_678; 2]; scan.ids.len()], &scan.ids)
    };
    let mut cases =
        vec![case("rows to draw from", &specs, 1), case("rows without draws", &[Spec::GREEDY], 0)];
    let limits = vec![vocab; cases[0].buffers[4].len()];
    // A part without a number to draw by leaves what was there.
    let tokens = Indices { order: Order::Different, stride: 1, limits, none: Some(u32::MAX) };
    cases.extend(hostile::cases(&cases[0], &[0], &[(4, tokens)]));
    cases
}

/// Cases with edits of some rows, by default of two: one has a mask and every list, one has penalties alone. Rows between them
/// stay as they are.
pub(crate) fn adjust(variant: &Variant, choices: &Choices) -> Vec<Case> {
    if let Some(size) = choices.size() {
        return vec![timed_adjust(variant, size)];
    }
    let vocab = vocabulary(choices);
    let mut rng = StdRng::seed_from_u64(choices.seed(2));
    let (mut masks, mut edits, mut rows) = (Vec::<u32>::new(), Vec::new(), Vec::new());
    // Whether there is a mask, and tokens that are suppressed, have a bias, and occurred.
    let usual = [(true, [40, 300, 560]), (false, [0, 0, 340])];
    let asked = choices.list(&usual, 3, |choices| {
        (choices.one_of(true, &[true, false]), [(); 3].map(|()| choices.number(0, 0..=300)))
    });
    for (row, (masked, lens)) in (0..u32_of(asked.len())).rev().zip(asked) {
        let mask = if masked { u32_of(masks.len()) } else { NO_MASK };
        masks.extend((0..if masked { vocab.div_ceil(32) } else { 0 }).map(|_| rng.random::<u32>()));
        let operands: [fn(u32) -> u32; 3] =
            [|_| 0, |token| ((token % 160) as f32 / 4.0 - 20.0).to_bits(), |token| token % 9];
        let [suppressed, biases, counts] = std::array::from_fn(|list| {
            let first = u32_of(edits.len());
            let tokens = rand::seq::index::sample(&mut rng, vocab as usize, lens[list].min(vocab) as usize);
            edits.extend(tokens.into_iter().map(u32_of).map(|token| [token, operands[list](token)]));
            first
        });
        rows.push(AdjustRow {
            row: 2 * row,
            mask,
            suppressed,
            biases,
            counts,
            end: u32_of(edits.len()),
            repetition: choices.one_of(1.25, &[0.25, 0.8, 1.0, 1.25, 4.0]),
            presence: choices.one_of(0.5, &[-2.0, 0.0, 0.5, 1.9]),
            frequency: choices.one_of(0.125, &[-2.0, 0.0, 0.125, 1.9]),
        });
    }
    let logits = choices.floats(2 * rows.len() * vocab as usize, 1);
    let before: Vec<f32> = logits.iter().map(|x| x * 40.0).collect();
    let mut want = before.clone();
    cpu::adjust_logits::adjust_logits(vocab as usize, &rows, &masks, &edits, &mut want);
    let params = AdjustLogitsParams { rows: u32_of(rows.len()), vocab, neg_inf: f32::NEG_INFINITY };
    let case = Case::new("masks, biases and penalties", variant, &params)
        .binding(&rows)
        .binding(&masks)
        .binding(&edits)
        .updated(&before, ADJUSTED, &want);
    vec![case]
}

/// Cases of two dispatches, as portions of scored rows are. Some tokens are forbidden, but not the first.
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
        let (&Size { batch: requests, vocab, .. }, parts) = (size, parts_of(variant, size));
        let rows: Vec<TopRequest> = (0..requests).map(|row| TopRequest { row, tokens: 4 }).collect();
        let params = TopLogitsParams { vocab, parts, stride: 5, first: 0, requests };
        let case = Case::new("the likeliest of rows", variant, &params).floats_of(requests * vocab);
        let case = case.binding(&rows).binding(&vec![0u32; requests as usize]);
        let case = case.floats_of(requests * parts).floats_of(4 * requests * parts);
        return vec![case.words_of(5 * requests).floats_of(5 * requests)];
    }
    let (each, vocab) = (filled(variant, EACH), vocabulary(choices));
    // Many ties: multiples of 1/4.
    let logit = |(i, x): (u32, f32)| match i % vocab {
        1.. if x < -0.9 => f32::NEG_INFINITY,
        _ => (x * 80.0).round() / 4.0,
    };
    let logits: Vec<f32> = (0..).zip(choices.floats(5 * vocab as usize, 1)).map(logit).collect();
    let usual = [TopRequest { row: 2, tokens: 4 }, TopRequest { row: 0, tokens: 4 }];
    let requests = choices.list(&usual, 5, |choices| TopRequest {
        row: choices.number(0, 0..=4),
        tokens: choices.number(0, 0..=MAX_TOP.min(vocab)),
    });
    let targets = [8999, 0, 256, 5, 8191].map(|target| choices.number(target, 0..=vocab - 1));
    let stride = 1 + requests.iter().map(|request| request.tokens).max().expect("a request");
    let entries = requests.len() * stride as usize;
    let (mut ids, mut log_probs) = (vec![u32::MAX; entries], vec![f32::NAN; entries]);
    for (i, request) in requests.iter().enumerate() {
        let row = &logits[(request.row * vocab) as usize..][..vocab as usize];
        let found = cpu::top_logits::top_logits(row, targets[request.row as usize], request.tokens as usize);
        for (at, of) in (i * stride as usize..).zip(std::iter::once(&found.token).chain(&found.top)) {
            (ids[at], log_probs[at]) = (of.token, of.log_prob);
        }
    }
    let scan = scan_logits(each, vocab as usize, &logits, &[]);
    let last = u32_of(requests.len()) - 1;
    let of = |first, requests| TopLogitsParams { vocab, parts: parts(vocab, each), stride, first, requests };
    let case = Case::new("the likeliest of rows", variant, &of(0, last))
        .dispatch(&of(last, 1))
        .binding(&logits)
        .binding(&requests)
        .binding(&targets)
        .binding(&scan.maxima)
        .binding(&scan.values)
        .words(&vec![u32::MAX; entries], &ids)
        .output(Tolerance { abs: 2e-5, rel: 5e-6 }, &log_probs);
    let mut cases = vec![case];
    // The host reads the ids of rows of finite logits alone: of others, only their places matter.
    let limits = vec![u32::MAX; entries];
    let any = Indices { order: Order::Different, stride: 1, limits, none: Some(u32::MAX) };
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
fn clear_in_parts(each: u32, logits: &[f32], spec: &Spec) -> Spec {
    let part = each * LANES;
    let leads = |spec: &Spec| {
        let mut parts = (0..).zip(logits.chunks(part as usize)).map(|(index, logits)| {
            let score = |(id, logit): (u32, &f32)| f64::from(logit / spec.temperature) + gumbel(spec, id);
            let scores = (index * part..).zip(logits).map(score).filter(|score| score.is_finite());
            let mut scores: Vec<f64> = scores.collect();
            scores.sort_by(|a, b| b.total_cmp(a));
            scores.len() < 2 || scores[0] - scores[1] > 1e-2
        });
        spec.temperature == 0.0 || parts.all(|clear| clear)
    };
    (0..)
        .map(|position| Spec { position, ..*spec })
        .find(leads)
        .expect("most positions have clear candidates")
}
