//! Loops of clients' agents: a scripted model calls a tool, the client runs it and sends its result, and the model goes on.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use pagoda::{Demand, Engine, EngineHandle, HandleOptions};
use serde_json::{Value, json};
use serve::Options;
use tempfile::TempDir;

use crate::client::post;
use crate::fixture::{Served, engine_options, listen};
use crate::packages::{self, clients, succeed};
use crate::scripted::{Script, scripted_model};

/// The content of a file that no prompt has: only an answer that knows it comes after a tool that read the file.
pub(crate) const SECRET: &str = "4711 lions\n";

/// An expression that says whether the first result of a tool has the secret.
pub(crate) const READ: &str = "'4711 lions' in results[0]";

/// An answer to conversations with a tool of this name, after as many results, if the expression `and` is true.
pub(crate) fn with_tool(name: &str, results: usize, and: &str, answer: impl Into<String>) -> Script {
    let when = format!("{name:?} in names and results | length == {results} and ({and})");
    Script { when, answer: answer.into() }
}

/// The answer to everything else.
pub(crate) fn hello() -> Script {
    Script { when: "true".into(), answer: "Hello, no lions.".into() }
}

/// A call of a tool.
pub(crate) fn call(name: &str, arguments: Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>\n", json!({ "name": name, "arguments": arguments }))
}

/// A call of a tool, of an answer that must be one.
fn bare_call(name: &str, arguments: Value) -> String {
    json!({ "name": name, "arguments": arguments }).to_string()
}

/// Answers to conversations with a tool `look`: as text, as a form, and as calls if the answer must be one.
fn look_scripts() -> Vec<Script> {
    let look = |file: &str| call("look", json!({ "file": file }));
    let both = look("secret.txt") + &look("empty.txt");
    // Names that clients give to the form of an answer as a tool.
    let forms = ["final_result", "json", "Lions"];
    let must = forms.map(|name| format!("{name:?} in names")).join(" or ");
    let form = "'as a form' in said";
    let lions = json!({ "lions": 4711 });
    let looking = [
        with_tool("look", 0, &must, bare_call("look", json!({ "file": "secret.txt" }))),
        with_tool("look", 0, form, both.clone()),
        with_tool("look", 0, "'and think' in said", format!("<think>Two files.</think>{both}")),
        with_tool("look", 0, "true", format!("<think>Two files.</think>\n\nI look. {both}")),
        with_tool("look", 2, &format!("{READ} and {form}"), lions.to_string()),
        with_tool("look", 2, READ, "The secret was read: é😀."),
        hello(),
    ];
    let told = forms.map(|name| with_tool(name, 1, READ, bare_call(name, lions.clone())));
    told.into_iter().chain(looking).collect()
}

/// A server whose model answers by scripts.
pub(crate) fn serve_scripts(scripts: &[Script]) -> Served {
    const CONTEXT: u32 = 8192;
    let model = Arc::new(scripted_model(scripts, CONTEXT));
    let demand = Demand::new(4, 4 * u64::from(CONTEXT)).longest(CONTEXT.into());
    let engine = Engine::open(Arc::clone(&model), engine_options(4).demand(demand)).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    listen(handle, Options::new(model, "tiny"))
}

/// A server whose model looks into files, and the folder that has them.
static LOOKING: LazyLock<(Served, TempDir)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret.txt"), SECRET).unwrap();
    fs::write(folder.path().join("empty.txt"), "").unwrap();
    (serve_scripts(&look_scripts()), folder)
});

/// Runs a part of the loops in Python.
pub(crate) fn run_loops(part: &str, python: &Path) {
    let (served, folder) = &*LOOKING;
    let mut command = Command::new(python);
    command.arg(clients().join("loops.py")).args([part, &format!("http://{}", served.address), "tiny"]);
    succeed(command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").arg(folder.path()));
}

#[test]
fn an_instance_that_looks_like_a_call_is_text_and_is_streamed() {
    let instance = bare_call("look", json!({ "file": "the first of many" }));
    let served = serve_scripts(&[with_tool("look", 0, "true", instance.as_str())]);
    let schema = json!({ "type": "object" });
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "stream": true,
        "tools": [{ "type": "function", "function": { "name": "look" } }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } });
    let mut events = post(&served, "/v1/chat/completions", &body).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks = events.iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
    let texts: Vec<String> = chunks
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .filter(|text| !text.is_empty())
        .collect();
    assert!(texts.len() > 3 && texts.concat() == instance, "{texts:?}");
}

#[test]
fn clients_in_python_go_on_after_their_tools() {
    run_loops("openai", &packages::PYTHON);
    run_loops("anthropic", &packages::PYTHON);
}

#[test]
fn clients_for_node_go_on_after_their_tools() {
    let (served, folder) = &*LOOKING;
    let mut node = Command::new("node");
    node.arg(clients().join("loops.mjs")).arg(&*packages::NODE).arg(format!("http://{}", served.address));
    succeed(node.arg("tiny").arg(folder.path()));
}
