//! The examples, run with a tiny model; the README's runs with the default one.

#[path = "../../examples/beam_search.rs"]
mod beam_search;
#[path = "../../examples/chat.rs"]
mod chat;
#[path = "../../examples/handle.rs"]
mod handle;
#[path = "../../examples/sequence.rs"]
mod sequence;

use std::sync::Arc;

use beam_search::{Beam, search};
use pagoda::{Demand, Engine, EngineOptions, KvDtype, Model, Sequence, most_likely};

use crate::text::model;

#[test]
fn examples_run() {
    let (_folder, model) = model();
    let model = Arc::new(model);
    beam_search::print(&model).unwrap();
    chat::chat(&model).unwrap();
    sequence::score(&model).unwrap();
    handle::serve(&model).unwrap();
}

/// A search that computes every hypothesis from its first token; nothing ends.
fn naive(model: &Model, options: &EngineOptions, prompt: &[u32], width: usize, tokens: usize) -> Vec<Beam> {
    let mut decoder = model.load(options, options.chunk).unwrap();
    let mut live = vec![Beam::default()];
    for _ in 0..tokens {
        let mut next = Vec::new();
        for beam in &live {
            let mut sequence = Sequence::new(&mut decoder, options.chunk).unwrap();
            sequence.extend(&[prompt, &beam.tokens].concat());
            let (ids, log_probs) = most_likely(&sequence.logits().unwrap(), 2 * width);
            next.extend(ids.into_iter().zip(log_probs).map(|(id, log_prob)| Beam {
                tokens: [&beam.tokens[..], &[id]].concat(),
                log_prob: beam.log_prob + f64::from(log_prob),
                ended: false,
            }));
        }
        next.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
        next.truncate(width);
        live = next;
    }
    live
}

#[test]
fn beams_are_those_of_a_search_by_full_recomputation() {
    let (_folder, mut model) = model();
    model.config.eos_ids.clear();
    let options = EngineOptions::new().kv_dtype(KvDtype::F32).demand(Demand::new(8, 512).longest(64));
    // 14 tokens: the hypotheses part inside a block, and outgrow it.
    let prompt: Vec<u32> = (0..14).map(|at| (at * 37 + 5) % 90).collect();
    let expected = naive(&model, &options, &prompt, 4, 6);
    let mut engine = Engine::open(model, options).unwrap();
    let found = search(&mut engine, &prompt, 4, 6).unwrap();
    let tokens = |beams: &[Beam]| beams.iter().map(|beam| beam.tokens.clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&found), tokens(&expected));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found.log_prob - expected.log_prob).abs() < 1e-4, "{found:?}, naively {expected:?}");
    }
    // The engine is as it was, and finds the same again in its prefix cache.
    assert_eq!(tokens(&search(&mut engine, &prompt, 4, 6).unwrap()), tokens(&found));
}

/// The code of the README's first example in Rust.
fn example(readme: &str) -> &str {
    let (_, rest) = readme.split_once("use pagoda::").expect("an example");
    rest.split_once("```").expect("the example ends").0
}

#[test]
fn the_readme_of_the_workspace_has_the_example_of_the_package() {
    let own = example(include_str!("../../README.md"));
    assert_eq!(example(include_str!("../../../../README.md")), own);
    assert!(own.lines().count() <= 15, "{} lines", own.lines().count());
}
