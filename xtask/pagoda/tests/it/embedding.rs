//! Embeddings of requests, against hidden states that transformers computed.

use std::fs;
use std::sync::Arc;

use models::{Checkpoint, Role};
use pagoda::{Demand, Engine, EngineOptions, FinishReason, Model, Pooling, Request, Reranker};
use safetensors::SafeTensors;
use tempfile::TempDir;

use crate::{fixture, model, options, prompt, request, run};

/// Prompts of a fixture, and the logits of their last positions by transformers 5.23.0: products of the output head with the
/// final hidden states.
struct Golden(Vec<u8>);

impl Golden {
    fn of(name: &str) -> Self {
        Self(fs::read(fixture(name).join("golden.safetensors")).unwrap())
    }

    fn prompt(&self, n: usize) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let ids = file.tensor(&format!("prompt_{n}")).unwrap().data().as_chunks().0;
        ids.iter().map(|bytes| u32::try_from(i64::from_le_bytes(*bytes)).unwrap()).collect()
    }

    /// Logits of each position, `[positions, vocab]`.
    fn logits(&self, n: usize) -> Vec<Vec<f32>> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let values = file.tensor(&format!("logits_{n}")).unwrap().data().as_chunks().0;
        let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        values.chunks(128).map(<[f32]>::to_vec).collect()
    }
}

/// Products of the output head with an embedding, `[vocab]`.
fn by_the_head(name: &str, embedding: &[f32]) -> Vec<f32> {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let tied = checkpoint.config().unwrap().tie_embeddings;
    let head = checkpoint.weights().tensor(if tied { Role::Embed } else { Role::LmHead }).unwrap().to_f32();
    head.chunks(embedding.len()).map(|row| row.iter().zip(embedding).map(|(w, x)| w * x).sum()).collect()
}

fn open(name: &str, options: &EngineOptions) -> Engine {
    Engine::open(Model::open(fixture(name)).unwrap(), options.clone()).unwrap()
}

/// Prompts of one chunk and of several, among sequences that generate. The head tells hidden states of 64 elements apart.
#[test]
fn embeddings_are_the_hidden_states_of_transformers() {
    for name in ["tiny-llama", "tiny-qwen3", "tiny-phi3"] {
        let golden = Golden::of(name);
        let mut engine = open(name, &options());
        let wanted = [(1, Pooling::Mean), (1, Pooling::Last), (2, Pooling::Last), (3, Pooling::Last)];
        let mut requests = vec![request(7, 90, 30)];
        requests.extend(wanted.map(|(n, pooling)| Request::embedding(golden.prompt(n), pooling)));
        let ends = run(&mut engine, &requests);
        assert_eq!((ends[0].output.len(), &ends[0].embedding), (30, &None));
        for ((n, pooling), end) in wanted.into_iter().zip(&ends[1..]) {
            assert_eq!((&end.reason, &end.output[..]), (&FinishReason::Length, &[][..]));
            let logits = golden.logits(n);
            let rows = if pooling == Pooling::Mean { &logits[..] } else { &logits[logits.len() - 1..] };
            let count = f32::from(u16::try_from(rows.len()).unwrap());
            let got = by_the_head(name, end.embedding.as_ref().unwrap());
            for (token, got) in got.iter().enumerate() {
                let want = rows.iter().map(|row| row[token]).sum::<f32>() / count;
                assert!((got - want).abs() < 1e-3, "{name}, prompt {n}, token {token}: {got}, not {want}");
            }
        }
        assert_eq!(engine.snapshot().totals.generated_tokens, 30, "nothing is drawn for an embedding");
    }
}

/// A folder with the files of a fixture, modules of Sentence Transformers that score by these tokens, and a chat template.
fn reranker(name: &str, score: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture(name).join(file), folder.path().join(file)).unwrap();
    }
    let module = |n: u32, class: &str| format!(r#"{{"idx": {n}, "path": "{}", "type": "x.{class}"}}"#, n);
    let modules = format!("[{}, {}]", module(0, "Transformer"), module(1, "LogitScore"));
    fs::create_dir(folder.path().join("1")).unwrap();
    for (file, text) in [("modules.json", &*modules), ("1/config.json", score), ("chat_template.jinja", "")] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    folder
}

/// Logits of transformers, with a factor (Granite) and a softcap (Gemma 2), of heads that are the embedding and that are not.
#[test]
fn rerankers_score_by_the_logits_of_transformers() {
    for name in ["tiny-llama", "tiny-qwen3", "tiny-granite", "tiny-gemma2"] {
        let (golden, mut engine) = (Golden::of(name), open(name, &options()));
        let prompts = [1, 2, 3];
        let requests = prompts.map(|n| Request::embedding(golden.prompt(n), Pooling::Last));
        let ends = run(&mut engine, &requests);
        let odds = r#"{"true_token_id": 5, "false_token_id": 9, "module_input_name": "causal_logits"}"#;
        for (score, irrelevant) in
            [(odds, Some(9)), (r#"{"true_token_id": 5, "false_token_id": null}"#, None)]
        {
            let folder = reranker(name, score);
            let reranker = Reranker::new(&Model::open(folder.path()).unwrap()).unwrap().unwrap();
            for (n, end) in prompts.into_iter().zip(&ends) {
                let logits = golden.logits(n);
                let last = logits.last().unwrap();
                let want = f64::from(last[5]) - irrelevant.map_or(0.0, |token: usize| f64::from(last[token]));
                let got = reranker.score(end.embedding.as_ref().unwrap());
                assert!((got - want).abs() < 1e-3, "{name}, prompt {n}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn rerankers_without_what_they_need_are_refused() {
    let told = |folder: &TempDir| {
        let error = Reranker::new(&Model::open(folder.path()).unwrap()).unwrap_err();
        pagoda::error_chain::joined(&error).replace(&folder.path().display().to_string(), "FOLDER")
    };
    let beyond = reranker("tiny-llama", r#"{"true_token_id": 5, "false_token_id": 128}"#);
    insta::assert_snapshot!(told(&beyond), @"model FOLDER: false_token_id is 128, the limit is 127");
    let bare = reranker("tiny-llama", r#"{"true_token_id": 5}"#);
    fs::remove_file(bare.path().join("chat_template.jinja")).unwrap();
    insta::assert_snapshot!(told(&bare), @"the model ranks documents, and has no chat template that makes a prompt of a query and a document");
    assert!(Reranker::new(&Model::open(fixture("tiny-llama")).unwrap()).unwrap().is_none());
}

/// The last token is always computed, so that it may follow on cached ones; a mean needs all of them.
#[test]
fn the_prefix_cache_serves_the_last_token_alone() {
    let mut engine = open("tiny-llama", &options());
    let ask = |pooling| Request::embedding(prompt(3, 100), pooling);
    let first = run(&mut engine, &[ask(Pooling::Last), ask(Pooling::Mean)]);
    let again = run(&mut engine, &[ask(Pooling::Last), ask(Pooling::Mean)]);
    let cached: Vec<u32> = again.iter().map(|end| end.usage.cached.device).collect();
    assert_eq!(cached, [96, 0]);
    for (first, again) in first.iter().zip(&again) {
        near(first.embedding.as_ref().unwrap(), again.embedding.as_ref().unwrap());
    }
}

#[track_caller]
fn near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    let far = got.iter().zip(want).find(|(got, want)| (*got - *want).abs() > 1e-4);
    assert_eq!(far, None);
}

/// A sequence that lost its blocks is computed again, and its tokens are pooled once.
#[test]
fn preempted_embeddings_are_those_of_an_idle_engine() {
    let model = model();
    let asks: Vec<Request> = (0..6)
        .flat_map(|seed| {
            let pooling = if seed % 2 == 0 { Pooling::Mean } else { Pooling::Last };
            [Request::embedding(prompt(seed, 150), pooling).priority(1), request(seed + 20, 20, 60)]
        })
        .collect();
    let demand = Demand::new(8, 1024).longest(160);
    let mut small = options().demand(demand).order(pagoda::Order::Priority { ageing_steps: 0 });
    small.kv_blocks = Some(24);
    small.reserve_full_input = false;
    let mut engine = Engine::open(Arc::clone(&model), small).unwrap();
    let ends = run(&mut engine, &asks);
    let preempted = ends.iter().filter(|end| end.embedding.is_some() && end.usage.preemptions > 0);
    assert!(preempted.count() > 0, "no embedding was preempted");
    for (ask, end) in asks.iter().zip(&ends).filter(|(_, end)| end.embedding.is_some()) {
        let alone = run(&mut Engine::open(Arc::clone(&model), options()).unwrap(), std::slice::from_ref(ask));
        near(end.embedding.as_ref().unwrap(), alone[0].embedding.as_ref().unwrap());
    }
}
