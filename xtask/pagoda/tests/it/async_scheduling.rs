//! Decode steps that are sent before the tokens of the step before them are read.

use std::collections::BTreeMap;

use pagoda::{Demand, Engine, EngineOptions, Event, FinishReason, Finished, Penalties, Request, Sampling};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::{engine, model, options, prompt, request, run};

/// Steps of `requests` that were sent early.
fn early(options: &EngineOptions, requests: &[Request]) -> u64 {
    let mut engine = engine(options);
    run(&mut engine, requests);
    engine.decoder().steps_following()
}

#[test]
fn every_step_after_the_first_decode_is_sent_early() {
    let one = request(1, 20, 30);
    // The prompt draws the first token, and nothing precedes the first decode step.
    assert_eq!(early(&options(), std::slice::from_ref(&one)), 28);
    assert_eq!(early(&options().async_scheduling(false), std::slice::from_ref(&one)), 0);
    // The end of the shorter one is known before, and the next step has another shape.
    assert_eq!(early(&options(), &[one.clone(), request(2, 10, 12)]), 10 + 17);
    // Blocks of 16 tokens are taken in time; without one, the step waits for its plan.
    let tight = options().demand(Demand::one(64)).kv_blocks(Some(4));
    assert_eq!(early(&tight, &[request(1, 20, 28)]), 26);
}

#[test]
fn steps_whose_draws_depend_on_tokens_are_not_sent_early() {
    let of = |sampling: Sampling| early(&options(), &[request(1, 20, 30).sampling(sampling)]);
    assert_eq!(of(Sampling::default().penalties(Penalties::default().presence(0.5))), 0);
    assert_eq!(of(Sampling::default().log_probs(2)), 0);
    // The first eleven tokens are none of those that may end the output.
    assert_eq!(of(Sampling::default().min_tokens(11)), 30 - 12);
}

/// Events of each request, by its number, whenever it arrives and whatever else runs.
fn served(options: &EngineOptions, seed: u64) -> (BTreeMap<u64, Finished>, Engine) {
    let mut engine = Engine::open(model(), options.clone()).unwrap();
    let (mut rng, mut ends) = (StdRng::seed_from_u64(seed), BTreeMap::new());
    let (mut submitted, mut drawn) = (0, BTreeMap::<u64, u32>::new());
    let mut cancelled = BTreeMap::new();
    while submitted < 24 || engine.has_work() {
        if submitted < 24 && (!engine.has_work() || rng.random_bool(0.05)) {
            let mut own = StdRng::seed_from_u64(seed * 100 + submitted);
            let sampling = Sampling::default().temperature(1.0).seed(submitted);
            let penalised = own.random_bool(0.1).then(|| Penalties::default().repetition(1.2));
            let sampling = sampling.penalties(penalised.unwrap_or_default());
            let sampling =
                sampling.stop_ids(vec![own.random_range(0..128)]).min_tokens(own.random_range(0..8));
            let ids = prompt(own.random_range(0..6), own.random_range(1..60));
            let mut request = Request::new(ids).max_tokens(own.random_range(8..50)).ignore_eos();
            request.samples = own.random_range(1..=2);
            let cancels = own.random_bool(0.2).then(|| own.random_range(1..20));
            let first = engine.submit(request.clone().sampling(sampling)).unwrap();
            for sample in 0..u64::from(request.samples) {
                cancelled.insert(first.get() + sample, cancels);
            }
            submitted += 1;
        }
        let mut cancels = Vec::new();
        for event in engine.step().unwrap() {
            match event {
                Event::Token(token) => {
                    let drawn = drawn.entry(token.seq.get()).or_default();
                    *drawn += 1;
                    cancels.extend((cancelled[&token.seq.get()] == Some(*drawn)).then_some(token.seq));
                }
                Event::Finished(end) => drop(ends.insert(end.seq.get(), *end)),
                _ => {}
            }
        }
        for event in cancels.into_iter().flat_map(|seq| engine.cancel(seq)) {
            if let Event::Finished(end) = event {
                ends.insert(end.seq.get(), *end);
            }
        }
    }
    (ends, engine)
}

/// Sequences that stop, are cancelled, preempted and joined by others have the tokens that they have without early steps.
#[test]
fn tokens_do_not_depend_on_when_steps_are_sent() {
    let small = options().reproducible(true).demand(Demand::new(6, 512).longest(128)).kv_blocks(Some(24));
    for seed in 0..3 {
        let (want, engine) = served(&small.clone().async_scheduling(false), seed);
        assert_eq!(engine.decoder().steps_following(), 0);
        let (got, engine) = served(&small, seed);
        let (following, steps) = (engine.decoder().steps_following(), engine.snapshot().totals.steps);
        assert!(following > steps / 4, "{following} of {steps} steps were sent early");
        assert_eq!(got.len(), want.len());
        for (seq, want) in want {
            let got = &got[&seq];
            assert_eq!((&got.output, &got.reason), (&want.output, &want.reason), "{seq} of seed {seed}");
            assert_ne!(got.reason, FinishReason::Failed);
        }
        assert_eq!(engine.scheduler().cache().pool().num_used(), 0);
    }
}

/// The step that is on its way when a request arrives is computed first; the next one has the prompt.
#[test]
fn a_request_joins_one_step_later() {
    let started_after = |options: &EngineOptions| {
        let mut engine = engine(options);
        engine.submit(request(1, 20, 40)).unwrap();
        (0..5).for_each(|_| drop(engine.step().unwrap()));
        engine.submit(request(2, 20, 4)).unwrap();
        let starts = |event: &Event| matches!(event, Event::Started(_));
        let after = (1..).find(|_| engine.step().unwrap().iter().any(starts));
        while engine.has_work() {
            engine.step().unwrap();
        }
        after
    };
    assert_eq!(started_after(&options()), Some(2));
    assert_eq!(started_after(&options().async_scheduling(false)), Some(1));
}
