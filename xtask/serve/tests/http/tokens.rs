//! Tokens in and out.

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::fixture::{MODEL, Setup, shared, start, until};

#[test]
fn texts_and_conversations_are_tokenized_and_back() {
    let served = shared();
    let ids = MODEL.tokenizer().unwrap().encode("the hare €", true).unwrap();
    let reply = post(served, "/tokenize", &json!({ "prompt": "the hare €", "return_token_strs": true })).ok();
    assert_eq!(
        (&reply["tokens"], &reply["count"], &reply["max_model_len"]),
        (&json!(ids), &json!(ids.len()), &json!(4096))
    );
    assert_eq!(reply["token_strs"][0], "the");
    assert_eq!(post(served, "/detokenize", &json!({ "tokens": ids })).ok()["prompt"], "the hare €");

    let messages = json!([{ "role": "user", "content": "hello" }]);
    let talk = post(served, "/tokenize", &json!({ "messages": messages })).ok();
    let text = post(served, "/detokenize", &json!({ "tokens": talk["tokens"] })).ok();
    assert_eq!(text["prompt"], "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
    let error = post(served, "/detokenize", &json!({ "tokens": [1, 128] })).refused(400);
    assert_eq!(error["message"], "tokens[1]: 128 is outside the vocabulary of 128");
}

#[test]
fn a_rendered_chat_generates_what_the_chat_answers() {
    let served = shared();
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 9 });
    let mut rendered = post(served, "/v1/chat/completions/render", &body).ok();
    rendered["sampling_params"]["temperature"] = 0.into();
    let generated = post(served, "/inference/v1/generate", &rendered).ok();
    let mut asked = body;
    asked["temperature"] = 0.into();
    asked["return_token_ids"] = true.into();
    let chat = post(served, "/v1/chat/completions", &asked).ok();
    assert_eq!(generated["choices"][0]["token_ids"], chat["choices"][0]["token_ids"]);
    assert_eq!(rendered["token_ids"], chat["prompt_token_ids"]);
    assert_eq!(generated["request_id"], rendered["request_id"]);

    rendered["stream"] = true.into();
    let mut events = post(served, "/inference/v1/generate", &rendered).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunk = |event: &String| {
        serde_json::from_str::<Value>(event).unwrap()["choices"][0]["token_ids"].as_array().unwrap().clone()
    };
    let streamed: Vec<Value> = events.iter().flat_map(chunk).collect();
    assert_eq!(json!(streamed), generated["choices"][0]["token_ids"]);

    let listed = post(served, "/v1/completions/render", &json!({ "prompt": ["a", "the"] })).ok();
    let ids = |text| MODEL.tokenizer().unwrap().encode(text, true).unwrap();
    assert_eq!([&listed[0]["token_ids"], &listed[1]["token_ids"]], [&json!(ids("a")), &json!(ids("the"))]);
}

#[test]
fn a_reset_empties_the_prefix_cache() {
    let served = start(Setup::default());
    let body = json!({ "prompt": vec![9; 100], "max_tokens": 1 });
    let cached = || {
        post(&served, "/v1/completions", &body).ok()["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
    };
    assert_eq!((cached(), cached()), (Some(0), Some(96)));
    until("nothing runs", || get(&served, "/load").ok()["num_running"] == 0);
    post(&served, "/reset_prefix_cache", &json!({})).ok();
    assert_eq!(cached(), Some(0));
    let props = get(&served, "/props").ok();
    assert_eq!((&props["kv_block_size"], &props["vocab_size"]), (&json!(16), &json!(128)));
}
