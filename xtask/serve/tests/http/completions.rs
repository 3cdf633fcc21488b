//! Completions of prompts in all their forms.

use pagoda::Sequence;
use serde_json::{Value, json};

use crate::client::post;
use crate::fixture::{MODEL, engine_options, shared};

const PATH: &str = "/v1/completions";

fn ids(text: &str) -> Vec<u32> {
    MODEL.tokenizer().unwrap().encode(text, true).unwrap()
}

fn texts(reply: &Value) -> Vec<&str> {
    reply["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[test]
fn prompts_come_as_texts_and_ids_one_or_several() {
    let complete = |prompt: Value| {
        post(shared(), PATH, &json!({ "prompt": prompt, "temperature": 0, "max_tokens": 8 })).ok()
    };
    let (one, two) = (complete(json!("the hare")), complete(json!("is another one")));
    let both = [texts(&one)[0], texts(&two)[0]];
    assert_eq!(texts(&complete(json!(ids("the hare")))), [both[0]]);
    assert_eq!(texts(&complete(json!(["the hare", "is another one"]))), both);
    let listed = complete(json!([ids("is another one"), ids("the hare")]));
    assert_eq!(texts(&listed), [both[1], both[0]]);
    assert_eq!((&listed["object"], &listed["choices"][1]["index"]), (&json!("text_completion"), &json!(1)));
    assert_eq!(listed["usage"]["prompt_tokens"], ids("the hare").len() + ids("is another one").len());
}

/// Log-probabilities of the tokens of a text after the first, from a decoder of its own.
fn oracle(ids: &[u32]) -> Vec<f32> {
    let options = engine_options(1);
    let mut decoder = MODEL.load(&options, options.chunk).unwrap();
    Sequence::new(&mut decoder, options.chunk).unwrap().log_probs(ids).unwrap()
}

#[test]
fn a_text_is_scored_as_evaluations_do() {
    let text = "an old story of the hare";
    let want = oracle(&ids(text));
    for max_tokens in [0, 1] {
        let body = json!({ "prompt": text, "echo": true, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0 });
        let reply = post(shared(), PATH, &body).ok();
        let choice = &reply["choices"][0];
        let got = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!((got.len(), &got[0]), (ids(text).len() + max_tokens, &Value::Null));
        for (got, want) in got[1..].iter().zip(&want) {
            assert!((got.as_f64().unwrap() - f64::from(*want)).abs() < 1e-4, "{got}, not {want}");
        }
        let columns = &choice["logprobs"];
        let tokens: Vec<&str> =
            columns["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(tokens.concat(), choice["text"].as_str().unwrap());
        assert!(choice["text"].as_str().unwrap().starts_with(text));
        let offsets: Vec<usize> = serde_json::from_value(columns["text_offset"].clone()).unwrap();
        assert_eq!((offsets[0], offsets[1], offsets.len()), (0, tokens[0].len(), tokens.len()));
        assert_eq!(reply["usage"]["completion_tokens"], max_tokens);
        assert_eq!(choice["finish_reason"], "length");
    }
}

#[test]
fn streams_of_several_prompts_are_merged() {
    let mut body = json!({ "prompt": ["the lion", "is it", "hello"], "n": 2, "max_tokens": 12, "seed": 5, "echo": true, "logprobs": 1 });
    let whole = post(shared(), PATH, &body).ok();
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let mut events = post(shared(), PATH, &body).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let usage = chunks.pop().unwrap();
    assert_eq!(
        (&usage["choices"], &usage["usage"]["prompt_tokens"]),
        (&json!([]), &whole["usage"]["prompt_tokens"])
    );
    let mut streamed = vec![(String::new(), Vec::new(), Value::Null); 6];
    for chunk in &chunks {
        let choice = &chunk["choices"][0];
        let (text, offsets, end) = &mut streamed[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()];
        assert!(end.is_null(), "{chunk}");
        text.push_str(choice["text"].as_str().unwrap());
        offsets.extend(choice["logprobs"]["text_offset"].as_array().unwrap().clone());
        *end = choice["finish_reason"].clone();
    }
    for (choice, (text, offsets, end)) in whole["choices"].as_array().unwrap().iter().zip(streamed) {
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &end));
        assert_eq!(choice["logprobs"]["text_offset"], json!(offsets));
    }
}

#[test]
fn stop_tokens_and_minimum_lengths_hold() {
    let body = |fields: Value| {
        let mut body = json!({ "prompt": "the lion", "temperature": 0, "max_tokens": 20, "ignore_eos": true, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(shared(), PATH, &body).ok()["choices"][0].clone()
    };
    let free: Vec<u32> = serde_json::from_value(body(json!({}))["token_ids"].clone()).unwrap();
    let stopped = body(json!({ "stop_token_ids": [free[6]] }));
    let first = free.iter().position(|id| *id == free[6]).unwrap();
    assert_eq!(stopped["token_ids"], json!(free[..=first]));
    assert_eq!((&stopped["finish_reason"], &stopped["stop_reason"]), (&json!("stop"), &json!(free[6])));
    let later: Vec<u32> = serde_json::from_value(
        body(json!({ "stop_token_ids": [free[6]], "min_tokens": 12 }))["token_ids"].clone(),
    )
    .unwrap();
    assert!(later.len() >= 12 && !later[..12].contains(&free[6]), "{later:?}");
}

/// A token that a bias makes the likeliest at every place, which DRY keeps from following itself.
#[test]
fn dry_does_what_its_fields_say() {
    let token = *ids("the hare").last().unwrap();
    let text = MODEL.tokenizer().unwrap().decode(&[token], false).unwrap();
    let ask = |dry: Value| {
        let mut body = json!({
            "prompt": "an old story", "temperature": 0, "max_tokens": 6, "ignore_eos": true, "return_token_ids": true,
            "logit_bias": { (token.to_string()): 100.0 },
        });
        body.as_object_mut().unwrap().extend(dry.as_object().unwrap().clone());
        post(shared(), PATH, &body)
    };
    let repeated = |dry: Value| {
        let output: Vec<u32> =
            serde_json::from_value(ask(dry).ok()["choices"][0]["token_ids"].clone()).unwrap();
        assert_eq!(output.len(), 6);
        output.windows(2).filter(|pair| *pair == [token, token]).count()
    };
    assert_eq!(repeated(json!({})), 5);
    assert_eq!(repeated(json!({ "dry_multiplier": 1000, "dry_allowed_length": 1 })), 1);
    assert_eq!(repeated(json!({ "dry_multiplier": 1000, "dry_allowed_length": 3 })), 3);
    // Of a match that is one longer than allowed.
    let base = json!({ "dry_multiplier": 1, "dry_base": 1e6, "dry_allowed_length": 1 });
    assert_eq!(repeated(base), 3);
    let near = json!({ "dry_multiplier": 1000, "dry_allowed_length": 1, "dry_penalty_last_n": 0 });
    assert_eq!(repeated(near), 5);
    let breaking =
        json!({ "dry_multiplier": 1000, "dry_allowed_length": 1, "dry_sequence_breakers": [text] });
    assert_eq!(repeated(breaking), 5);
    for (field, value) in
        [("dry_multiplier", json!(-1)), ("dry_base", json!(0.5)), ("dry_allowed_length", json!("two"))]
    {
        let error = ask(json!({ "dry_multiplier": 1, field: value })).refused(400);
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    let error = ask(json!({ "dry_sequence_breakers": [""] })).refused(400);
    assert_eq!(error["param"], "dry_sequence_breakers[0]");
}
