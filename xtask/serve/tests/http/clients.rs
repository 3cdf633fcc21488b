//! The clients that people use, from their registries.

use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::shared;
use crate::loops::{call, hello, serve_scripts, with_tool};
use crate::packages::{self, clients, succeed};

#[test]
fn python_clients_read_every_reply() {
    let base = format!("http://{}", shared().address);
    succeed(Command::new(&*packages::PYTHON).arg(clients().join("clients.py")).args([&base, "tiny"]));
}

#[test]
fn clients_for_node_read_every_reply() {
    let base = format!("http://{}", shared().address);
    for program in ["clients.mjs", "ai_sdk.mjs"] {
        let mut node = Command::new("node");
        succeed(node.arg(clients().join(program)).arg(&*packages::NODE).args([&base, "tiny"]));
    }
}

/// A suite of others, which holds replies to the specifications of three APIs. It passes but for images, which no model here
/// sees.
#[test]
fn the_apis_comply() {
    let place = json!({ "location": "San Francisco, CA" });
    let served = serve_scripts(&[with_tool("get_weather", 0, "true", call("get_weather", place)), hello()]);
    let base = format!("http://{}/v1", served.address);
    for (format, tests) in [("openai-chat", 9), ("open-responses", 13), ("anthropic", 9)] {
        let wrong = wrong_replies(&base, format, tests);
        assert!(wrong.is_empty(), "{format}: {wrong:?}");
    }
}

/// Results of the suite for one API that are wrong.
fn wrong_replies(base: &str, format: &str, tests: usize) -> Vec<Value> {
    let mut comply = Command::new(&*packages::PYTHON);
    comply.args(["-m", "llm_comply.cli", "--format", format, "-u", base]);
    comply.args(["-m", "tiny", "-k", "any", "--json", "--timeout", "600"]);
    let output = comply.output().unwrap();
    let mut told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let Value::Array(mut results) = told["results"].take() else { panic!("{output:?}") };
    assert_eq!(results.len(), tests, "{results:?}");
    results.retain(|result| {
        let id = result["id"].as_str().unwrap();
        let asked = !id.ends_with("image-input");
        let passed = match result["status"].as_str() {
            // Models of one company, by their names.
            Some("skipped") => id.ends_with("reasoning-summary") || id.ends_with("thinking-display"),
            status => status == Some("passed") || !asked,
        };
        !passed
    });
    results
}
