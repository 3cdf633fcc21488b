//! Anthropic's API.

use serde_json::{Value, json};

use crate::client::{Reply, post, post_bytes, receive, send};
use crate::fixture::{Setup, shared, slowed, start, until};

const PATH: &str = "/v1/messages";

fn ask(fields: Value) -> Value {
    let mut body = json!({ "model": "tiny", "max_tokens": 12, "temperature": 0, "messages": [{ "role": "user", "content": "hello" }] });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Names and data of the events of a stream.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    let event = |text: &str| {
        let (name, data) = text.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.text().split_terminator("\n\n").filter(|text| !text.starts_with(':')).map(event).collect()
}

#[test]
fn a_message_is_the_answer_of_the_chat() {
    let chat = json!({ "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": "hello" }], "max_tokens": 12, "temperature": 0 });
    let chat = post(shared(), "/v1/chat/completions", &chat).ok();
    let reply = post(shared(), PATH, &ask(json!({ "system": "be brief" }))).ok();
    assert_eq!(
        reply["content"],
        json!([{ "type": "text", "text": chat["choices"][0]["message"]["content"], "citations": [] }])
    );
    assert_eq!(
        (&reply["type"], &reply["role"], &reply["model"]),
        (&json!("message"), &json!("assistant"), &json!("tiny"))
    );
    let reason = if chat["choices"][0]["finish_reason"] == "length" { "max_tokens" } else { "end_turn" };
    assert_eq!(reply["stop_reason"], reason);
    let usage = &reply["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(
        (input, &usage["output_tokens"]),
        (chat["usage"]["prompt_tokens"].as_u64().unwrap(), &chat["usage"]["completion_tokens"])
    );
}

#[test]
fn a_stream_has_the_events_of_a_message() {
    let whole = post(shared(), PATH, &ask(json!({}))).ok();
    let streamed = events(&post(shared(), PATH, &ask(json!({ "stream": true }))));
    assert!(streamed.iter().all(|(name, data)| data["type"] == **name));
    let names: Vec<&str> = streamed.iter().map(|(name, _)| name.as_str()).collect();
    let [start, block, deltas @ .., stop, delta, end] = &names[..] else { panic!("{names:?}") };
    assert_eq!([*start, *block], ["message_start", "content_block_start"]);
    assert!(deltas.iter().all(|name| *name == "content_block_delta"), "{names:?}");
    assert_eq!([*stop, *delta, *end], ["content_block_stop", "message_delta", "message_stop"]);
    let text: String = streamed.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, whole["content"][0]["text"]);
    let (_, delta) = &streamed[streamed.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[test]
fn stop_sequences_are_told() {
    let free = post(shared(), PATH, &ask(json!({ "max_tokens": 40 }))).ok();
    let text: Vec<char> = free["content"][0]["text"].as_str().unwrap().chars().collect();
    let stop: String = text[4..6].iter().collect();
    let reply = post(shared(), PATH, &ask(json!({ "max_tokens": 40, "stop_sequences": [stop] }))).ok();
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert!(!reply["content"][0]["text"].as_str().unwrap().contains(&stop));
}

/// The prompt that a request makes, counted and as text.
fn count(fields: Value) -> u64 {
    let mut body = ask(fields);
    body.as_object_mut().unwrap().remove("max_tokens");
    post(shared(), "/v1/messages/count_tokens", &body).ok()["input_tokens"].as_u64().unwrap()
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let system = json!([{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }]);
    let messages = json!([
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": [{ "type": "thinking", "thinking": "t", "signature": "s" }, { "type": "tool_use", "id": "c", "name": "f", "input": { "x": 1 } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c", "content": [{ "type": "text", "text": "2" }] }, { "type": "text", "text": "and?" }] },
    ]);
    let fields = json!({ "system": system, "messages": messages, "thinking": { "type": "disabled" } });
    let counted = count(fields.clone());
    let usage = post(shared(), PATH, &ask(fields)).ok()["usage"].clone();
    assert_eq!(
        counted,
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    );
    let text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n[f 1]<|im_end|>\n\
                <|im_start|>tool\n2<|im_end|>\n<|im_start|>user\nand?<|im_end|>\nno thoughts\n<|im_start|>assistant\n";
    let tokens = post(shared(), "/tokenize", &json!({ "prompt": text, "add_special_tokens": false })).ok();
    assert_eq!(counted, tokens["count"]);
}

#[test]
fn headers_that_agents_change_are_left_out() {
    let system = |header: &str| json!({ "system": [{ "type": "text", "text": header }, { "type": "text", "text": "be brief" }] });
    let without = count(json!({ "system": "be brief" }));
    assert_eq!(count(system("x-anthropic-billing-header: cc_version=1; cch=a81f;")), without);
    assert!(count(system("you are a coder")) > without);
}

#[test]
fn a_begun_answer_is_continued() {
    let begun = json!({ "messages": [{ "role": "user", "content": "hello" }, { "role": "assistant", "content": "the an" }] });
    let text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nthe an";
    let tokens = post(shared(), "/tokenize", &json!({ "prompt": text, "add_special_tokens": false })).ok();
    assert_eq!(count(begun), tokens["count"]);
}

#[test]
fn errors_have_the_shape_of_anthropic() {
    let error = |fields: Value| {
        let reply = post(shared(), PATH, &ask(fields));
        let json = reply.json();
        assert_eq!(json["type"], "error");
        format!(
            "{} {} {}",
            reply.status,
            json["error"]["type"].as_str().unwrap(),
            json["error"]["message"].as_str().unwrap()
        )
    };
    let lines = [
        error(json!({ "max_tokens": null })),
        error(json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] })),
        error(
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_use", "id": "a", "name": "f", "input": {} }] }] }),
        ),
        error(
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a", "mood": 1 }] }] }),
        ),
        error(json!({ "max_tokens": 0 })),
        error(json!({ "tool_choice": { "type": "tool" } })),
        error(json!({ "tools": [{ "name": "f" }] })),
    ];
    insta::assert_snapshot!(lines.join("\n"), @r#"
    400 invalid_request_error max_tokens: this field is required
    400 invalid_request_error messages[0].content[0].type: image: models here read text alone
    400 invalid_request_error messages[0].content[0]: only the assistant thinks and uses tools
    400 invalid_request_error messages[0].content[0].mood: this server does not know the field
    400 invalid_request_error max_tokens: 0, must be 1 or more, or -1
    400 invalid_request_error tool_choice.name: belongs to type tool, which needs it
    400 invalid_request_error tools[0].input_schema: this field is required
    "#);
    let reply = receive(send(shared(), &post_bytes(PATH, b"{")));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")));
}

#[test]
fn a_full_server_says_overloaded() {
    let mut bounds = pagoda::HandleOptions::default();
    bounds.max_waiting = 1;
    let served = start(Setup { sequences: 1, bounds, ..Setup::default() });
    let _slowed = slowed(&served);
    let body = ask(json!({ "max_tokens": 900, "ignore_eos": true })).to_string();
    let _running = send(&served, &post_bytes(PATH, body.as_bytes()));
    until("one runs", || served.handle.snapshot().running.len() == 1);
    let _waiting = send(&served, &post_bytes(PATH, body.as_bytes()));
    until("one waits", || served.handle.num_waiting() == 1);
    let reply = post(&served, PATH, &ask(json!({})));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (503, &json!("overloaded_error")));
}

/// The client's own loop of tools then sends all messages.
#[test]
fn conversations_are_not_stored() {
    for thread in [json!({ "type": "create" }), json!({ "type": "continue", "previous_message_id": "msg_1" })]
    {
        let error = post(shared(), PATH, &ask(json!({ "thread": thread }))).refused(400);
        assert_eq!(error["message"], "thread: conversations are not stored here: send all messages");
        assert_eq!(error["details"], json!({ "error_code": "thread_unsupported_request" }));
    }
}

#[test]
fn a_streamed_thought_ends_with_a_signature() {
    let thought = json!({ "choice": ["<think>a</think>b"] });
    let body = ask(json!({ "structured_outputs": thought, "max_tokens": 60, "stream": true }));
    let streamed = events(&post(shared(), PATH, &body));
    let mut deltas: Vec<&str> =
        streamed.iter().filter_map(|(_, data)| data["delta"]["type"].as_str()).collect();
    deltas.dedup();
    assert_eq!(deltas, ["thinking_delta", "signature_delta", "text_delta"]);
}
