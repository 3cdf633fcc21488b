//! Answers in a form, and tools that they call.

#[path = "../../../serve/tests/http/tiny.rs"]
mod tiny;

use pagoda::tools::{ParsedAnswer, Tool, ToolCall, ToolMode, Tools, ToolsError};
use pagoda::{Chat, Constraint, ConstraintError, EngineHandle, EngineOptions, Error, KvDtype, Sampling};
use serde_json::{Value, json};

use crate::fixture;

/// Two sequences of up to 512 tokens of a tiny Llama whose template knows tools.
fn open() -> EngineHandle {
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path(), &fixture("tiny-llama"));
    let options = EngineOptions::new().kv_dtype(KvDtype::F32).max_context(Some(512)).chunk(32);
    pagoda::open(folder.path()).options(options).sequences(2).spawn().unwrap()
}

fn ask(text: &str) -> Chat {
    Chat::user(text).max_tokens(120).sampling(Sampling::default().temperature(1.0).seed(3))
}

fn weather() -> Tool {
    let parameters = json!({
        "type": "object",
        "properties": { "x": { "enum": ["rain", "snow"] } },
        "required": ["x"],
        "additionalProperties": false,
    });
    Tool { name: "weather".into(), description: None, parameters: Some(parameters) }
}

#[test]
fn answers_have_the_form_that_is_requested() {
    let engine = open();
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let answer = engine.ask(ask("hello").form(Constraint::Schema(schema))).wait().unwrap();
    let value: Value = serde_json::from_str(&answer).unwrap();
    assert!(value["a"].is_boolean(), "{answer}");
    let choice = Constraint::Choice(vec!["the one".into(), "the other".into()]);
    let answer = engine.ask(ask("hello").form(choice)).wait().unwrap();
    assert!(["the one", "the other"].contains(&answer.as_str()), "{answer}");
    let answer = engine.ask(ask("hello").form(Constraint::Regex("[0-9]{3}".into()))).wait().unwrap();
    assert!(answer.len() == 3 && answer.bytes().all(|byte| byte.is_ascii_digit()), "{answer}");

    let refused = |form| match engine.ask(ask("hello").form(form)).wait() {
        Err(Error::Constraint(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(Constraint::Regex("(".into())), ConstraintError::Refused { .. }));
    let texts = ConstraintError::Texts { texts: 2000, max: 1024 };
    assert_eq!(refused(Constraint::Choice(vec!["a".into(); 2000])), texts);
    let long = refused(Constraint::Lark("a".repeat(300 << 10)));
    insta::assert_snapshot!(long, @"a grammar of 307200 bytes, at most 262144");
}

#[test]
fn forms_leave_room_for_calls_and_for_the_thought_of_the_prompt() {
    let engine = open();
    let (model, tokenizer) = (engine.model(), engine.model().tokenizer().unwrap());
    let fits = |form: &Constraint, text: &str| {
        let (mut mask, mut allowed) = (model.mask(form).unwrap(), vec![0; 4]);
        let mut is_next = |token: u32| {
            allowed.fill(0);
            mask.allow(&mut allowed);
            let is_allowed = allowed[token as usize / 32] >> (token % 32) & 1 == 1;
            mask.accept(token);
            is_allowed
        };
        let is_begun = tokenizer.encode(text, false).unwrap().into_iter().all(&mut is_next);
        is_begun && (is_next(tokenizer.id("<|im_end|>").unwrap()) || mask.is_complete())
    };
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let form = Tools::new(vec![weather()], ToolMode::Auto).unwrap().form(Some(Constraint::Schema(schema)));
    let (object, call) =
        ("{\"a\": true}", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"x\": [1]}}\n</tool_call>");
    let (form, twice) = (form.unwrap(), format!("{call}\n{call}"));
    let thought = |rest: &str| format!("<a thought>\n</think>\n\n{rest}");
    let after = Constraint::AfterThought(Box::new(form.clone()));
    for text in [object, call, &twice] {
        assert!(fits(&form, text) && fits(&after, &thought(text)), "{text}");
        assert!(!fits(&form, &thought(text)) && !fits(&after, text), "{text}");
    }
    let unknown = call.replace("weather", "time");
    for text in
        ["", "hello", "{}", &unknown, &format!("{object}{call}"), &format!("{call}{object}"), &call[..30]]
    {
        assert!(!fits(&form, text) && !fits(&after, &thought(text)), "{text}");
    }
}

#[test]
fn an_answer_calls_the_tool_that_it_must() {
    let engine = open();
    let tools = Tools::new(vec![weather()], ToolMode::Required).unwrap();
    let parsed = engine.ask(ask("hello").tools(tools.clone())).wait_parsed().unwrap();
    let [call] = &parsed.calls[..] else { panic!("{parsed:?}") };
    assert_eq!((call.name.as_str(), parsed.text.as_str()), ("weather", ""));
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert!(arguments == json!({ "x": "rain" }) || arguments == json!({ "x": "snow" }), "{arguments}");
    let awaited = pollster::block_on(engine.ask(ask("hello").tools(tools.clone())).parsed()).unwrap();
    assert_eq!(awaited, parsed);
    // The same answer in pieces.
    let answer = engine.ask(ask("hello").tools(tools));
    let mut parser = answer.parser();
    answer.stream().blocking().for_each(|piece| parser.push(&piece.unwrap()));
    parser.finish();
    assert_eq!(ParsedAnswer::from(parser.take()), parsed);

    // The conversation goes on with the result of the call.
    let next = ask("hello").called([(call.clone(), "wet")]);
    let ids = engine.model().conversation_ids(next.conversation.clone()).unwrap();
    let text = engine.model().tokenizer().unwrap().decode(&ids, false).unwrap();
    let value = arguments["x"].as_str().unwrap();
    let middle = format!("[weather {value}]<|im_end|>\n<|im_start|>tool\nwet<|im_end|>");
    assert!(text.contains(&middle), "{text}");
    assert!(!engine.ask(next.max_tokens(4)).wait_parsed().unwrap().text.is_empty());
}

#[test]
fn a_model_may_leave_tools_alone() {
    let engine = open();
    let none = Tools::new(vec![weather()], ToolMode::None).unwrap();
    let with = |tools: Tools| {
        let prompt = ask("hello").tools(tools);
        engine.ask(prompt).wait().unwrap()
    };
    // The model does not see tools that it may not call.
    assert_eq!(with(none), with(Tools::default()));
    assert_eq!(Tools::new(Vec::new(), ToolMode::Required), Err(ToolsError::Empty));
    let unknown = Tools::new(vec![weather()], ToolMode::Named("time".into())).unwrap_err();
    insta::assert_snapshot!(unknown, @r#"there is no tool "time""#);
    let call = ToolCall { name: "weather".into(), arguments: "{\"x\": 1e999".into() };
    let read = pagoda::tools::readable(&call.arguments);
    assert!(read.is_empty(), "{read:?}");
}
