//! The document of the API, held to what the server replies.

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::fixture::shared;

/// Returns the places where a value does not follow a schema, as far as fields and their types go.
fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).expect(name);
        return faults(document, schema, value, at);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = any.iter().any(|schema| faults(document, schema, value, at).is_empty());
        return if fits { Vec::new() } else { vec![format!("{at} is {value}")] };
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => vec![kind(value)],
    };
    let fits = types.contains(&kind(value)) || (kind(value) == "integer" && types.contains(&"number"));
    if !fits || schema.get("const").is_some_and(|only| only != value) {
        return vec![format!("{at} is {value}")];
    }
    match value {
        Value::Array(values) if schema["items"].is_object() => {
            values.iter().flat_map(|value| faults(document, &schema["items"], value, at)).collect()
        }
        Value::Object(fields) if schema["properties"].is_object() => {
            let required = schema["required"].as_array().into_iter().flatten();
            let missing = required.filter(|name| value.get(name.as_str().unwrap()).is_none());
            let missing = missing.map(|name| format!("{at} has no {name}"));
            let inner = fields.iter().flat_map(|(name, value)| match schema["properties"].get(name) {
                Some(schema) => faults(document, schema, value, &format!("{at}.{name}")),
                None => vec![format!("{at}.{name} is not in the document")],
            });
            missing.chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[test]
fn replies_are_those_of_the_document() {
    let served = shared();
    let document = get(served, "/openapi.json").ok();
    let check = |path: &str, template: &str, method: &str, reply: &Value| {
        let content = &document["paths"][template][method]["responses"]["200"]["content"];
        let faults = faults(&document, &content["application/json"]["schema"], reply, path);
        assert!(faults.is_empty(), "{faults:#?}");
    };
    for path in ["/v1/models", "/health", "/health/ready", "/health/live", "/load", "/props", "/version"] {
        check(path, path, "get", &get(served, path).ok());
    }
    check("/v1/models/tiny", "/v1/models/{name}", "get", &get(served, "/v1/models/tiny").ok());
    let messages = || json!([{ "role": "user", "content": "hello" }]);
    let calls = [
        (
            "/v1/chat/completions",
            json!({ "messages": messages(), "max_tokens": 3, "logprobs": true, "return_token_ids": true }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "hello", "max_tokens": 3, "logprobs": 2, "return_token_ids": true }),
        ),
        ("/v1/responses", json!({ "input": "hello", "max_output_tokens": 3, "instructions": "be brief" })),
        ("/v1/messages", json!({ "messages": messages(), "max_tokens": 3 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages() })),
        ("/inference/v1/generate", json!({ "token_ids": [5, 6], "max_tokens": 3, "logprobs": 1 })),
        ("/tokenize", json!({ "prompt": "hello", "return_token_strs": true })),
        ("/detokenize", json!({ "tokens": [5, 6] })),
        ("/v1/chat/completions/render", json!({ "messages": messages() })),
        ("/v1/completions/render", json!({ "prompt": ["a", "b"] })),
    ];
    for (path, body) in calls {
        check(path, path, "post", &post(served, path, &body).ok());
    }
}

#[test]
fn chunks_are_those_of_the_document() {
    let served = shared();
    let document = get(served, "/openapi.json").ok();
    let usage = json!({ "include_usage": true });
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let calls = [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 3, "stream": true, "stream_options": usage }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "hello", "max_tokens": 3, "stream": true, "stream_options": usage }),
        ),
        (
            "/inference/v1/generate",
            json!({ "token_ids": [5], "max_tokens": 3, "stream": true, "stream_options": usage }),
        ),
    ];
    for (path, body) in calls {
        let content = &document["paths"][path]["post"]["responses"]["200"]["content"];
        let mut events = post(served, path, &body).events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let mut told = false;
        for event in events {
            let event: Value = serde_json::from_str(&event).unwrap();
            let faults = faults(&document, &content["text/event-stream"]["schema"], &event, path);
            assert!(faults.is_empty(), "{faults:#?}");
            told |= event["pagoda"].is_object();
        }
        assert!(told, "{path} tells nothing of the engine");
    }
}
