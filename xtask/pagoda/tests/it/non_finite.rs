//! Logits that are not finite: an error for the request, nothing of it is kept, and others go on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pagoda::{
    Engine, EngineOptions, Error, Event, FinishReason, Finished, LogitBias, Model, Note, Notes, Request,
    Sampling, Sequence, TokenBias,
};
use tempfile::TempDir;

use crate::{options, poison, prompt, request, run};

/// A token whose embedding is no number.
const BAD: u32 = 77;

/// A model whose embedding of one token is no number; its head is another matrix.
fn model() -> TempDir {
    poison::checkpoint("tiny-qwen3", |name, values| {
        if name == "model.embed_tokens.weight" {
            let row = values.len() / 128;
            values[BAD as usize * row..][..row].fill(f32::NAN);
        }
    })
}

fn open(model: &Path, options: &EngineOptions) -> Engine {
    Engine::open(Model::open(model).unwrap(), options.clone()).unwrap()
}

/// A prompt without the bad token.
fn good(seed: u32, len: usize) -> Vec<u32> {
    prompt(seed, len).into_iter().map(|id| if id == BAD { 1 } else { id }).collect()
}

/// A prompt whose token at `at` is the bad one.
fn bad(seed: u32, len: usize, at: usize) -> Vec<u32> {
    let mut ids = good(seed, len);
    ids[at] = BAD;
    ids
}

fn asks(ids: Vec<u32>) -> Request {
    Request::new(ids).max_tokens(6).ignore_eos()
}

/// A request that draws the bad token first.
fn draws_bad(seed: u32, len: usize) -> Request {
    let logit_bias = LogitBias::new([TokenBias { token: BAD, bias: 100.0 }]);
    asks(good(seed, len)).sampling(Sampling::default().logit_bias(logit_bias))
}

fn tiered(folder: &Path) -> EngineOptions {
    options().kv_tiers(format!("host=16MiB,disk={}:16MiB", folder.display()).parse().unwrap())
}

#[track_caller]
fn assert_bad(end: &Finished, output: &[u32]) {
    assert!(matches!(end.reason, FinishReason::NonFinite { .. }), "{end:?}");
    assert_eq!((end.reason.word(), &end.output[..]), ("error", output));
}

#[test]
fn a_request_with_logits_that_are_not_finite_ends_alone() {
    let model = model();
    let healthy = asks(good(9, 70));
    let alone = run(&mut open(model.path(), &options()), std::slice::from_ref(&healthy)).remove(0);
    assert_eq!(alone.reason, FinishReason::Length);
    let told = Arc::new(Mutex::new(Vec::new()));
    let notes = Notes::to({
        let told = Arc::clone(&told);
        move |note| told.lock().unwrap().push(note.clone())
    });
    let mut engine = open(model.path(), &options().notes(notes));
    let warm = Sampling::default().temperature(1.0).seed(3);
    let mut scored = asks(bad(4, 70, 20));
    scored.prompt_log_probs = Some(2);
    let requests = [
        // In the last chunk, in the first, and in a token that was drawn.
        asks(bad(1, 70, 66)).id("first"),
        healthy,
        asks(bad(2, 70, 3)).sampling(warm).samples(3),
        draws_bad(3, 70).id(String::from("drawn")),
        scored,
    ];
    let ends = run(&mut engine, &requests);
    assert_eq!(ends.len(), 7);
    for end in [&ends[0], &ends[2], &ends[3], &ends[4], &ends[6]] {
        assert_bad(end, &[]);
    }
    assert_bad(&ends[5], &[BAD]);
    assert_eq!((&ends[1].reason, &ends[1].output), (&alone.reason, &alone.output));
    assert_eq!(engine.scheduler().cache().pool().num_used(), 0);
    let told = told.lock().unwrap();
    let named: BTreeMap<&str, u64> = told
        .iter()
        .filter_map(|note| match note {
            Note::NonFinite { id, step } => Some((id.as_str(), *step)),
            _ => None,
        })
        .collect();
    let [second, scored] = [2, 6].map(|end: usize| format!("request-{}", ends[end].seq.get()));
    let ids = ["first", &second, &second, &second, "drawn", &scored];
    for (end, id) in ends.iter().filter(|end| end.reason != FinishReason::Length).zip(ids) {
        assert_eq!((end.id.as_str(), &end.reason), (id, &FinishReason::NonFinite { step: named[id] }));
    }
    assert_eq!(named.len(), 4);
}

#[test]
fn nothing_of_it_is_kept() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let options = tiered(folder.path());
    let mut engine = open(model.path(), &options);
    // Chunks of 32: four blocks are saved before the bad logits are seen.
    let requests = [asks(bad(1, 90, 80)), draws_bad(2, 90), asks(good(3, 90))];
    let ends = run(&mut engine, &requests);
    assert_bad(&ends[0], &[]);
    assert_bad(&ends[1], &[BAD]);
    let again = [asks(good(1, 90)), asks(good(2, 90)), asks(good(3, 90))];
    let cached = |ends: &[Finished]| ends.iter().map(|end| end.usage.cached.total()).collect::<Vec<_>>();
    assert_eq!(cached(&run(&mut engine, &again)), [0, 0, 80]);
    drop(engine);

    let other = tempfile::tempdir().unwrap();
    let options = tiered(other.path());
    let mut engine = open(model.path(), &options);
    run(&mut engine, &requests);
    drop(engine);
    assert_eq!(
        cached(&run(&mut open(model.path(), &options), &again)),
        [0, 0, 80],
        "the disk has the good ones"
    );
}

#[test]
fn sequences_name_it() {
    let model = model();
    let mut decoder = Model::open(model.path()).unwrap().load(&options(), 32).unwrap();
    let failed = Sequence::new(&mut decoder, 32).unwrap().log_probs(&bad(1, 40, 35)).unwrap_err();
    insta::assert_snapshot!(failed, @"non-finite logits after 40 tokens");
    let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
    sequence.extend(&bad(1, 20, 3));
    assert!(matches!(sequence.logits(), Err(Error::NonFinite { tokens: 20 })));
}

#[test]
fn events_of_other_requests_go_on() {
    let model = model();
    let mut engine = open(model.path(), &options());
    let first = engine.submit(request(3, 20, 12)).unwrap();
    let second = engine.submit(draws_bad(5, 20)).unwrap();
    let mut tokens = [0; 2];
    while engine.has_work() {
        for event in engine.step().unwrap() {
            if let Event::Token(token) = event {
                tokens[usize::from(token.seq == second)] += 1;
            }
        }
    }
    assert_eq!((tokens, first < second), ([12, 1], true), "the token that was not drawn is no event");
}
