//! One sequence through a model.

use std::sync::Arc;

use models::batch::Phase;
use models::{Checkpoint, Pipeline, Role};
use pagoda::tiers::Tiers;
use pagoda::{
    Demand, Engine, EngineOptions, Model, Pooling, Request, Sampler, Sampling, Sequence, StepWork,
    most_likely,
};

use crate::{engine, fixture, model, options, prompt, request, run};

fn decoder(options: &EngineOptions) -> Pipeline {
    let options = options.clone().demand(Demand::one(512));
    model().load(&options, options.chunk).unwrap()
}

#[test]
fn a_sequence_draws_the_tokens_of_the_engine() {
    let sampling = Sampling::default().temperature(0.8).top_k(40).seed(3);
    for sampling in [Sampling::default(), sampling] {
        let request = request(4, 75, 20).sampling(sampling.clone());
        let want = run(&mut engine(&options()), std::slice::from_ref(&request)).remove(0).output;
        let mut decoder = decoder(&options());
        let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
        sequence.extend(&request.prompt);
        let mut sampler = Sampler::new(sampling, &request.prompt);
        let got: Vec<u32> = (0..20).map(|_| sequence.next(&mut sampler).unwrap()).collect();
        assert_eq!(got, want);
        assert_eq!(sequence.tokens(), [request.prompt, want].concat());
        // The last token is drawn, but not computed.
        assert_eq!(sequence.pending(), 1);
        assert_eq!(sequence.kv_use()["full"].blocks, (75_u32 + 19).div_ceil(16));
    }
}

#[test]
fn a_sequence_of_several_parts_is_saved_under_the_names_of_its_prefixes() {
    let request = request(5, 90, 6);
    for name in ["tiny-llama", "tiny-gpt-oss"] {
        let model = Arc::new(Model::open(fixture(name)).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let plain = options().reproducible(true).demand(Demand::one(512));
        let tiered =
            plain.clone().kv_tiers(format!("disk={}:4MiB", folder.path().display()).parse().unwrap());
        let mut decoder = model.load(&tiered, tiered.chunk).unwrap();
        let mut tiers = Tiers::open(&tiered, &model, &decoder).unwrap().unwrap();
        let mut sequence = Sequence::new(&mut decoder, 32).unwrap().saving_to(&mut tiers, &tiered);
        for part in [&request.prompt[..40], &request.prompt[40..]] {
            sequence.log_probs(part).unwrap();
        }
        sequence.finish().unwrap();
        drop((tiers, decoder));
        let [found, alone] = [&tiered, &plain].map(|options| {
            let mut engine = Engine::open(Arc::clone(&model), options.clone()).unwrap();
            run(&mut engine, std::slice::from_ref(&request)).remove(0)
        });
        assert_eq!((found.usage.cached.disk, found.output), (80, alone.output), "{name}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    let ids = prompt(8, 70);
    let mut decoder = decoder(&options());
    let mut by_logits = Vec::new();
    let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
    for pair in ids.windows(2) {
        sequence.extend(&pair[..1]);
        let logits = sequence.logits().unwrap();
        let (order, log_probs) = most_likely(&logits, logits.len());
        by_logits.push(log_probs[order.iter().position(|id| *id == pair[1]).unwrap()]);
    }
    // In one piece, in two pieces, and token by token.
    for cuts in [vec![70], vec![20, 50], vec![1; 70]] {
        let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
        let (mut rest, mut got) = (&ids[..], Vec::new());
        for cut in cuts {
            let (next, others) = rest.split_at(cut);
            got.extend(sequence.log_probs(next).unwrap());
            rest = others;
        }
        assert_eq!(got.len(), 69);
        for (position, (got, want)) in got.iter().zip(&by_logits).enumerate() {
            assert!((got - want).abs() < 1e-3, "token {}: {got}, not {want}", position + 1);
        }
    }
}

/// Logits are products of hidden states with the head, and so are sums of logits of sums of hidden states. DeepSeek V4 has
/// several residual streams, of which the head sees their collapse.
#[test]
fn embeddings_are_what_the_head_makes_logits_of() {
    let ids = prompt(8, 70);
    for name in ["tiny-llama", "tiny-gpt-oss", "tiny-deepseek-v4"] {
        let options = options().demand(Demand::one(512));
        let mut decoder = Model::open(fixture(name)).unwrap().load(&options, options.chunk).unwrap();
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let role = if decoder.config().tie_embeddings { Role::Embed } else { Role::LmHead };
        let head = checkpoint.weights().tensor(role).unwrap().to_f32();
        let mut rows: Vec<Vec<f32>> = Vec::new();
        let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
        sequence.extend(&ids);
        while sequence.pending() > 0 {
            let logits = sequence.pending().min(32);
            let work = StepWork { logits, ..StepWork::nothing(Phase::Prefill) };
            let output = sequence.step(logits, work).unwrap();
            rows.extend(output.logits.chunks(output.logits.len() / logits).map(<[f32]>::to_vec));
        }
        let mean = |token: usize| rows.iter().map(|row| row[token]).sum::<f32>() / 70.0;
        let last = |token: usize| rows[69][token];
        let wants: [(Pooling, &dyn Fn(usize) -> f32); 2] = [(Pooling::Mean, &mean), (Pooling::Last, &last)];
        for (pooling, want) in wants {
            let embedding = Sequence::new(&mut decoder, 32).unwrap().embed(&ids, pooling).unwrap();
            for (token, weights) in head.chunks(embedding.len()).enumerate() {
                let got: f32 = weights.iter().zip(&embedding).map(|(weight, x)| weight * x).sum();
                let want = want(token);
                assert!((got - want).abs() < 1e-3, "{name}, {pooling:?}, token {token}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn a_chosen_token_goes_on_like_a_drawn_one() {
    let ids = prompt(5, 40);
    let mut decoder = decoder(&options());
    let mut greedy = Sampler::new(Sampling::default(), &ids);
    let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
    sequence.extend(&ids);
    let drawn: Vec<u32> = (0..10).map(|_| sequence.next(&mut greedy).unwrap()).collect();
    let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
    sequence.extend(&ids);
    for want in drawn {
        let (likely, _) = most_likely(&sequence.logits().unwrap(), 1);
        assert_eq!(likely, [want]);
        sequence.push(want);
    }
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let mut small = options();
    small.kv_blocks = Some(3);
    let mut decoder = decoder(&small);
    let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
    let said = |error: pagoda::Error| pagoda::error_chain::joined(&error);
    assert_eq!(said(sequence.logits().unwrap_err()), "the prompt is empty");
    sequence.extend(&prompt(1, 33));
    assert_eq!(
        said(sequence.logits().unwrap_err()),
        "KV of the first 33 of 33 tokens: 1 blocks needed, 0 free"
    );
    let mut sequence = Sequence::new(&mut decoder, 32).unwrap();
    sequence.extend(&[1, 2, 128]);
    assert_eq!(
        said(sequence.logits().unwrap_err()),
        "token id 128 at position 2 is outside the vocabulary of 128"
    );
}

/// LongRoPE: an engine for short texts takes the factors of these, and no longer text.
#[test]
fn the_longest_text_chooses_the_rotation() {
    let model = Arc::new(Model::open(fixture("tiny-phi3-long")).unwrap());
    let load = |longest| model.load(&options().demand(Demand::one(longest)), 32).unwrap();
    let [short, long] = [load(32), load(33)];
    assert_ne!(short.config().rope, model.config.rope);
    assert_eq!(long.config().rope, model.config.rope);
    let mut engine = Engine::open(Arc::clone(&model), options().demand(Demand::one(32))).unwrap();
    engine.submit(Request::new(prompt(1, 31))).unwrap();
    let error = engine.submit(Request::new(prompt(1, 33))).unwrap_err().to_string();
    assert!(error.contains("32"), "{error}");
    // A bound on texts is one on what is made room for, whatever that says.
    for (most, config) in [(20, short.config()), (33, long.config())] {
        let bounded = options().demand(Demand::one(40)).max_context(Some(most));
        let mut engine = Engine::open(Arc::clone(&model), bounded).unwrap();
        assert_eq!(engine.decoder().config().rope, config.rope, "at most {most} tokens");
        engine.submit(Request::new(prompt(1, most as usize - 1))).unwrap();
        let error = engine.submit(Request::new(prompt(1, most as usize + 1))).unwrap_err().to_string();
        assert!(error.contains(&most.to_string()), "{error}");
    }
}
