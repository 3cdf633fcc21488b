//! `adjust_logits` and `top_logits` against their references.

use super::device::{assert_close, cases, dispatch, gpu};
use super::scan::{Scan, each};
use super::tensors::floats;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use dense_kernels::cpu;
use dense_kernels::kernel::adjust_logits::{self, AdjustLogitsParams, AdjustRow, NO_MASK};
use dense_kernels::kernel::sample::Spec;
use dense_kernels::kernel::scan_logits::parts;
use dense_kernels::kernel::top_logits::{self, MAX_TOP, TopLogitsParams, TopRequest};
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

/// A quotient or product, two differences, and WGSL's division of 2.5 units: some units of 40 * 2^-24.
const ADJUSTED: Tolerance = Tolerance { abs: 2e-5, rel: 1e-6 };

/// One row's mask and edits.
#[derive(Clone, Debug)]
struct Edits {
    mask: Option<Vec<u32>>,
    suppressed: Vec<u32>,
    biases: Vec<(u32, f32)>,
    counts: Vec<(u32, u32)>,
    penalties: [f32; 3],
}

fn edits(vocab: usize) -> impl Strategy<Value = Edits> {
    let ids = || subsequence((0..u32::try_from(vocab).unwrap()).collect::<Vec<_>>(), 0..vocab.min(300));
    let with =
        |values: Vec<u32>| move |ids: Vec<u32>| ids.into_iter().zip(values.into_iter().cycle()).collect();
    let biases = (ids(), 1u32..200)
        .prop_map(move |(ids, by)| ids.into_iter().map(|id| (id, (id % by) as f32 / 4.0 - 20.0)).collect());
    let counts = (ids(), prop::collection::vec(0u32..9, 1..9)).prop_map(move |(ids, n)| with(n)(ids));
    let mask = prop::option::of(prop::collection::vec(any::<u32>(), vocab.div_ceil(32)));
    let penalties = [0.25f32..4.0, -2.0f32..2.0, -2.0f32..2.0];
    (mask, ids(), biases, counts, penalties).prop_map(|(mask, suppressed, biases, counts, penalties)| Edits {
        mask,
        suppressed,
        biases,
        counts,
        penalties,
    })
}

/// Every other row of the logits is edited.
fn lay_out(all: &[Edits]) -> (Vec<AdjustRow>, Vec<u32>, Vec<[u32; 2]>) {
    let (mut rows, mut masks, mut edits) = (Vec::new(), Vec::new(), Vec::new());
    let at = |len: usize| u32::try_from(len).unwrap();
    for (i, of) in all.iter().enumerate() {
        let [repetition, presence, frequency] = of.penalties;
        let mask = if of.mask.is_some() { at(masks.len()) } else { NO_MASK };
        masks.extend(of.mask.iter().flatten());
        let suppressed = at(edits.len());
        edits.extend(of.suppressed.iter().map(|id| [*id, 0]));
        let biases = at(edits.len());
        edits.extend(of.biases.iter().map(|(id, bias)| [*id, bias.to_bits()]));
        let counts = at(edits.len());
        edits.extend(of.counts.iter().map(|(id, n)| [*id, *n]));
        let (row, end) = (at(2 * i), at(edits.len()));
        let lists = AdjustRow { row, mask, suppressed, biases, counts, end, ..bytemuck::Zeroable::zeroed() };
        rows.push(AdjustRow { repetition, presence, frequency, ..lists });
    }
    (rows, masks, edits)
}

fn adjusted(
    gpu: &Gpu,
    vocab: usize,
    lists: &(Vec<AdjustRow>, Vec<u32>, Vec<[u32; 2]>),
    logits: &[f32],
) -> Vec<f32> {
    let (rows, masks, edits) = lists;
    let (rows, masks) = (gpu.upload("rows", rows).unwrap(), gpu.upload("masks", masks).unwrap());
    let (edits, out) = (gpu.upload("edits", edits).unwrap(), gpu.upload("logits", logits).unwrap());
    let [count, vocab] = [rows.len(), vocab].map(|n| u32::try_from(n).unwrap());
    let params = AdjustLogitsParams { rows: count, vocab, neg_inf: f32::NEG_INFINITY };
    let bindings = [(&rows).into(), (&masks).into(), (&edits).into(), (&out).into()];
    let mut pass = Pass::new("adjust");
    dispatch(gpu, &mut pass, &adjust_logits::variant(), &params, &bindings);
    let read = pass.read(&out, 0..out.len());
    gpu.submit(pass).unwrap().wait().unwrap().get(read)
}

/// Ids and log-probabilities, `[requests, stride]`; the row's own number is its target.
fn top(
    gpu: &Gpu,
    [each, vocab]: [u32; 2],
    logits: &[f32],
    requests: &[TopRequest],
    targets: &[u32],
) -> (Vec<u32>, Vec<f32>) {
    let stride = requests.iter().map(|request| request.tokens + 1).max().unwrap();
    let entries = requests.len() * stride as usize;
    let inputs = (gpu.upload("logits", logits).unwrap(), gpu.upload("requests", requests).unwrap());
    let targets = gpu.upload("targets", targets).unwrap();
    let ids = gpu.upload("ids", &vec![u32::MAX; entries]).unwrap();
    let log_probs = gpu.upload("log_probs", &vec![f32::NAN; entries]).unwrap();
    let mut pass = Pass::new("top");
    let rows = u32::try_from(logits.len()).unwrap() / vocab;
    let specs = gpu.upload("specs", &[Spec::GREEDY]).unwrap();
    let scan = Scan::new(gpu, each, vocab, rows);
    scan.record(gpu, &mut pass, [vocab, rows], [(&inputs.0).into(), (&specs).into()], false);
    let [maxima, values, _] = scan.binds();
    let bindings: [Bound; 7] = [
        (&inputs.0).into(),
        (&inputs.1).into(),
        (&targets).into(),
        maxima,
        values,
        (&ids).into(),
        (&log_probs).into(),
    ];
    // In two dispatches, as portions of scored rows are.
    let last = u32::try_from(requests.len() - 1).unwrap();
    for (first, requests) in [(0, last), (last, 1)] {
        let params = TopLogitsParams { vocab, parts: parts(vocab, each), stride, first, requests };
        dispatch(gpu, &mut pass, &top_logits::variant(each), &params, &bindings);
    }
    let reads = (pass.read(&ids, 0..entries), pass.read(&log_probs, 0..entries));
    let done = gpu.submit(pass).unwrap().wait().unwrap();
    (done.get(reads.0), done.get(reads.1))
}

/// Drawing may leave such an id for a row of NaN: it must not become an index.
#[test]
fn a_target_outside_the_vocabulary_reads_the_last_token() {
    let Some(gpu) = gpu() else { return };
    let requests = [TopRequest { row: 0, tokens: 1 }, TopRequest { row: 1, tokens: 1 }];
    let (ids, log_probs) = top(gpu, [32, 40], &floats(80, 7), &requests, &[u32::MAX, 3]);
    assert_eq!([ids[0], ids[2]], [39, 3]);
    assert!(log_probs.iter().all(|log_prob| log_prob.is_finite()), "{log_probs:?}");
}

fn vocabularies() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..40, 250usize..260, Just(1500usize), Just(8192usize), Just(8200usize)]
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn edits_act_in_their_order(
        (vocab, all) in vocabularies().prop_flat_map(|v| (Just(v), prop::collection::vec(edits(v), 1..4))),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let logits: Vec<f32> = floats(vocab * 2 * all.len(), seed).iter().map(|x| x * 40.0).collect();
        let lists = lay_out(&all);
        let got = adjusted(gpu, vocab, &lists, &logits);
        let mut want = logits.clone();
        cpu::adjust_logits::adjust_logits(vocab, &lists.0, &lists.1, &lists.2, &mut want);
        assert_close(&format!("{all:?}"), ADJUSTED, &got, &want);
    }

    #[test]
    fn the_likeliest_tokens_come_in_order(
        vocab in vocabularies(),
        requests in prop::collection::vec((0u32..5, 0u32..=MAX_TOP), 1..6),
        targets in prop::collection::vec(any::<Index>(), 5),
        each in each(),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        // Multiples of 1/4, many of them equal; some tokens are forbidden.
        let logits: Vec<f32> = floats(vocab * 5, seed)
            .iter()
            .map(|x| if *x < -0.9 { f32::NEG_INFINITY } else { (x * 80.0).round() / 4.0 })
            .collect();
        prop_assume!(logits.chunks(vocab).all(|row| row.iter().any(|v| v.is_finite())));
        let targets: Vec<u32> = targets.iter().map(|at| u32::try_from(at.index(vocab)).unwrap()).collect();
        let most = u32::try_from(vocab).unwrap();
        let requests: Vec<TopRequest> =
            requests.into_iter().map(|(row, tokens)| TopRequest { row, tokens: tokens.min(most) }).collect();
        let (ids, log_probs) = top(gpu, [each, most], &logits, &requests, &targets);
        let stride = ids.len() / requests.len();
        for (i, request) in requests.iter().enumerate() {
            let row = &logits[request.row as usize * vocab..][..vocab];
            let want = cpu::top_logits::top_logits(row, targets[request.row as usize], request.tokens as usize);
            let entries = i * stride..=i * stride + request.tokens as usize;
            let wanted = || std::iter::once(want.token).chain(want.top.iter().copied());
            prop_assert_eq!(&ids[entries.clone()], &wanted().map(|t| t.token).collect::<Vec<_>>()[..]);
            for (got, want) in log_probs[entries].iter().zip(wanted()) {
                // Logits of up to 20, and a logarithm of up to 10.
                let close = (got - want.log_prob).abs() < 2e-5 || *got == want.log_prob;
                prop_assert!(close, "{got} instead of {want:?}");
            }
        }
    }
}
