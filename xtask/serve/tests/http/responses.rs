//! OpenAI's newer API.

use serde_json::{Value, json};

use crate::client::post;
use crate::fixture::shared;

const PATH: &str = "/v1/responses";

fn ask(fields: Value) -> Value {
    let mut body = json!({ "model": "tiny", "input": "hello", "max_output_tokens": 12, "temperature": 0 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn a_response_is_the_answer_of_the_chat() {
    let chat = json!({
        "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": "hello" }],
        "max_tokens": 12, "temperature": 0,
    });
    let chat = post(shared(), "/v1/chat/completions", &chat).ok();
    let items = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "hello" }] }]);
    let reply = post(shared(), PATH, &ask(json!({ "instructions": "be brief", "input": items }))).ok();
    let message = &reply["output"][0];
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(
        (&reply["object"], &message["role"], &reply["store"]),
        (&json!("response"), &json!("assistant"), &json!(false))
    );
    let cut = chat["choices"][0]["finish_reason"] == "length";
    assert_eq!(reply["status"], if cut { "incomplete" } else { "completed" });
    assert_eq!(reply["incomplete_details"]["reason"] == "max_output_tokens", cut);
    assert_eq!(reply["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(reply["usage"]["total_tokens"], chat["usage"]["total_tokens"]);
}

#[test]
fn a_stream_tells_how_the_response_is_made() {
    let whole = post(shared(), PATH, &ask(json!({}))).ok();
    let events = post(shared(), PATH, &ask(json!({ "stream": true }))).events();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let [created, progress, item, part, .., text, part_done, item_done, end] = &kinds[..] else {
        panic!("{kinds:?}")
    };
    assert_eq!([*created, *progress], ["response.created", "response.in_progress"]);
    assert_eq!([*item, *part], ["response.output_item.added", "response.content_part.added"]);
    assert_eq!(
        [*text, *part_done, *item_done],
        ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    );
    assert!(*end == "response.completed" || *end == "response.incomplete", "{end}");
    assert!(events.iter().enumerate().all(|(at, event)| event["sequence_number"] == at));
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, whole["output"][0]["content"][0]["text"]);
    let mut last = events.last().unwrap()["response"].clone();
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    last["usage"]["input_tokens_details"] = whole["usage"]["input_tokens_details"].clone();
    assert_eq!(last["usage"], whole["usage"]);
}

#[test]
fn responses_can_have_a_form() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "format": { "type": "json_schema", "name": "x", "schema": schema } });
    let reply = post(shared(), PATH, &ask(json!({ "text": format, "max_output_tokens": 60 }))).ok();
    let value: Value =
        serde_json::from_str(reply["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(value["a"].is_boolean(), "{value}");
}

#[test]
fn what_needs_storage_is_refused() {
    let param =
        |fields: Value| post(shared(), PATH, &ask(fields)).refused(400)["param"].as_str().unwrap().to_owned();
    assert_eq!(param(json!({ "previous_response_id": "resp_1" })), "previous_response_id");
    assert_eq!(param(json!({ "background": true })), "background");
    assert_eq!(param(json!({ "include": ["message.output_text.logprobs"] })), "include[0]");
    assert_eq!(param(json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] })), "input[0].id");
    assert_eq!(param(json!({ "input": [] })), "input");
    assert_eq!(param(json!({ "tool_choice": { "type": "web_search" } })), "tool_choice.type");
    assert_eq!(param(json!({ "tool_choice": "required" })), "tool_choice");
}

fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "x": { "type": "integer", "minimum": 1, "maximum": 9 } }, "required": ["x"], "additionalProperties": false });
    json!({ "type": "function", "name": name, "description": "doubles x", "parameters": parameters, "strict": true })
}

fn ask_for_calls(fields: Value) -> Value {
    let mut body = ask(json!({ "tools": [tool("f"), tool("g")], "max_output_tokens": 200 }));
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn a_forced_call_is_an_item() {
    let named = json!({ "type": "function", "name": "g" });
    let reply = post(shared(), PATH, &ask_for_calls(json!({ "tool_choice": named }))).ok();
    let output = reply["output"].as_array().unwrap();
    assert_eq!((output.len(), &reply["status"]), (1, &json!("completed")), "{reply}");
    let call = &output[0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("g")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!((1..=9).contains(&arguments["x"].as_i64().unwrap()), "{arguments}");
    assert_eq!((&reply["tool_choice"], &reply["tools"][1]), (&named, &tool("g")));
    // The result of the call goes to the template with the call.
    let input = json!([{ "role": "user", "content": "hello" }, call,
        { "type": "function_call_output", "call_id": call["call_id"], "output": "4" }]);
    let second = post(shared(), PATH, &ask_for_calls(json!({ "input": input, "max_output_tokens": 2 }))).ok();
    assert!(second["usage"]["input_tokens"].as_u64() > reply["usage"]["input_tokens"].as_u64());
}

#[test]
fn a_stream_tells_how_a_call_is_made() {
    let body = ask_for_calls(json!({ "tool_choice": "required", "stream": true }));
    let events = post(shared(), PATH, &body).events();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    assert!(events.iter().enumerate().all(|(at, event)| event["sequence_number"] == at));
    let [_, _, added, deltas @ .., done, item, completed] = &events[..] else { unreachable!() };
    assert_eq!((&added["item"]["arguments"], &added["item"]["status"]), (&json!(""), &json!("in_progress")));
    // The arguments come as the model writes them.
    assert!(deltas.len() > 1 && deltas.iter().all(|delta| delta["item_id"] == added["item"]["id"]));
    let arguments: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(done["arguments"], arguments);
    assert_eq!(item["item"], completed["response"]["output"][0]);
    assert_eq!(item["item"]["call_id"], added["item"]["call_id"]);
}
