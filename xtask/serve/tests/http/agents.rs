//! Coding agents and frameworks as people install them, with what they send by default. Their packages are large, so
//! `PAGODA_LONG_TESTS=1` runs these tests.
//!
//! The network of the agents is a proxy that refuses everything but this machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pagoda::{Demand, Engine, EngineHandle, EngineOptions, HandleOptions, KvDtype, Model, Registry, Sparse};
use serde_json::Value;
use serve::Options;
use tempfile::TempDir;

use crate::fixture::{Served, ending_model, listen, shared};
use crate::packages::{clients, npm, pip, succeed};

/// Tokens of the prompt of an agent: its tools and instructions, of which a byte or two is a token.
const CONTEXT: u32 = 1 << 17;

fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some_and(|value| value == "1")
}

/// Serves a model that ends its answers by itself, with room for the prompt of an agent.
fn serve_agents() -> Served {
    let model: Arc<Model> = Arc::new(ending_model(CONTEXT));
    // A policy of prefill, so that time grows with the prompt and not with its square.
    let sparse = Sparse::new(&Registry::builtin(), &"streaming".parse().unwrap()).unwrap();
    let demand = Demand::new(2, u64::from(CONTEXT)).longest(u64::from(CONTEXT));
    let options = EngineOptions::new().kv_dtype(KvDtype::F16).sparse(sparse).demand(demand);
    let engine = Engine::open(Arc::clone(&model), options).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    listen(handle, Options::new(model, "tiny").seed(1))
}

/// A command that has a home of its own, and at most 5 minutes.
fn agent(program: &Path, home: &TempDir) -> Command {
    let mut command = Command::new("timeout");
    command.arg("300").arg(program).current_dir(home.path()).env("HOME", home.path());
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        command.env(proxy, "http://127.0.0.1:1");
    }
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    command
}

fn lines(out: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(out).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn coding_agents_read_answers() {
    if !is_long() {
        return;
    }
    let served = serve_agents();
    let base = format!("http://{}", served.address);
    let programs = npm("agents", "agents/package.json", &[]).join("node_modules").join(".bin");

    let home = tempfile::tempdir().unwrap();
    let mut claude = agent(&programs.join("claude"), &home);
    claude.args(["-p", "say hello", "--output-format", "json"]);
    let answered = succeed(claude.env("ANTHROPIC_BASE_URL", &base).env("ANTHROPIC_API_KEY", "any"));
    let told: Value = serde_json::from_slice(&answered.stdout).unwrap();
    assert_eq!((&told["is_error"], &told["subtype"]), (&false.into(), &"success".into()), "{told}");
    assert!(told["result"].is_string() && told["usage"]["output_tokens"].as_u64() > Some(0), "{told}");

    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model = \"tiny\"\nmodel_provider = \"pagoda\"\n[model_providers.pagoda]\nname = \"pagoda\"\n\
         base_url = \"{base}/v1\"\nwire_api = \"responses\"\n"
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    let mut codex = agent(&programs.join("codex"), &home);
    codex.args(["exec", "--skip-git-repo-check", "--json", "say hello"]).env("CODEX_HOME", home.path());
    let events = lines(&succeed(&mut codex).stdout);
    let of_type = |name: &str| events.iter().find(|event| event["type"] == name);
    let usage = &of_type("turn.completed").unwrap_or_else(|| panic!("{events:?}"))["usage"];
    assert!(usage["input_tokens"].as_u64() > Some(1000) && usage["output_tokens"].is_u64(), "{usage}");

    let home = tempfile::tempdir().unwrap();
    let mut aider = agent(&pip("aider", "agents/requirements.txt"), &home);
    aider.args([
        "-m",
        "aider",
        "--message",
        "say hello",
        "--model",
        "openai/tiny",
        "--openai-api-key",
        "any",
    ]);
    aider.arg("--openai-api-base").arg(format!("{base}/v1")).args(["--yes-always", "--no-git"]);
    let told = succeed(aider.args(["--no-show-model-warnings", "--analytics-disable", "--no-check-update"]));
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(" sent, ") && told.contains(" received."), "{told}");
}

#[test]
fn frameworks_read_every_reply() {
    if !is_long() {
        return;
    }
    let base = format!("http://{}", shared().address);
    let python = pip("frameworks", "frameworks.txt");
    for part in ["litellm", "langchain", "pydantic_ai"] {
        let mut command = Command::new(&python);
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        succeed(command.arg(clients().join("frameworks.py")).args([part, &base, "tiny"]));
    }
}
