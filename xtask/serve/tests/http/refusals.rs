//! Refusals, and their messages.

use std::io::Read;

use serde_json::{Value, json};

use crate::client::{post, post_bytes, receive, send};
use crate::fixture::{Setup, shared, start};

/// Status, field, code and message of a refusal.
fn refusal(path: &str, fields: &Value) -> String {
    let mut body = match path {
        "/v1/chat/completions" => json!({ "messages": [{ "role": "user", "content": "a" }] }),
        "/inference/v1/generate" => json!({}),
        _ => json!({ "prompt": "a" }),
    };
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let reply = post(shared(), path, &body);
    assert_ne!(reply.status, 200, "{fields} was accepted");
    let error = &reply.json()["error"];
    assert!(error["param"].is_string(), "{fields}: {error} names no field");
    let [param, code] = ["param", "code"].map(|key| error[key].as_str().unwrap_or("-"));
    format!("{} {param} {code} | {}", reply.status, error["message"].as_str().unwrap())
}

#[test]
fn fields_that_cannot_be_honoured_are_named() {
    let chat = |fields: Value| refusal("/v1/chat/completions", &fields);
    let lines = [
        chat(json!({ "model": null })),
        refusal("/v1/responses", &json!({ "model": null, "prompt": null, "input": "a" })),
        chat(json!({ "messages": [] })),
        chat(json!({ "messages": null })),
        chat(json!({ "messages": [{ "role": "king", "content": "a" }] })),
        chat(json!({ "messages": [{ "role": "user" }] })),
        chat(
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
        ),
        chat(
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "x" } }] }] }),
        ),
        chat(json!({ "messages": [{ "role": "user", "content": "a", "mood": 1 }] })),
        chat(json!({ "temperature": -1 })),
        chat(json!({ "temperature": "hot" })),
        chat(json!({ "top_p": 1.5 })),
        chat(json!({ "top_logprobs": 2 })),
        chat(json!({ "logprobs": true, "top_logprobs": 1000 })),
        chat(json!({ "n": 0 })),
        chat(json!({ "n": 1000 })),
        chat(json!({ "max_tokens": 0 })),
        chat(json!({ "max_tokens": 5, "min_tokens": 6 })),
        chat(json!({ "stop": ["a", ""] })),
        chat(json!({ "stop": 1 })),
        chat(json!({ "stop_token_ids": [128] })),
        chat(json!({ "logit_bias": { "x": 1 } })),
        chat(json!({ "logit_bias": { "128": 1 } })),
        chat(json!({ "max_completion_tokens": 0 })),
        chat(json!({ "cache_salt": "" })),
        chat(json!({ "stream": true, "stream_options": { "include_use": true } })),
        chat(json!({ "modalities": ["text", "audio"] })),
        chat(json!({ "audio": { "voice": "alloy" } })),
        chat(json!({ "tool": [] })),
        chat(json!({ "grammar": "root ::= \"a\"" })),
        chat(json!({ "chat_template_kwargs": { "tools": [] } })),
        chat(json!({ "continue_final_message": true })),
        chat(json!({ "add_generation_prompt": false })),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn prompts_that_cannot_run_are_told_with_their_sizes() {
    let complete = |fields: Value| refusal("/v1/completions", &fields);
    let lines = [
        complete(json!({ "prompt": null })),
        complete(json!({ "prompt": "" })),
        complete(json!({ "prompt": [] })),
        complete(json!({ "prompt": [[1], []] })),
        complete(json!({ "prompt": [1, -1] })),
        complete(json!({ "prompt": [1, 128] })),
        complete(json!({ "prompt": vec![5; 5000] })),
        refusal(
            "/v1/chat/completions",
            &json!({ "messages": [{ "role": "user", "content": "a".repeat(5000) }] }),
        ),
        refusal("/v1/responses", &json!({ "model": "tiny", "prompt": null, "input": "a".repeat(5000) })),
        refusal(
            "/v1/responses",
            &json!({ "model": "tiny", "prompt": null, "input": "a", "max_output_tokens": 0 }),
        ),
        refusal("/inference/v1/generate", &json!({ "token_ids": [5, 128] })),
        complete(json!({ "best_of": 2 })),
        complete(json!({ "suffix": "b" })),
        complete(json!({ "logprobs": 1000 })),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn bodies_that_are_not_json_objects_are_refused() {
    let served = shared();
    let path = "/v1/completions";
    let raw =
        |body: &[u8]| receive(send(served, &post_bytes(path, body))).refused(400)["message"].to_string();
    assert!(raw(b"").contains("not a JSON object"));
    assert!(raw(b"[1]").contains("not a JSON object"));
    assert!(raw(b"{\"prompt\": \"\xff\xfe\"}").contains("not UTF-8"));
    assert!(raw(b"{\"prompt\": \"\\ud80\"}").contains("prompt"));
    let deep = format!("{{\"prompt\": {}{}}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    assert!(raw(deep.as_bytes()).contains("prompt"));

    let typed = String::from_utf8(post_bytes(path, b"{}")).unwrap().replace("application/json", "text/plain");
    let error = receive(send(served, typed.as_bytes())).refused(415);
    assert_eq!(error["message"], r#"content-type is "text/plain", it must be application/json"#);
}

#[test]
fn large_bodies_are_refused_before_they_arrive() {
    let mut setup = Setup::default();
    setup.options.max_body_bytes = 1000;
    let served = start(setup);
    // Announced: the body need not be sent.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100000000\r\n\r\n";
    let error = receive(send(&served, head.as_bytes())).refused(413);
    assert_eq!(error["message"], "the body has 100000000 bytes, the limit is 1000");
    // Not announced.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("400\r\n{}\r\n", " ".repeat(0x400));
    let error = receive(send(&served, format!("{head}{chunk}").as_bytes())).refused(413);
    assert_eq!(error["message"], "the body has more than 1000 bytes, the limit is 1000");
}

#[test]
fn a_connection_whose_body_was_not_read_is_closed_and_says_so() {
    let begin = |path: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 9\r\n{more}\r\n"
        )
    };
    // The body never comes.
    let refused = receive(send(shared(), begin("/v1/nothing", "").as_bytes()));
    assert_eq!((refused.status, refused.header("connection")), (404, Some("close")));
    // Where it was read, the connection takes another request.
    let body = r#"{"a": 1} "#;
    let [first, last] = ["", "connection: close\r\n"].map(|more| begin("/v1/completions", more) + body);
    let mut replies = String::new();
    send(shared(), (first + &last).as_bytes()).read_to_string(&mut replies).unwrap();
    assert_eq!(replies.matches("HTTP/1.1 400").count(), 2, "{replies}");
}
