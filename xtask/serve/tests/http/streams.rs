//! Streams as they are on the wire: every line of every protocol.

use serde_json::{Value, json};

use crate::client::post;
use crate::fixture::shared;

/// A stream with the values masked that differ from run to run.
fn wire(path: &str, mut body: Value) -> String {
    body["stream"] = true.into();
    body["model"] = "tiny".into();
    let reply = post(shared(), path, &body);
    reply.events();
    let line = |line: &str| match line.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok())
    {
        Some(mut event) => {
            mask(&mut event);
            format!("data: {event}\n")
        }
        None => format!("{line}\n"),
    };
    reply.text().lines().map(line).collect()
}

/// Masks ids and times, and what the engine tells of its work.
fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "id" | "item_id" | "call_id" => *value = "ID".into(),
                    "created" | "created_at" | "completed_at" => *value = 0.into(),
                    "pagoda" => *value = "WORK".into(),
                    // Other tests may have left the prompt in the cache, and white space in arguments is free.
                    "cached_tokens" | "input_tokens" | "cache_read_input_tokens" | "output_tokens" => {
                        *value = "TOKENS".into();
                    }
                    _ => mask(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(mask),
        _ => {}
    }
}

/// A form with one text, of which no two characters are a token: the stream is the same whatever is drawn.
fn fixed() -> Value {
    json!({ "choice": ["fig"] })
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello" }])
}

/// A tool with one possible call.
fn schema() -> Value {
    json!({ "type": "object", "properties": { "x": { "const": 1 } }, "required": ["x"], "additionalProperties": false })
}

#[test]
fn completions() {
    let body =
        json!({ "prompt": "a", "structured_outputs": fixed(), "stream_options": { "include_usage": true } });
    insta::assert_snapshot!(wire("/v1/completions", body));
}

#[test]
fn chats() {
    let body = json!({ "messages": hello(), "structured_outputs": fixed(), "stream_options": { "include_usage": true } });
    insta::assert_snapshot!(wire("/v1/chat/completions", body));
}

#[test]
fn responses() {
    let schema = json!({ "type": "string", "const": "fig" });
    let format = json!({ "type": "json_schema", "name": "x", "schema": schema });
    insta::assert_snapshot!(wire("/v1/responses", json!({ "input": "hello", "text": { "format": format } })));
}

/// The fragments of the arguments follow the tokens, which another driver may draw otherwise where white space is free: they
/// are joined.
#[test]
fn messages() {
    let tool = json!({ "name": "double", "input_schema": schema() });
    let choice = json!({ "type": "tool", "name": "double" });
    let body = json!({ "messages": hello(), "max_tokens": 100, "tools": [tool], "tool_choice": choice, "temperature": 0 });
    let wire = wire("/v1/messages", body);
    let arguments: String = wire.lines().filter_map(partial).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({ "x": 1 }));
    let others = wire.split_inclusive("\n\n").filter(|event| !event.contains("input_json_delta"));
    insta::assert_snapshot!(others.collect::<String>());
}

fn partial(line: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
    event["delta"]["partial_json"].as_str().map(str::to_owned)
}

#[test]
fn errors_of_every_protocol() {
    let refused = |path: &str, body: Value| {
        let reply = post(shared(), path, &body);
        format!("{} {}\n", reply.status, reply.text())
    };
    let told = [
        refused("/v1/completions", json!({ "prompt": "a", "max_tokens": -2 })),
        refused("/v1/chat/completions", json!({ "messages": [] })),
        refused("/v1/responses", json!({ "input": "a", "tool_choice": { "type": "web_search" } })),
        refused("/v1/messages", json!({ "messages": hello() })),
    ];
    insta::assert_snapshot!(told.concat());
}
