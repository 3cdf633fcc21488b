//! Draws with masks, biases, penalties and filters, and log-probabilities, against references on the logits that the
//! decoder hands back.

use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use kvblock::BlockId;
use models::batch::{Phase, Sample, Slice};
use models::cpu;
use models::kernel::adjust_logits::{AdjustRow, NO_MASK};
use models::kernel::sample::Spec;
use models::sampling::{
    Allowed, Dry, LogProbs, LogitAdjustments, LogitBias, Penalties, Sampler, Sampling, TokenBias,
};

use super::options;
use super::served::{Request, Served, serve};
use super::tiny::tiny;

const TOKENS: usize = 24;

/// Everything at once; the sharp temperature keeps draws clear of rounding.
fn everything() -> Sampling {
    let bias = |(token, bias)| TokenBias { token, bias };
    Sampling::default()
        .temperature(0.5)
        .top_k(40)
        .top_p(0.9)
        .min_p(0.01)
        .seed(0x5eed_0000_0001)
        .penalties(Penalties::OFF.repetition(1.3).presence(0.4).frequency(0.2))
        .dry(Dry::OFF.multiplier(0.8).allowed_length(1).breakers([3]))
        .logit_bias(LogitBias::new([(5, 1.5), (9, -2.0), (77, 0.5)].map(bias)))
        .min_tokens(12)
        .stop_ids(vec![1, 2, 40])
        .log_probs(Some(3))
}

/// Every other token of the vocabulary of 128.
const EVEN: [u32; 4] = [0x5555_5555; 4];

fn served(requests: &[Request<'_>]) -> Vec<Served> {
    serve(&mut tiny().decoder(&options(KvDtype::F32)), requests, 64)
}

/// The token that references draw from `logits` of one row.
fn drawn(logits: &[f32], sample: &Sample<'_>) -> u32 {
    let LogitAdjustments { allowed, suppressed, bias, penalties, counts } = sample.adjust;
    let words = allowed.map_or(&[][..], |allowed| match allowed {
        Allowed::Words(words) => words,
        Allowed::Late => unreachable!("references know all masks"),
    });
    let of = |len: usize| u32::try_from(len).unwrap();
    let mut edits: Vec<[u32; 2]> = suppressed.iter().map(|token| [*token, 0]).collect();
    let biases = of(edits.len());
    edits.extend(bias.unwrap().as_slice().iter().map(|b| [b.token, b.bias.to_bits()]));
    let counted = of(edits.len());
    edits.extend(counts.unwrap().as_slice().iter().map(|c| [c.token, c.count]));
    let row = AdjustRow {
        mask: if allowed.is_some() { 0 } else { NO_MASK },
        biases,
        counts: counted,
        end: of(edits.len()),
        repetition: penalties.repetition,
        presence: penalties.presence,
        frequency: penalties.frequency,
        ..bytemuck::Zeroable::zeroed()
    };
    let mut logits = logits.to_vec();
    cpu::adjust_logits::adjust_logits(128, &[row], words, &edits, &mut logits);
    let mut token = [u32::MAX];
    let mut spec = sample.spec;
    // Logits of what may not be drawn are no numbers, and right so.
    spec.masked = u32::from(allowed.is_some() || !suppressed.is_empty());
    cpu::sample::sample(128, &logits, &[spec], &mut token);
    token[0]
}

fn assert_close(got: &LogProbs, logits: &[f32], token: u32, top: usize) {
    let want = cpu::top_logits::top_logits(logits, token, top);
    let ids = |of: &LogProbs| of.top.iter().map(|t| t.token).collect::<Vec<_>>();
    assert_eq!((got.token.token, ids(got)), (token, ids(&want)));
    let pairs = std::iter::zip(&got.top, &want.top).chain([(&got.token, &want.token)]);
    pairs.for_each(|(got, want)| assert!((got.log_prob - want.log_prob).abs() < 1e-5, "{got:?} {want:?}"));
}

/// Follows a request's draws with references, on the logits that it got.
fn follow(request: &Request<'_>, served: &Served) {
    let mut sampler = Sampler::new(request.sampling.unwrap().clone(), request.ids);
    let rows = served.logits.chunks_exact(128).skip(request.ids.len() - 1);
    assert_eq!((served.drawn.len(), served.log_probs.len()), (request.tokens, request.tokens));
    let drawn_there = served.drawn.iter().zip(rows).zip(&served.log_probs);
    let first = u32::try_from(request.ids.len()).unwrap();
    for (position, ((token, logits), log_probs)) in (first..).zip(drawn_there) {
        let sample = sampler.sample(0, position, request.allowed.map(Allowed::Words));
        assert_eq!(*token, drawn(logits, &sample), "at position {position}");
        assert_close(log_probs, logits, *token, 3);
        sampler.push(*token);
    }
}

#[test]
fn draws_are_those_of_the_references_in_any_company() {
    let sampling = everything();
    let all = Request { sampling: Some(&sampling), ..Request::new(&tiny().prompts[3].ids, TOKENS) };
    let masked = Request { allowed: Some(&EVEN), ..all };
    let late = Request { late: true, ..masked };
    let plain = Request::new(&tiny().prompts[1].ids, TOKENS);
    let together = served(&[all, plain, masked, late]);
    assert_eq!(together[2], together[3]);
    follow(&all, &together[0]);
    follow(&masked, &together[2]);
    assert!(together[2].drawn.iter().all(|token| token % 2 == 0), "{:?}", together[2].drawn);
    let early = together.iter().step_by(2).flat_map(|served| &served.drawn[..12]);
    assert!(early.clone().all(|token| !sampling.stop_ids.contains(token)), "stop ids before 12 tokens");
    assert_ne!(together[0].drawn, together[2].drawn);
    for (request, served_together) in [all, plain, masked, late].into_iter().zip(together) {
        assert_eq!(served(&[request]), [served_together], "alone");
    }
}

/// Lists grow from step to step, and the commands stay.
#[test]
fn steps_with_penalties_are_encoded_ahead() {
    let sampling = everything();
    let request = |logits| Request {
        sampling: Some(&sampling),
        allowed: Some(&EVEN),
        late: true,
        logits,
        ..Request::new(&tiny().prompts[3].ids, TOKENS)
    };
    let mut decoder = tiny().decoder(&options(KvDtype::F32));
    // Buffers have grown after the first run.
    serve(&mut decoder, &[request(false)], 64);
    let before = decoder.steps_ahead();
    let ahead = serve(&mut decoder, &[request(false)], 64).remove(0);
    assert_eq!(decoder.steps_ahead() - before, TOKENS as u64 - 2);
    let one_by_one = served(&[request(true)]).remove(0);
    assert_eq!((ahead.drawn, ahead.log_probs), (one_by_one.drawn, one_by_one.log_probs));
}

#[test]
fn stop_ids_are_drawn_once_there_are_enough_tokens() {
    let greedy = served(&[Request::new(&tiny().prompts[3].ids, 1)]).remove(0).drawn[0];
    let held = |min_tokens| {
        let sampling = Sampling::default().min_tokens(min_tokens).stop_ids(vec![greedy]);
        let request = Request { sampling: Some(&sampling), ..Request::new(&tiny().prompts[3].ids, 1) };
        served(&[request]).remove(0).drawn[0]
    };
    assert_eq!(held(0), greedy);
    assert_ne!(held(1), greedy);
}

/// Targets in several portions of the output head, of two of three sequences.
#[test]
fn prompts_have_log_probabilities() {
    let ids: Vec<u32> = (0..150).map(|i| i * 37 % 128).collect();
    let requests = [
        Request { echo: Some(2), ..Request::new(&ids, 2) },
        Request::new(&ids[3..40], 2),
        Request { echo: Some(0), ..Request::new(&ids[50..], 2) },
    ];
    for chunk in [150, 64] {
        let served = serve(&mut tiny().decoder(&options(KvDtype::F32)), &requests, chunk);
        for (request, served) in requests.iter().zip(&served) {
            let Some(top) = request.echo else {
                assert_eq!(served.echoed, []);
                continue;
            };
            assert_eq!(served.echoed.len(), request.ids.len() - 1);
            let rows = served.logits.chunks_exact(128).zip(&request.ids[1..]);
            rows.zip(&served.echoed)
                .for_each(|((logits, token), got)| assert_close(got, logits, *token, top as usize));
        }
    }
}

#[test]
fn draws_that_cannot_be_are_refused() {
    let mut decoder = tiny().decoder(&options(KvDtype::F32));
    let table = [BlockId::new(1)];
    let mut refused = |adjust: LogitAdjustments<'_>, log_probs, targets: &[u32]| {
        let tables: [&[BlockId]; 1] = [&table];
        let slice = Slice { targets, ..Slice::new(&[3], 0, &tables, Phase::Prefill) };
        let sample = Sample { adjust, log_probs, ..Sample::new(0, Spec::GREEDY) };
        decoder.step(&[slice], &[sample]).unwrap_err().to_string()
    };
    let none = LogitAdjustments::default();
    let masked = |allowed: &'static [u32], suppressed| LogitAdjustments {
        allowed: Some(Allowed::Words(allowed)),
        suppressed,
        ..none
    };
    assert_snapshot!(refused(masked(&[0; 4], &[]), None, &[]), @"sample 0 has no token left to draw: its mask allows 0 tokens, and all of these are suppressed");
    assert_snapshot!(refused(masked(&[0, 6, 0, 0], &[33, 34, 33, 200]), None, &[]), @"sample 0 has no token left to draw: its mask allows 2 tokens, and all of these are suppressed");
    assert_snapshot!(refused(masked(&[1; 3], &[]), None, &[]), @"sample 0 has a mask of 3 words, a vocabulary of 128 needs 4");
    assert_snapshot!(refused(none, Some(21), &[]), @"log-probabilities of 21 tokens at each position, at most 20 are returned");
    assert_snapshot!(refused(none, None, &[128]), @"token id 128 at position 1 is outside the vocabulary of 128");
    let sampling = Sampling::default().top_p(f32::NAN);
    assert_snapshot!(sampling.check(128).unwrap_err(), @"top_p is NaN, it must be from 0 to 1");
    let sampling = Sampling::default().stop_ids(vec![128]);
    assert_snapshot!(sampling.check(128).unwrap_err(), @"stop_ids: token 128 is outside the vocabulary of 128");
    let penalties = Penalties::OFF.repetition(0.0);
    assert_snapshot!(Sampling::default().penalties(penalties).check(128).unwrap_err(), @"repetition_penalty is 0, it must be above 0");
}
