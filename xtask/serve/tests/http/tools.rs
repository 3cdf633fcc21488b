//! Tools and thoughts in answers.
//!
//! Random weights call no tool by themselves, so a grammar has them write what a trained model would.

use serde_json::{Value, json};

use crate::client::post;
use crate::fixture::shared;

const PATH: &str = "/v1/chat/completions";

fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "x": { "type": "integer", "minimum": 1, "maximum": 9 } }, "required": ["x"], "additionalProperties": false });
    json!({ "type": "function", "function": { "name": name, "description": "doubles x", "parameters": parameters } })
}

fn ask(fields: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [tool("f"), tool("g")], "max_tokens": 200, "temperature": 1.2, "seed": 4 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Has the answer be this text.
fn written(text: &str) -> Value {
    json!({ "choice": [text] })
}

/// The message and the reason of a whole answer.
fn whole(fields: Value) -> (Value, Value) {
    let reply = post(shared(), PATH, &ask(fields)).ok();
    (reply["choices"][0]["message"].clone(), reply["choices"][0]["finish_reason"].clone())
}

const CALLS: &str = "<think>two of them</think>\n\nthe calls: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
                     <tool_call>{\"name\": \"g\", \"arguments\": {\"x\": 2}}</tool_call>";

#[test]
fn calls_and_thoughts_are_taken_out_of_the_text() {
    let (message, reason) = whole(json!({ "structured_outputs": written(CALLS) }));
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("the calls: "), &json!("two of them"))
    );
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &reason), (2, &json!("tool_calls")));
    assert_eq!(calls[0]["function"], json!({ "name": "f", "arguments": "{\"x\": 1}" }));
    assert_eq!((&calls[1]["function"]["name"], &calls[1]["index"]), (&json!("g"), &json!(1)));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let (single, _) = whole(json!({ "structured_outputs": written(CALLS), "parallel_tool_calls": false }));
    assert_eq!(single["tool_calls"].as_array().unwrap().len(), 1);
    let (text, reason) = whole(json!({ "structured_outputs": written(CALLS), "tools": null }));
    assert!(text["content"].as_str().unwrap().contains("<tool_call>") && reason == "stop");
}

#[test]
fn streams_send_each_call_once_with_id_and_name() {
    let body = ask(json!({ "structured_outputs": written(CALLS), "stream": true }));
    let mut events = post(shared(), PATH, &body).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text = |key: &str| {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][key].as_str()).collect::<String>()
    };
    assert_eq!(
        (text("content").as_str(), text("reasoning_content").as_str()),
        ("the calls: ", "two of them")
    );
    let calls: Vec<&Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten())
        .collect();
    let told: Vec<_> = calls
        .iter()
        .filter(|call| call["id"].is_string())
        .map(|call| (call["index"].as_u64(), call["function"]["name"].as_str(), &call["type"]))
        .collect();
    let function = json!("function");
    assert_eq!(told, [(Some(0), Some("f"), &function), (Some(1), Some("g"), &function)]);
    for (index, expected) in ["{\"x\": 1}", "{\"x\": 2}"].into_iter().enumerate() {
        let of_call = calls.iter().filter(|call| call["index"] == index);
        let parts: Vec<&str> = of_call.map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
        assert!(parts.len() > 1 && parts.concat() == expected, "{parts:?}");
    }
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn a_forced_call_follows_the_schema() {
    for (choice, names) in [
        (json!("required"), &["f", "g"][..]),
        (json!({ "type": "function", "function": { "name": "g" } }), &["g"]),
    ] {
        for seed in 0..3 {
            let (message, reason) = whole(json!({ "tool_choice": choice, "seed": seed }));
            assert_eq!((&message["content"], &reason), (&Value::Null, &json!("tool_calls")), "{message}");
            let call = &message["tool_calls"][0]["function"];
            assert!(names.contains(&call["name"].as_str().unwrap()));
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!((1..=9).contains(&arguments["x"].as_u64().unwrap()), "{arguments}");
        }
    }
    let error = post(
        shared(),
        PATH,
        &ask(json!({ "tool_choice": { "type": "function", "function": { "name": "h" } } })),
    )
    .refused(400);
    assert_eq!(error["message"], "tool_choice: there is no tool \"h\"");
}

#[test]
fn the_template_sees_the_tools() {
    let ids = |fields| post(shared(), "/v1/chat/completions/render", &ask(fields)).ok()["token_ids"].clone();
    let text = |ids| {
        post(shared(), "/detokenize", &json!({ "tokens": ids })).ok()["prompt"].as_str().unwrap().to_owned()
    };
    assert!(text(ids(json!({}))).contains("tools: [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"doubles x\", \"parameters\": {\"type\": \"object\", \"properties\""));
    assert!(!text(ids(json!({ "tool_choice": "none" }))).contains("tools:"));
}

#[test]
fn messages_have_blocks_for_tools_and_thoughts() {
    let schema = tool("f")["function"]["parameters"].clone();
    let body = |fields: Value| {
        let mut body = json!({
            "model": "tiny", "max_tokens": 100, "temperature": 1.2, "messages": [{ "role": "user", "content": "a" }],
            "tools": [{ "name": "f", "description": "doubles x", "input_schema": schema }], "tool_choice": { "type": "any" },
        });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let reply = post(shared(), "/v1/messages", &body(json!({ "seed": 1 }))).ok();
    let [block] = &reply["content"].as_array().unwrap()[..] else { panic!("{reply}") };
    assert_eq!(
        (&block["type"], &block["name"], &reply["stop_reason"]),
        (&json!("tool_use"), &json!("f"), &json!("tool_use"))
    );
    assert!(block["input"]["x"].is_u64() && block["id"].as_str().unwrap().starts_with("toolu_"));

    let streamed = post(shared(), "/v1/messages", &body(json!({ "seed": 1, "stream": true })));
    let events: Vec<Value> =
        streamed.events().iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(
        (&events[1]["content_block"]["name"], &events[1]["content_block"]["input"]),
        (&json!("f"), &json!({}))
    );
    let input: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    let input: Value = serde_json::from_str(&input).unwrap();
    let end = &events[events.len() - 2];
    assert_eq!((&input, &end["delta"]["stop_reason"]), (&block["input"], &json!("tool_use")));
}

#[test]
fn a_call_that_is_cut_off_is_a_part_of_a_call() {
    let cut = json!({ "tool_choice": "required", "max_tokens": 26, "temperature": 0 });
    let (message, reason) = whole(cut.clone());
    assert_eq!((&message["content"], &reason), (&Value::Null, &json!("length")), "{message}");
    assert!(["f", "g"].contains(&message["tool_calls"][0]["function"]["name"].as_str().unwrap()));
}

/// Arguments may be beyond JSON's values: the conversation goes on.
#[test]
fn calls_with_arguments_that_no_json_value_has_are_answered_and_taken_back() {
    let written = |value: &str| {
        let call = format!(
            "<tool_call>{{\"name\": \"f\", \"arguments\": {{\"x\": 1, \"y\": {value}}}}}</tool_call>"
        );
        json!({ "structured_outputs": written(&call), "max_tokens": 400 })
    };
    let nested = format!("{}1{}", "[".repeat(129), "]".repeat(129));
    for value in ["1e999", "-1e400", "\"\\ud800\"", &nested] {
        let (message, _) = whole(written(value));
        let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        assert!(arguments.contains(value), "{arguments}");
        let back = json!({ "messages": [{ "role": "user", "content": "a" }, message,
            { "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2" }], "max_tokens": 2 });
        post(shared(), PATH, &ask(back)).ok();
        let mut body = written(value);
        let fields = json!({ "messages": [{ "role": "user", "content": "a" }],
            "tools": [{ "name": "f", "input_schema": {} }] });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = post(shared(), "/v1/messages", &body).ok();
        let call = &reply["content"][0];
        assert_eq!((&call["type"], &call["input"]["x"]), (&json!("tool_use"), &json!(1)), "{reply}");
    }
}
