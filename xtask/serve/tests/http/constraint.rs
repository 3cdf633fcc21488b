//! Outputs that must have a form.

use pagoda::Constraint;
use serde_json::{Value, json};

use crate::client::post;
use crate::fixture::{MODEL, shared};

const PATH: &str = "/v1/chat/completions";

/// The text of an answer in a form, drawn hot from random weights, so that nothing but the form holds it.
fn answer(seed: u32, fields: &Value) -> String {
    let mut body = json!({ "messages": [{ "role": "user", "content": "a" }], "temperature": 1.5, "seed": seed, "max_tokens": 300 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let reply = post(shared(), PATH, &body).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{reply}");
    reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn schemas_hold() {
    let schema = json!({
        "type": "object",
        "properties": {
            "mood": { "enum": ["glad", "sad"] },
            "count": { "type": "integer", "minimum": 10, "maximum": 99 },
        },
        "required": ["mood", "count"],
        "additionalProperties": false,
    });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    for seed in 0..4 {
        for fields in
            [json!({ "response_format": format }), json!({ "structured_outputs": { "json": schema } })]
        {
            let value: Value = serde_json::from_str(&answer(seed, &fields)).unwrap();
            assert!(value["mood"] == "glad" || value["mood"] == "sad", "{value}");
            assert!((10..=99).contains(&value["count"].as_u64().unwrap()), "{value}");
            assert_eq!(value.as_object().unwrap().len(), 2);
        }
    }
}

#[test]
fn choices_expressions_and_grammars_hold() {
    let structured = |form: Value| answer(7, &json!({ "structured_outputs": form }));
    let choice = structured(json!({ "choice": ["the lion", "a \"hare\""] }));
    assert!(["the lion", "a \"hare\""].contains(&choice.as_str()), "{choice}");
    let date = structured(json!({ "regex": "[0-9]{4}-[0-9]{2}" }));
    let digits = date.chars().filter(char::is_ascii_digit).count();
    assert_eq!((date.len(), digits, &date[4..5]), (7, 6, "-"), "{date}");
    let sum = structured(json!({ "grammar": "start: NUM \"+\" NUM\nNUM: /[1-9]/" }));
    assert!(sum.len() == 3 && sum.as_bytes()[1] == b'+', "{sum}");
}

#[test]
fn samples_and_streams_keep_the_form() {
    let body = json!({
        "prompt": ["a", "b"], "n": 3, "temperature": 1.5, "seed": 1, "max_tokens": 20, "stream": true,
        "structured_outputs": { "regex": "(ab|ba){3}" },
    });
    let mut events = post(shared(), "/v1/completions", &body).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut texts = vec![String::new(); 6];
    for event in events {
        let chunk: Value = serde_json::from_str(&event).unwrap();
        let choice = &chunk["choices"][0];
        texts[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()]
            .push_str(choice["text"].as_str().unwrap());
    }
    for text in &texts {
        let pairs: Vec<&str> =
            text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
        assert!(pairs.len() == 3 && pairs.iter().all(|pair| ["ab", "ba"].contains(pair)), "{texts:?}");
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "samples draw with seeds of their own: {texts:?}");
}

#[test]
fn forms_that_are_none_are_refused() {
    let refused = |fields: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let error = post(shared(), PATH, &body).refused(400);
        error["param"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused(json!({ "structured_outputs": { "regex": "(" } })), "structured_outputs");
    assert_eq!(
        refused(json!({ "structured_outputs": { "regex": "a", "choice": ["a"] } })),
        "structured_outputs"
    );
    assert_eq!(refused(json!({ "structured_outputs": { "json": "{" } })), "structured_outputs.json");
    assert_eq!(
        refused(
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "wool" } } } })
        ),
        "response_format"
    );
    assert_eq!(refused(json!({ "response_format": { "type": "xml" } })), "response_format.type");
    let both =
        json!({ "response_format": { "type": "json_object" }, "structured_outputs": { "regex": "a" } });
    assert_eq!(refused(both), "structured_outputs");
}

#[test]
fn constraints_beyond_the_compiler_are_refused_at_once() {
    let refused = |fields: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let error = post(shared(), PATH, &body).refused(400);
        let message = error["message"].as_str().unwrap().to_owned();
        assert!(message.len() < 300 && !message.contains("backtrace"), "{message}");
        message
    };
    let choice = |count: usize| {
        let texts: Vec<String> = (0..count).map(|text| format!("{text} lions")).collect();
        json!({ "structured_outputs": { "choice": texts } })
    };
    let messages = [
        refused(choice(100_000)),
        refused(choice(1_025)),
        refused(json!({ "structured_outputs": { "regex": "a".repeat(300_000) } })),
        refused(json!({ "structured_outputs": { "json": { "enum": ["a".repeat(300_000)] } } })),
    ];
    insta::assert_snapshot!(messages.join("\n"), @"
    structured_outputs: a choice of 100000 texts, at most 1024
    structured_outputs: a choice of 1025 texts, at most 1024
    structured_outputs: a regular expression of 300000 bytes, at most 262144
    structured_outputs: a schema of 300013 bytes, at most 262144
    ");
    assert!(answer(3, &choice(1_024)).ends_with(" lions"));
}

/// Masks are computed between steps, where all streams wait for them: 200 of a form with 1,000 places in less than a millisecond
/// of the processor's time each, whatever else the machine does.
#[cfg(unix)]
#[test]
fn masks_stall_nobody() {
    use rustix::time::{ClockId, clock_gettime};

    let schema = json!({ "type": "string", "pattern": "^[a-z ]{1000}$" });
    let mut mask = MODEL.mask(&Constraint::Schema(schema)).unwrap();
    let mut allowed = vec![0; MODEL.config.vocab_size.div_ceil(32) as usize];
    let begun = clock_gettime(ClockId::ThreadCPUTime);
    for _ in 0..200 {
        allowed.fill(0);
        mask.allow(&mut allowed);
        let word = allowed.iter().position(|word| *word != 0).expect("a token is allowed");
        mask.accept(32 * u32::try_from(word).unwrap() + allowed[word].trailing_zeros());
    }
    let spent = clock_gettime(ClockId::ThreadCPUTime) - begun;
    let micros = spent.tv_sec * 1_000_000 + spent.tv_nsec / 1_000;
    assert!(!mask.is_complete() && micros < 200_000, "{micros} us of the processor for 200 masks");
}
