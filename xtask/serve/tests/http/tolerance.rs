//! Calls as real clients send them: fields that change nothing, other names of the model, and values of other languages.

use serde_json::{Value, json};

use crate::client::{Reply, get, post};
use crate::fixture::{MODEL, Setup, shared, start};

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello" }])
}

/// The warnings of a reply, which its header lists, too.
fn warnings(reply: &Reply) -> Vec<String> {
    let json = reply.json();
    assert_eq!(reply.status, 200, "{json}");
    let listed = json["pagoda"]["warnings"].as_array().into_iter().flatten();
    let fields: Vec<String> =
        listed.map(|line| line.as_str().unwrap().split_once(": ").unwrap().0.to_owned()).collect();
    assert_eq!(reply.header("x-pagoda-ignored").unwrap_or_default(), fields.join(", "));
    fields
}

#[test]
fn fields_that_change_nothing_are_named_in_the_reply() {
    let chat = json!({
        "model": "gpt-4o", "max_tokens": 3.0, "top_k": -1, "store": true, "verbosity": "low", "prediction": { "type": "content", "content": "x" },
        "service_tier": "flex", "prompt_cache_retention": "24h", "moderation": null, "odd": null, "provider": { "order": ["x"] },
        "keep_alive": "5m", "cache_prompt": true, "id_slot": 0, "timings_per_token": true, "stream_options": { "include_usage": true },
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "hello", "cache_control": { "type": "ephemeral" } }] },
            { "role": "assistant", "content": "a", "provider_specific_fields": { "x": 1 }, "audio": null, "annotations": [] },
            { "role": "user", "content": [{ "type": "text", "text": "on", "cache_control": { "type": "ephemeral" } }] },
        ],
        "tools": [{ "type": "function", "function": { "name": "f", "strict": true }, "cache_control": { "type": "ephemeral" } }],
    });
    insta::assert_snapshot!(warnings(&post(shared(), "/v1/chat/completions", &chat)).join("\n"), @"
    store
    verbosity
    prediction
    service_tier
    prompt_cache_retention
    provider
    keep_alive
    cache_prompt
    id_slot
    timings_per_token
    messages[0].content[0].cache_control
    messages[1].provider_specific_fields
    stream_options
    tools[0].function.strict
    ");

    let responses = json!({
        "input": "hello", "max_output_tokens": 3, "store": true, "truncation": "auto", "include": ["reasoning.encrypted_content"],
        "text": { "verbosity": "low" }, "client_metadata": { "x": "y" }, "context_management": [{ "type": "compaction" }],
        "tools": [{ "type": "web_search" }, { "type": "namespace", "name": "n", "tools": [] }, { "type": "function", "name": "f", "strict": false }],
    });
    let reply = post(shared(), "/v1/responses", &responses);
    insta::assert_snapshot!(warnings(&reply).join("\n"), @"
    store
    context_management
    tools[0] (web_search)
    tools[1] (namespace)
    text.verbosity
    ");

    let messages = json!({
        "max_tokens": 3, "messages": hello(), "context_management": { "edits": [{}] }, "betas": ["x"], "container": null, "inference_geo": null,
        "mcp_servers": [], "speed": "fast", "thread": null, "thinking": { "type": "adaptive", "display": "omitted" },
        "output_config": { "effort": "high" }, "cache_control": { "type": "ephemeral" }, "metadata": { "user_id": "u" },
        "tools": [
            { "name": "f", "input_schema": {}, "eager_input_streaming": true, "defer_loading": true, "input_examples": [{}], "strict": true },
            { "type": "web_search_20250305", "name": "web_search", "max_uses": 3 },
        ],
    });
    insta::assert_snapshot!(warnings(&post(shared(), "/v1/messages", &messages)).join("\n"), @"
    context_management
    betas
    speed
    thinking.display
    cache_control
    tools[0].eager_input_streaming
    tools[0].defer_loading
    tools[0].input_examples
    tools[0].strict
    tools[1] (web_search_20250305)
    ");

    let plain =
        json!({ "messages": hello(), "max_tokens": 3, "user": "u", "store": false, "service_tier": "auto" });
    assert_eq!(warnings(&post(shared(), "/v1/chat/completions", &plain)), Vec::<String>::new());
}

#[test]
fn strict_servers_refuse_what_changes_nothing_and_other_models() {
    let mut setup = Setup::default();
    setup.options = setup.options.strict(true).strict_model(true).model_aliases(vec!["small".to_owned()]);
    let served = start(setup);
    let ask = |fields: Value| {
        let mut body = json!({ "messages": hello(), "max_tokens": 2, "model": "tiny" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(&served, "/v1/chat/completions", &body)
    };
    assert_eq!(ask(json!({ "store": true })).refused(400)["code"], "unknown_field");
    assert_eq!(ask(json!({ "store": false, "user": "u", "odd": null })).status, 200);
    assert_eq!(ask(json!({ "model": "gpt-4o" })).refused(404)["code"], "model_not_found");
    assert_eq!(ask(json!({ "model": "small" })).ok()["model"], "tiny");
    let names: Vec<Value> = get(&served, "/v1/models").ok()["data"].as_array().unwrap().clone();
    let names: Vec<&str> = names.iter().map(|card| card["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiny", "small"]);
    assert_eq!(get(&served, "/v1/models/small").ok()["id"], "small");
    get(&served, "/v1/models/gpt-4o").refused(404);
}

#[test]
fn thoughts_are_switched_in_the_words_of_every_client() {
    let prompt = |fields: Value| {
        let mut body = json!({ "messages": hello() });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(shared(), "/v1/chat/completions/render", &body).ok()["token_ids"].clone()
    };
    let (on, off) = (
        prompt(json!({ "chat_template_kwargs": { "enable_thinking": true } })),
        prompt(json!({ "chat_template_kwargs": { "enable_thinking": false } })),
    );
    assert_ne!(on, off);
    for fields in [
        json!({ "enable_thinking": true }),
        json!({ "think": true }),
        json!({ "think": "high" }),
        json!({ "thinking": { "type": "enabled" } }),
        json!({ "reasoning_effort": "high" }),
        json!({ "reasoning": { "effort": "low" } }),
        json!({ "reasoning": { "enabled": true } }),
    ] {
        assert_eq!(prompt(fields.clone()), on, "{fields}");
    }
    for fields in [
        json!({ "enable_thinking": false }),
        json!({ "think": false }),
        json!({ "thinking": { "type": "disabled" } }),
        json!({ "reasoning_effort": "none" }),
        json!({ "reasoning": { "effort": "none" } }),
    ] {
        assert_eq!(prompt(fields.clone()), off, "{fields}");
    }
}

/// JavaScript leaves half a character where it cuts a text in the middle of an emoji.
#[test]
fn half_a_character_is_read_as_one_that_is_unknown() {
    let count = |prompt: &str| {
        let body = format!(r#"{{"prompt": "{prompt}", "add_special_tokens": false}}"#);
        let bytes = crate::client::post_bytes("/tokenize", body.as_bytes());
        crate::client::receive(crate::client::send(shared(), &bytes)).ok()["tokens"].clone()
    };
    assert_eq!(count(r"a\ud83d"), count("a\u{fffd}"));
    assert_eq!(count(r"a\ud83d\ude00"), count("a\u{1f600}"));
}

#[test]
fn lengths_may_be_whole_numbers_of_any_form_and_minus_one() {
    let ask = |max: Value| json!({ "messages": hello(), "max_tokens": max, "temperature": 0 });
    let path = "/v1/chat/completions";
    assert_eq!(post(shared(), path, &ask(json!(5.0))).ok()["usage"]["completion_tokens"], 5);
    let most = post(
        shared(),
        path,
        &json!({ "messages": hello(), "max_tokens": -1, "stop_token_ids": (0..128).collect::<Vec<_>>() }),
    );
    assert_eq!(most.ok()["choices"][0]["finish_reason"], "stop");
    assert_eq!(post(shared(), path, &ask(json!(5.5))).refused(400)["param"], "max_tokens");
    assert_eq!(post(shared(), path, &ask(json!(-2))).refused(400)["param"], "max_tokens");
    let scored = json!({ "prompt": "hello", "max_tokens": 0, "echo": true, "logprobs": 0 });
    let scored = post(shared(), "/v1/completions", &scored).ok();
    assert_eq!(
        (&scored["choices"][0]["text"], &scored["usage"]["completion_tokens"]),
        (&json!("hello"), &json!(0))
    );
}

#[test]
fn older_names_of_structured_outputs_hold() {
    let ask = |fields: Value| {
        let mut body = json!({ "messages": hello(), "max_tokens": 40 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(shared(), "/v1/chat/completions", &body).ok()["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(ask(json!({ "guided_choice": ["yes!"] })), "yes!");
    assert_eq!(ask(json!({ "guided_regex": "a{4}" })), "aaaa");
    assert_eq!(ask(json!({ "guided_json": { "const": 7 } })), "7");
    assert_eq!(ask(json!({ "response_format": { "type": "json_object", "schema": { "const": 7 } } })), "7");
    let form = json!({ "format": { "type": "json_schema", "schema": { "const": 7 } } });
    let messages = json!({ "messages": hello(), "max_tokens": 9, "output_config": form });
    assert_eq!(post(shared(), "/v1/messages", &messages).ok()["content"][0]["text"], "7");
}

#[test]
fn sampling_that_is_not_stated_is_what_the_model_recommends() {
    let reply = |fields: Value| {
        let mut body = json!({ "input": "hello", "max_output_tokens": 2 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = post(shared(), "/v1/responses", &body).ok();
        (reply["temperature"].as_f64().unwrap(), reply["top_p"].as_f64().unwrap())
    };
    let recommended = MODEL.default_sampling();
    let exact = |value: f32| value.to_string().parse::<f64>().unwrap();
    let expected = (exact(recommended.temperature), exact(recommended.top_p));
    assert_eq!(reply(json!({})), expected);
    assert_eq!(reply(json!({ "temperature": 0.5, "top_p": null })), (0.5, expected.1));
}

/// Claude Code sends the effort of a turn with a message.
#[test]
fn the_effort_of_a_turn_is_read() {
    let turn =
        |effort: &str| json!({ "role": "user", "content": "hello", "output_config": { "effort": effort } });
    let body = json!({ "max_tokens": 3, "messages": [turn("low"), turn("high")], "output_config": { "effort": "medium" } });
    assert!(warnings(&post(shared(), "/v1/messages", &body)).is_empty());
    let wrong = json!({ "max_tokens": 3, "messages": [{ "role": "user", "content": "hello", "output_config": { "effort": 3 } }] });
    assert_eq!(post(shared(), "/v1/messages", &wrong).status, 400);
}
