//! Embeddings, and what is compared by them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use models::{Checkpoint, Role, Safetensors, WeightSource};
use pagoda::snapshot::Activity;
use pagoda::{Model, Pooling, Sequence};
use serde_json::{Value, json};
use serve::Options;

use crate::client::{get, post};
use crate::fixture::{MODEL, Served, Setup, engine_options, listen, model_folder, shared, slowed, start};

const PATH: &str = "/v1/embeddings";

fn ids(text: &str) -> Vec<u32> {
    MODEL.tokenizer().unwrap().encode(text, true).unwrap()
}

fn vectors(reply: &Value) -> Vec<Vec<f32>> {
    let items = reply["data"].as_array().unwrap();
    items.iter().map(|item| serde_json::from_value(item["embedding"].clone()).unwrap()).collect()
}

fn embed(served: &Served, input: impl serde::Serialize) -> Vec<Vec<f32>> {
    vectors(&post(served, PATH, &json!({ "input": input })).ok())
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Prompts and logits by transformers 5.23.0. Logits are products of the output head with hidden states, so that the head's
/// products with an embedding point the same way. A head of 128 rows leaves no direction of 64 elements out.
#[test]
fn embeddings_are_the_hidden_states_of_transformers() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/fixtures/tiny-llama");
    let golden = fs::read(source.join("golden.safetensors")).unwrap();
    let golden = Safetensors::from_bytes(golden).unwrap();
    let prompts: Vec<Vec<i64>> =
        (0..4).map(|n| golden.get_integers(&format!("prompt_{n}")).unwrap().unwrap().values).collect();
    let checkpoint = Checkpoint::open(&source).unwrap();
    // The head is the embedding of tokens.
    let head = checkpoint.weights().tensor(Role::Embed).unwrap().to_f32();
    for (n, embedding) in embed(shared(), &prompts).into_iter().enumerate() {
        let norm: f32 = embedding.iter().map(|value| value * value).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
        let logits = golden.get(&format!("logits_{n}")).unwrap().unwrap().to_f32();
        let got: Vec<f32> = head
            .chunks(embedding.len())
            .map(|row| row.iter().zip(&embedding).map(|(weight, value)| weight * value).sum())
            .collect();
        let likeness = cosine(&got, &logits[logits.len() - 128..]);
        assert!(likeness > 1.0 - 1e-6, "prompt {n}: {likeness}");
    }
}

#[test]
fn inputs_come_in_four_forms_and_embeddings_in_two() {
    let served = shared();
    let one = embed(served, "the hare").remove(0);
    let two = embed(served, ["the hare", "is another one"]);
    assert_eq!(embed(served, ids("the hare")), std::slice::from_ref(&one));
    assert_eq!(embed(served, [ids("is another one"), ids("the hare")]), [two[1].clone(), one.clone()]);
    assert_eq!(two[0], one);
    let body = json!({ "input": "the hare", "encoding_format": "base64", "user": "u", "store": true });
    let reply = post(served, PATH, &body);
    assert_eq!(reply.header("x-pagoda-ignored"), Some("store"));
    let reply = reply.ok();
    let bytes = BASE64_STANDARD.decode(reply["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(numbers, one);
    let tokens = ids("the hare").len();
    assert_eq!(reply["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    assert_eq!(
        [&reply["object"], &reply["data"][0]["object"], &reply["model"]],
        ["list", "embedding", "tiny"]
    );
    // More than the engine has at one time.
    let many: Vec<String> = (0..150).map(|n| format!("text {n}")).collect();
    let all = embed(served, &many);
    assert_eq!(all.len(), 150);
    assert!(cosine(&all[149], &embed(served, &many[149])[0]) > 1.0 - 1e-6);
}

#[test]
fn what_cannot_be_embedded_is_refused_by_field() {
    let refused = |body: Value| {
        let error = post(shared(), PATH, &body).refused(400);
        format!("{}: {}", error["param"].as_str().unwrap_or_default(), error["message"].as_str().unwrap())
    };
    let long = vec![5; 5000];
    let told = [
        json!({}),
        json!({ "input": [] }),
        json!({ "input": ["a", ""] }),
        json!({ "input": 7 }),
        json!({ "input": [[5, 128]] }),
        json!({ "input": long }),
        json!({ "input": vec!["a"; 2049] }),
        json!({ "input": "a", "dimensions": 32 }),
        json!({ "input": "a", "encoding_format": "hex" }),
        json!({ "input": "a", "temperature": 1 }),
    ]
    .map(refused);
    insta::assert_snapshot!(told.join("\n"), @r"
    input: input: this field is required
    input: input: the prompt is empty
    input[1]: input[1]: the prompt is empty
    input: input: must be a string, a list of strings, a list of token ids, or a list of lists of token ids
    input: token id 128 at position 1 is outside the vocabulary of 128
    input: a prompt of 5000 tokens, the context length is 4096
    input: input: 2049 texts, at most 2048
    dimensions: dimensions: 32, must be 64: the model was not trained for shorter embeddings
    encoding_format: encoding_format: unknown variant `hex`, expected `float` or `base64`
    temperature: temperature: this server does not know the field
    ");
    assert_eq!(embed(shared(), "a")[0].len(), 64);
    assert_eq!(post(shared(), PATH, &json!({ "input": "a", "dimensions": 64 })).status, 200);
}

/// The shared engine under a model whose folder also has these files.
fn with_files(files: &[(&str, Value)]) -> Served {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(model_folder().join(name), folder.path().join(name)).unwrap();
    }
    for (name, json) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, json.to_string()).unwrap();
    }
    let model = Arc::new(Model::open(folder.path()).unwrap());
    listen(shared().handle.clone(), Options::new(model, "pooled"))
}

/// A model that states the pooling which the others have without saying so.
pub(crate) fn pooled() -> Served {
    with_files(&[("1_Pooling/config.json", json!({ "pooling_mode_lasttoken": true }))])
}

#[test]
fn the_checkpoint_says_how_hidden_states_are_pooled() {
    let pooled = with_files(&[("1_Pooling/config.json", json!({ "pooling_mode_mean_tokens": true }))]);
    let options = engine_options(1);
    let mut decoder = MODEL.load(&options, options.chunk).unwrap();
    let mut sequence = Sequence::new(&mut decoder, options.chunk).unwrap();
    let want = sequence.embed(&ids("an old story of the hare"), Pooling::Mean).unwrap();
    let got = embed(&pooled, "an old story of the hare").remove(0);
    assert!(cosine(&got, &want) > 1.0 - 1e-6);
    assert!(cosine(&got, &embed(shared(), "an old story of the hare")[0]) < 0.99);
    assert_eq!(get(&pooled, "/props").ok()["embedding_pooling"], "mean");

    let first = with_files(&[("1_Pooling/config.json", json!({ "pooling_mode_cls_token": true }))]);
    for (path, body) in [
        (PATH, json!({ "input": "a" })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
        ("/v1/score", json!({ "text_1": "a", "text_2": "b" })),
    ] {
        let error = post(&first, path, &body).refused(400);
        let code = if path == PATH { "no_embeddings" } else { "no_comparison" };
        assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!(code)));
    }
    let capabilities = |served| get(served, "/v1/models").ok()["data"][0]["capabilities"].clone();
    assert_eq!(capabilities(&first), json!(["completion"]));
    assert_eq!(capabilities(shared()), json!(["completion", "embedding"]));
    assert_eq!(capabilities(&pooled), json!(["completion", "embedding", "rerank"]));
}

#[test]
fn embeddings_are_cut_where_the_model_was_trained_for_it() {
    let mut config: Value =
        serde_json::from_slice(&fs::read(model_folder().join("config.json")).unwrap()).unwrap();
    config["matryoshka_dimensions"] = json!([16, 32]);
    let served = with_files(&[("config.json", config)]);
    let whole = embed(&served, "the hare").remove(0);
    let cut = vectors(&post(&served, PATH, &json!({ "input": "the hare", "dimensions": 16 })).ok()).remove(0);
    assert_eq!(cut.len(), 16);
    assert!((cut.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5);
    assert!(cosine(&cut, &whole[..16]) > 1.0 - 1e-6);
    assert_eq!(
        post(&served, PATH, &json!({ "input": "a", "dimensions": 8 })).refused(400)["param"],
        "dimensions"
    );
}

#[test]
fn documents_are_ranked_by_their_likeness_with_the_query() {
    let served = &pooled();
    let documents = ["the lion", "an old story of the hare", "the hare", "is another one"];
    let query = embed(served, "the hare").remove(0);
    let mut wanted: Vec<(usize, f64)> =
        embed(served, documents).iter().map(|document| cosine(&query, document)).enumerate().collect();
    wanted.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert_eq!(wanted[0].0, 2);
    let given = json!([documents[0], { "text": documents[1] }, documents[2], documents[3]]);
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let reply =
            post(served, path, &json!({ "model": "tiny", "query": "the hare", "documents": given })).ok();
        let results = reply["results"].as_array().unwrap();
        assert_eq!(results.len(), 4);
        for (result, (index, likeness)) in results.iter().zip(&wanted) {
            assert_eq!(
                (&result["index"], &result["document"]["text"]),
                (&json!(index), &json!(documents[*index]))
            );
            assert!((result["relevance_score"].as_f64().unwrap() - likeness).abs() < 1e-5, "{result}");
        }
        let tokens: usize = documents.iter().chain([&"the hare"]).map(|text| ids(text).len()).sum();
        assert_eq!(reply["usage"]["total_tokens"], tokens);
    }
    let body = json!({ "query": "the hare", "documents": documents, "top_n": 2, "return_documents": false });
    let best = post(served, "/v1/rerank", &body).ok();
    let best: Vec<_> =
        best["results"].as_array().unwrap().iter().map(|one| (&one["index"], one.get("document"))).collect();
    assert_eq!(best, [(&json!(wanted[0].0), None), (&json!(wanted[1].0), None)]);
    let refused = |body| post(served, "/v1/rerank", &body).refused(400)["param"].clone();
    assert_eq!(refused(json!({ "documents": ["a"] })), "query");
    assert_eq!(refused(json!({ "query": "a", "documents": [] })), "documents");
    assert_eq!(refused(json!({ "query": "a", "documents": ["b", ""] })), "documents[1]");
    assert_eq!(refused(json!({ "query": "a", "documents": ["b"], "instruction": "c" })), "instruction");
}

/// Angles between hidden states of a model that was trained for something else rank nothing.
#[test]
fn models_that_state_no_comparison_do_not_rank() {
    let error = post(shared(), "/v1/rerank", &json!({ "query": "a", "documents": ["b"] })).refused(400);
    assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!("no_comparison")));
    insta::assert_snapshot!(error["message"].as_str().unwrap(), @"model: it compares no texts: the checkpoint states neither how embeddings are pooled nor which tokens judge a document (modules.json of Sentence Transformers, pooling_type of GGUF)");
}

/// The template of a reranker, which has a question of its own.
const JUDGE: &str = "{% set q = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('old') %}\
    {{ q }}\n{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}";

#[test]
fn rerankers_judge_each_document() {
    let modules = json!([
        { "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer" },
        { "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore" },
    ]);
    let mut config: Value =
        serde_json::from_slice(&fs::read(model_folder().join("tokenizer_config.json")).unwrap()).unwrap();
    config["chat_template"] = JUDGE.into();
    let (yes, no) = (40, 41);
    let score = json!({ "true_token_id": yes, "false_token_id": no });
    let served = with_files(&[
        ("modules.json", modules),
        ("1_LogitScore/config.json", score),
        ("tokenizer_config.json", config),
    ]);
    let options = engine_options(1);
    let mut decoder = MODEL.load(&options, options.chunk).unwrap();
    let mut probability = |question: &str, query: &str, document: &str| {
        let prompt = format!("{question}\n<|im_start|>query: {query}\n<|im_start|>document: {document}\n");
        let mut sequence = Sequence::new(&mut decoder, options.chunk).unwrap();
        sequence.extend(&MODEL.tokenizer().unwrap().encode(&prompt, false).unwrap());
        let logits = sequence.logits().unwrap();
        1.0 / (1.0 + f64::from(logits[no] - logits[yes]).exp())
    };
    let documents = ["the lion", "an old story of the hare", "the hare"];
    for (question, asked) in [("old", json!(null)), ("the other", json!("the other"))] {
        let body = json!({ "query": "hello", "documents": documents, "instruction": asked });
        let reply = post(&served, "/v1/rerank", &body).ok();
        let results = reply["results"].as_array().unwrap();
        let of = |result: &Value| result["relevance_score"].as_f64().unwrap();
        assert!(results.is_sorted_by(|a, b| of(a) >= of(b)), "{reply}");
        for result in results {
            let index = usize::try_from(result["index"].as_u64().unwrap()).unwrap();
            let want = probability(question, "hello", documents[index]);
            assert!((of(result) - want).abs() < 1e-4, "{result}, not {want}");
        }
    }
    let body = json!({ "text_1": ["the lion", "the hare"], "text_2": ["hello", "an answer"] });
    let scored = post(&served, "/v1/score", &body).ok();
    for (item, (query, document)) in [("the lion", "hello"), ("the hare", "an answer")].iter().enumerate() {
        let got = scored["data"][item]["score"].as_f64().unwrap();
        let want = probability("old", query, document);
        assert!((got - want).abs() < 1e-4, "{got}, not {want}");
    }
    let refused = |path, body| post(&served, path, &body).refused(400)["param"].clone();
    assert_eq!(refused("/v1/embeddings", json!({ "input": "a" })), "model");
    assert_eq!(refused("/v1/rerank", json!({ "query": "a", "documents": ["b", ""] })), "documents[1]");
    let capabilities = get(&served, "/v1/models").ok()["data"][0]["capabilities"].clone();
    assert_eq!(capabilities, json!(["completion", "rerank"]));
}

#[test]
fn texts_are_scored_in_pairs_or_one_with_each() {
    let served = &pooled();
    let score = |body: Value| -> Vec<f64> {
        let reply = post(served, "/score", &body).ok();
        assert_eq!(reply, post_again(served, &body, &reply));
        reply["data"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect()
    };
    let likeness = |a, b| cosine(&embed(served, a)[0], &embed(served, b)[0]);
    let near = |got: Vec<f64>, want: &[f64]| {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-5), "{got:?}, not {want:?}");
    };
    near(score(json!({ "text_1": "the hare", "text_2": "the lion" })), &[likeness("the hare", "the lion")]);
    let each = [likeness("the hare", "the lion"), likeness("the hare", "the hare")];
    near(score(json!({ "text_1": "the hare", "text_2": ["the lion", "the hare"] })), &each);
    let pairs = [likeness("the hare", "the lion"), likeness("another", "the hare")];
    near(score(json!({ "text_1": ["the hare", "another"], "text_2": ["the lion", "the hare"] })), &pairs);
    let error =
        post(served, "/v1/score", &json!({ "text_1": ["a", "b"], "text_2": ["a", "b", "c"] })).refused(400);
    assert_eq!(error["message"], "text_1: 2 texts, must be 1 or 3, as many as in text_2");
}

/// Posts to the other path, and takes over what differs from call to call.
fn post_again(served: &Served, body: &Value, first: &Value) -> Value {
    let mut again = post(served, "/v1/score", body).ok();
    for field in ["id", "created", "pagoda"] {
        again[field] = first[field].clone();
    }
    again
}

/// Prompts of a call are computed beside those who generate, and a few at a time.
#[test]
fn embeddings_do_not_stop_those_who_generate() {
    let served = start(Setup { sequences: 8, ..Setup::default() });
    let slowed = slowed(&served);
    let request = pagoda::Request::new(ids("the hare")).max_tokens(900).ignore_eos();
    let stream = served.handle.submit(request).unwrap();
    let tokens = || {
        served
            .handle
            .snapshot()
            .running
            .iter()
            .find(|view| view.activity == Activity::Decode)
            .map(|view| view.tokens)
    };
    crate::fixture::until("the request generates", || tokens().is_some());
    let before = tokens().unwrap();
    let many: Vec<Vec<u32>> = (0..100).map(|n| vec![n; 60]).collect();
    assert_eq!(embed(&served, many).len(), 100);
    let after = tokens().expect("the request still runs");
    assert!(after >= before + 10, "{before} tokens before, {after} after");
    drop((stream, slowed));
}
