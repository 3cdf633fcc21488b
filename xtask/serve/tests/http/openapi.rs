//! The document of the API, held to what the server replies.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use boon::{Compiler, Schemas};
use serde_json::{Value, json};

use crate::client::{get, post};
use crate::embeddings::pooled;
use crate::fixture::{Setup, shared, start};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| get(shared(), "/openapi.json").ok());

/// Checks a value by the schema of a reply of an operation.
#[track_caller]
fn check(operation: &str, status: &str, media: &str, value: &Value) {
    let (method, path) = operation.split_once(' ').unwrap();
    let schema = &DOCUMENT["paths"][path][method]["responses"][status]["content"][media]["schema"];
    assert!(schema.is_object(), "{operation} has no schema of {media}");
    let schema = json!({ "allOf": [schema], "components": DOCUMENT["components"] });
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.add_resource("reply.json", schema).unwrap();
    let reply = compiler.compile("reply.json", &mut schemas).unwrap();
    if let Err(fault) = schemas.validate(value, reply) {
        panic!("{operation}: {fault:#}\n{value:#}");
    }
}

#[track_caller]
fn check_reply(operation: &str, reply: &Value) {
    check(operation, "200", "application/json", reply);
}

fn messages() -> Value {
    json!([{ "role": "user", "content": "hello" }])
}

#[test]
fn replies_are_those_of_the_document() {
    let served = shared();
    for path in [
        "/v1/models",
        "/health",
        "/health/ready",
        "/health/live",
        "/load",
        "/props",
        "/version",
        "/openapi.json",
    ] {
        check_reply(&format!("get {path}"), &get(served, path).ok());
    }
    check_reply("get /v1/models/{name}", &get(served, "/v1/models/tiny").ok());
    let metrics = get(served, "/metrics");
    check("get /metrics", "200", "text/plain", &metrics.text().into());
    let alone = start(Setup::default());
    check_reply("post /reset_prefix_cache", &post(&alone, "/reset_prefix_cache", &json!({})).ok());
    let tool =
        json!({ "type": "function", "function": { "name": "double", "parameters": { "type": "object" } } });
    let calls = [
        (
            "/v1/chat/completions",
            json!({ "messages": messages(), "max_tokens": 3, "logprobs": true, "top_logprobs": 2, "return_token_ids": true }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages(), "max_tokens": 60, "tools": [tool], "tool_choice": "required", "store": true }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "hello", "max_tokens": 3, "logprobs": 2, "echo": true, "return_token_ids": true, "stop": "e" }),
        ),
        ("/v1/responses", json!({ "input": "hello", "max_output_tokens": 3, "instructions": "be brief" })),
        ("/v1/responses/input_tokens", json!({ "input": "hello", "instructions": "be brief" })),
        ("/v1/messages", json!({ "messages": messages(), "max_tokens": 3 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages() })),
        ("/inference/v1/generate", json!({ "token_ids": [5, 6], "max_tokens": 3, "logprobs": 1 })),
        ("/v1/embeddings", json!({ "input": ["hello", "you"] })),
        ("/v1/embeddings", json!({ "input": "hello", "encoding_format": "base64" })),
        ("/tokenize", json!({ "prompt": "hello", "return_token_strs": true })),
        ("/tokenize", json!({ "messages": messages() })),
        ("/detokenize", json!({ "tokens": [5, 6] })),
        ("/v1/chat/completions/render", json!({ "messages": messages() })),
        ("/v1/completions/render", json!({ "prompt": ["a", "b"] })),
    ];
    for (path, body) in calls {
        check_reply(&format!("post {path}"), &post(served, path, &body).ok());
    }
    let comparing = pooled();
    for (path, body) in [
        ("/v1/rerank", json!({ "query": "hello", "documents": ["you", { "text": "hello" }] })),
        ("/v2/rerank", json!({ "query": "hello", "documents": ["you"], "return_documents": false })),
        ("/rerank", json!({ "query": "hello", "documents": ["you"] })),
        ("/v1/score", json!({ "text_1": "hello", "text_2": ["you", "hello"] })),
        ("/score", json!({ "text_1": "hello", "text_2": "you" })),
    ] {
        check_reply(&format!("post {path}"), &post(&comparing, path, &body).ok());
    }
}

#[test]
fn events_are_those_of_the_document() {
    let served = shared();
    let usage = json!({ "include_usage": true });
    let tool = json!({ "name": "double", "input_schema": { "type": "object" } });
    let calls = [
        (
            "/v1/chat/completions",
            json!({ "messages": messages(), "max_tokens": 3, "stream": true, "stream_options": usage, "logprobs": true }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "hello", "max_tokens": 3, "stream": true, "stream_options": usage }),
        ),
        (
            "/inference/v1/generate",
            json!({ "token_ids": [5], "max_tokens": 3, "stream": true, "stream_options": usage }),
        ),
        ("/v1/responses", json!({ "input": "hello", "max_output_tokens": 3, "stream": true })),
        ("/v1/messages", json!({ "messages": messages(), "max_tokens": 3, "stream": true })),
        (
            "/v1/messages",
            json!({ "messages": messages(), "max_tokens": 60, "stream": true, "tools": [tool], "tool_choice": { "type": "any" } }),
        ),
    ];
    for (path, body) in calls {
        let mut told = false;
        for event in post(served, path, &body).events().iter().filter(|event| *event != "[DONE]") {
            let event: Value = serde_json::from_str(event).unwrap();
            check(&format!("post {path}"), "200", "text/event-stream", &event);
            told |= event["pagoda"].is_object() || event["response"]["pagoda"].is_object();
        }
        assert!(told, "{path} tells nothing of the engine");
    }
}

#[test]
fn errors_are_those_of_the_document() {
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": [] })),
        ("/v1/responses", json!({ "input": 5 })),
        ("/v1/messages", json!({ "messages": messages() })),
        ("/v1/embeddings", json!({})),
    ] {
        let reply = post(shared(), path, &body);
        assert_eq!(reply.status, 400);
        check(&format!("post {path}"), "default", "application/json", &reply.json());
    }
}

/// A document that allows everything would pass the tests above.
#[test]
#[should_panic(expected = "additionalProperties 'more' not allowed")]
fn what_the_document_does_not_have_is_found() {
    let mut reply = get(shared(), "/version").ok();
    reply["more"] = true.into();
    check_reply("get /version", &reply);
}

/// All values of a key in the document.
fn values<'a>(document: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match document {
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|value| values(value, key, found));
        }
        Value::Array(items) => items.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

#[test]
fn references_lead_to_schemas_and_all_schemas_are_used() {
    let mut found = Vec::new();
    values(&DOCUMENT, "$ref", &mut found);
    let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
    let names: Vec<_> = schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
    assert_eq!(BTreeSet::from_iter(found), names.iter().map(String::as_str).collect());
}

/// Programs name functions of clients by them.
#[test]
fn operations_have_names_of_their_own() {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let operations: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
    let mut ids = Vec::new();
    values(&DOCUMENT["paths"], "operationId", &mut ids);
    assert_eq!((ids.len(), BTreeSet::from_iter(&ids).len()), (operations, operations), "{ids:?}");
}

#[test]
fn bodies_have_the_fields_of_their_types() {
    let schemas = &DOCUMENT["components"]["schemas"];
    let chat = &schemas["ChatRequest"]["allOf"];
    assert_eq!(chat.as_array().unwrap().len(), 4);
    let generation = &schemas["Generation"]["properties"];
    insta::assert_snapshot!(generation["top_p"], @r#"{"type":["number","null"],"format":"float","description":"Draw from the likeliest tokens whose probabilities sum to this; 0.95 without it and a recommendation.","minimum":0.0,"maximum":1.0}"#);
    insta::assert_snapshot!(generation["n"], @r#"{"type":["integer","null"],"format":"uint32","minimum":1,"description":"Number of answers to each prompt, which share its KV blocks."}"#);
    insta::assert_snapshot!(schemas["ChatMessage"]["required"], @r#"["role"]"#);
    insta::assert_snapshot!(schemas["Conversation"]["required"], @r#"["messages"]"#);
}

#[test]
fn replies_have_the_fields_of_their_types_and_no_others() {
    let chat = &DOCUMENT["components"]["schemas"]["ChatCompletion"];
    insta::assert_snapshot!(chat["required"], @r#"["id","object","created","model","choices"]"#);
    insta::assert_snapshot!(chat["properties"]["object"]["enum"], @r#"["chat.completion"]"#);
    insta::assert_snapshot!(chat["additionalProperties"], @"false");
}
