//! Chat answers, whole and in chunks.

use std::collections::BTreeSet;

use pagoda::{Event, Message, Request, Sampling};
use serde_json::{Value, json};

use crate::client::post;
use crate::fixture::{MODEL, shared};

const PATH: &str = "/v1/chat/completions";

fn ask(fields: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "the lion and the hare" }], "max_tokens": 24, "seed": 3 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// The chunks of a stream, which must end with `[DONE]`.
#[track_caller]
fn chunks(body: &Value) -> Vec<Value> {
    let mut events = post(shared(), PATH, body).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Contents of the samples, put together from chunks.
fn contents(chunks: &[Value], samples: usize) -> Vec<String> {
    let mut contents = vec![String::new(); samples];
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        contents[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    contents
}

#[test]
fn an_answer_is_what_the_engine_generates() {
    let reply = post(shared(), PATH, &ask(json!({ "temperature": 0.8, "return_token_ids": true }))).ok();
    let prompt = MODEL.chat_ids(&[Message::new("user", "the lion and the hare")]).unwrap();
    let sampling = Sampling::default().temperature(0.8).seed(3);
    let request = Request::new(prompt.clone()).max_tokens(24).sampling(sampling);
    let stream = shared().handle.submit(request).unwrap();
    let events: Vec<Event> = stream.blocking().map(Result::unwrap).collect();
    let Some(Event::Finished(end)) = events.last() else { panic!("{events:?}") };
    let text: String = events.iter().map(Event::text).collect();

    let choice = &reply["choices"][0];
    let message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
    assert_eq!(choice["message"], message);
    assert_eq!((&choice["token_ids"], &reply["prompt_token_ids"]), (&json!(end.output), &json!(prompt)));
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!(end.reason.word()), &Value::Null));
    assert_eq!((&reply["object"], &reply["model"]), (&json!("chat.completion"), &json!("tiny")));
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let (prompt, output) = (prompt.len(), end.output.len());
    assert_eq!(reply["usage"]["prompt_tokens"], prompt);
    assert_eq!(reply["usage"]["completion_tokens"], output);
    assert_eq!(reply["usage"]["total_tokens"], prompt + output);
}

#[test]
fn streams_keep_the_contract() {
    let fields =
        json!({ "n": 3, "temperature": 1.3, "stream": true, "stream_options": { "include_usage": true } });
    let mut chunks = chunks(&ask(fields));
    let last = chunks.pop().unwrap();
    assert_eq!((&last["choices"], last["usage"]["completion_tokens"].as_u64()), (&json!([]), Some(72)));
    let mut heads = BTreeSet::new();
    let mut ended = [false; 3];
    let mut begun = [false; 3];
    for chunk in &chunks {
        assert_eq!(chunk.get("usage"), Some(&Value::Null));
        heads.insert(
            [&chunk["id"], &chunk["created"], &chunk["model"], &chunk["object"]].map(Value::to_string),
        );
        let [choice] = &chunk["choices"].as_array().unwrap()[..] else { panic!("{chunk}") };
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        assert!(!ended[index], "a chunk after the end: {chunk}");
        assert_eq!(choice["delta"].get("role").is_some(), !std::mem::replace(&mut begun[index], true));
        let reason = choice.get("finish_reason").expect("in every chunk");
        ended[index] = !reason.is_null();
        assert!(reason.is_null() || reason == "length" || reason == "stop", "{chunk}");
        assert!(choice.get("logprobs").is_some_and(Value::is_null));
    }
    assert_eq!((heads.len(), ended), (1, [true; 3]));
    assert!(heads.first().unwrap()[3].contains("chat.completion.chunk"));

    let whole = post(shared(), PATH, &ask(json!({ "n": 3, "temperature": 1.3 }))).ok();
    let texts: Vec<&str> =
        (0..3).map(|at| whole["choices"][at]["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(contents(&chunks, 3), texts);
}

#[test]
fn usage_is_sent_only_where_asked() {
    let plain = chunks(&ask(json!({ "stream": true })));
    assert!(plain.iter().all(|chunk| chunk.get("usage").is_none() && chunk["choices"] != json!([])));
    let running = chunks(&ask(
        json!({ "stream": true, "ignore_eos": true, "stream_options": { "continuous_usage_stats": true } }),
    ));
    let used: Vec<u64> =
        running.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(used.is_sorted() && used.first() == Some(&1) && used.last() == Some(&24), "{used:?}");
}

#[test]
fn characters_are_never_split() {
    // Bytes of characters of 2 to 4 bytes become likely, in any order, so that most texts hold broken ones too.
    let wide = |text: &str| text.bytes().collect::<Vec<u8>>();
    let tokenizer = MODEL.tokenizer().unwrap();
    let ids = (0..128).filter(|id| {
        let bytes = tokenizer.token_bytes(*id).unwrap();
        bytes.len() == 1 && wide("é€😀").contains(&bytes[0])
    });
    let bias: serde_json::Map<String, Value> = ids.map(|id: u32| (id.to_string(), 9.into())).collect();
    assert_eq!(bias.len(), 9);
    for seed in 0..6 {
        let fields = json!({ "logit_bias": bias, "seed": seed, "max_tokens": 120, "temperature": 1.5, "ignore_eos": true });
        let whole = post(shared(), PATH, &ask(fields.clone())).ok();
        let mut streamed = fields;
        streamed["stream"] = true.into();
        let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(contents(&chunks(&ask(streamed)), 1), [text]);
        assert!(!text.is_ascii());
    }
}

#[test]
fn nothing_of_a_stop_text_is_sent() {
    let body = |fields: Value| {
        let mut body = ask(json!({ "temperature": 1.2, "max_tokens": 60, "ignore_eos": true }));
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let whole = post(shared(), PATH, &body(json!({}))).ok();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let chars: Vec<char> = text.chars().collect();
    let stop: String = chars[20..24].iter().collect();
    let before = &text[..text.find(&stop).unwrap()];
    let chunks = chunks(&body(json!({ "stream": true, "stop": [&stop, "not there at all"] })));
    assert_eq!(contents(&chunks, 1), [before]);
    let choice = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
}

#[test]
fn log_probabilities_come_with_their_bytes() {
    let fields =
        json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 9, "ignore_eos": true, "temperature": 0 });
    let whole = post(shared(), PATH, &ask(fields.clone())).ok();
    let choice = &whole["choices"][0];
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|entry| serde_json::from_value::<Vec<u8>>(entry["bytes"].clone()).unwrap())
        .collect();
    assert_eq!(String::from_utf8_lossy(&bytes), choice["message"]["content"].as_str().unwrap());
    for entry in entries {
        // At temperature 0, the drawn token is the likeliest.
        assert_eq!(
            (entry["token"].clone(), entry["logprob"].clone()),
            (entry["top_logprobs"][0]["token"].clone(), entry["top_logprobs"][0]["logprob"].clone())
        );
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
    }
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let sent: Vec<Value> = chunks(&ask(streamed))
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(&sent, entries);
}

#[test]
fn a_repeated_prompt_is_cached() {
    let long = "an old story of the lion and the hare ".repeat(8);
    let body =
        json!({ "messages": [{ "role": "user", "content": long }], "max_tokens": 2, "cache_salt": "cached" });
    let cached = |reply: &Value| reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let first = post(shared(), PATH, &body).ok();
    assert_eq!(cached(&first), 0);
    let second = post(shared(), PATH, &body).ok();
    let prompt = second["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached(&second) > prompt / 2 && cached(&second) < prompt, "{second}");
    assert_eq!(second["pagoda"]["cached_tokens"]["device"], cached(&second));
    assert_eq!(second["pagoda"]["first_new_token"], Value::Null);
    let mut other = body;
    other["messages"][0]["content"] = format!("{}?", &long[..long.len() / 2]).into();
    let other = post(shared(), PATH, &other).ok();
    let new = other["pagoda"]["first_new_token"].as_u64().unwrap();
    let total = other["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(new >= cached(&other) && new < total, "{other}");
    assert_eq!(other["pagoda"]["sparse"]["policy"], "full");
}

#[test]
fn messages_become_what_the_template_expects() {
    let ids = |fields: Value| {
        let mut body = json!({ "max_tokens": 1, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = post(shared(), PATH, &body).ok();
        let ids: Vec<u32> = serde_json::from_value(reply["prompt_token_ids"].clone()).unwrap();
        MODEL.tokenizer().unwrap().decode(&ids, false).unwrap()
    };
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b<|im_end|>" }]);
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } });
    let messages = json!([
        { "role": "developer", "content": "be brief" },
        { "role": "user", "content": parts, "name": "me" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "content": "2", "tool_call_id": "c" },
    ]);
    insta::assert_snapshot!(ids(json!({ "messages": messages, "documents": [{ "text": "d" }], "reasoning_effort": "none" })), @"
    <|im_start|>system
    be brief<|im_end|>
    <|im_start|>user
    a
    b<|im_end|><|im_end|>
    <|im_start|>assistant
    [f 1]<|im_end|>
    <|im_start|>tool
    2<|im_end|>
    documents: 1
    no thoughts
    <|im_start|>assistant
    ");
    let begun = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b c" }]);
    insta::assert_snapshot!(ids(json!({ "messages": begun, "continue_final_message": true })), @"
    <|im_start|>user
    a<|im_end|>
    <|im_start|>assistant
    b c
    ");
}
