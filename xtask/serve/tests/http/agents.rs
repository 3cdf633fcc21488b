//! Coding agents and frameworks as people install them, with what they send by default. Their packages are large, so
//! `PAGODA_LONG_TESTS=1` runs these tests.
//!
//! Coding agents run in a network of their own, which has 127.0.0.1 alone, if the machine lets its users make one. A proxy that
//! refuses everything keeps those back that would try other addresses for long, and is all there is on other machines.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pagoda::{Demand, Engine, EngineHandle, EngineOptions, HandleOptions, KvDtype, Model, Registry, Sparse};
use serde_json::{Value, json};
use serve::Options;
use tempfile::TempDir;

use crate::fixture::{Served, listen, shared};
use crate::is_long;
use crate::loops::{READ, SECRET, call, hello, run_loops, with_tool};
use crate::packages::{self, clients, npm, succeed};
use crate::scripted::{Script, scripted_model};

/// Tokens of the prompt of an agent: its tools and instructions, of which a byte is a token.
const CONTEXT: u32 = 1 << 17;

/// Set in a process that has a network of its own.
const OFFLINE: &str = "PAGODA_TEST_OFFLINE";

/// Runs a test in a process with a network of its own, and returns true; false if this process has one, or the machine lets no
/// user make one.
fn ran_offline(test: &str) -> bool {
    if env::var_os(OFFLINE).is_some() {
        // An address for documentation, to which nothing is sent.
        let error = UdpSocket::bind("0.0.0.0:0").unwrap().connect("192.0.2.1:9").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");
        return false;
    }
    let alone = |program: &str| {
        let mut command = Command::new("unshare");
        command.args([
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            &format!("ip link set lo up && {program}"),
            "sh",
        ]);
        command
    };
    if !alone("true").output().is_ok_and(|tried| tried.status.success()) {
        return false;
    }
    let mut again = alone("exec \"$@\"");
    again.arg(env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = succeed(again.env(OFFLINE, "1"));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("1 passed"), "{told}");
    true
}

/// A server whose model answers by scripts, with room for the prompt of an agent.
fn serve_agents(scripts: &[Script]) -> Served {
    let model: Arc<Model> = Arc::new(scripted_model(scripts, CONTEXT));
    // A policy of prefill, so that time grows with the prompt and not with its square.
    let sparse = Sparse::new(&Registry::builtin(), &"streaming".parse().unwrap()).unwrap();
    let demand = Demand::new(2, u64::from(CONTEXT)).longest(u64::from(CONTEXT));
    let options = EngineOptions::new().kv_dtype(KvDtype::F16).sparse(sparse).demand(demand);
    let engine = Engine::open(Arc::clone(&model), options).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    listen(handle, Options::new(model, "tiny"))
}

/// A folder with a secret, which is the home of an agent.
fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("secret.txt"), SECRET).unwrap();
    home
}

/// The content of a file that an agent wrote.
fn written(home: &TempDir, file: &str) -> String {
    fs::read_to_string(home.path().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
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

/// The folder of the agents for Node.js.
fn programs() -> PathBuf {
    npm("agents", "agents/package.json", &[]).join("node_modules").join(".bin")
}

fn lines(out: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(out).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

const FORM: &str = r#"{"type":"object","properties":{"lions":{"type":"integer"}},"required":["lions"],"additionalProperties":false}"#;

#[test]
fn claude_code_works_with_its_tools() {
    if !is_long() {
        return;
    }
    let programs = programs();
    if ran_offline("agents::claude_code_works_with_its_tools") {
        return;
    }
    let home = home();
    let file = |name: &str| home.path().join(name);
    let write = call("Write", json!({ "file_path": file("told.txt"), "content": "I have read it.\n" }));
    let count = "wc -l < secret.txt > lines.txt";
    let served = serve_agents(&[
        with_tool(
            "Read",
            0,
            "true",
            format!(
                "<think>A file.</think>\n\nI look. {}",
                call("Read", json!({ "file_path": file("secret.txt") }))
            ),
        ),
        with_tool(
            "Read",
            1,
            READ,
            write + &call("Bash", json!({ "command": count, "description": "Counts lines" })),
        ),
        with_tool("StructuredOutput", 3, READ, call("StructuredOutput", json!({ "lions": 4711 }))),
        with_tool("Read", 3, READ, "The secret was read: é😀."),
        hello(),
    ]);
    let base = format!("http://{}", served.address);
    let run = |args: &[&str]| {
        let mut claude = agent(&programs.join("claude"), &home);
        claude.args(["-p", "look into the files", "--allowedTools", "Read", "Write", "Bash"]).args(args);
        let told = succeed(claude.env("ANTHROPIC_BASE_URL", &base).env("ANTHROPIC_API_KEY", "any"));
        let last = lines(&told.stdout).pop().unwrap();
        assert_eq!((&last["is_error"], &last["subtype"]), (&false.into(), &"success".into()), "{last}");
        assert_eq!(
            (written(&home, "told.txt").as_str(), written(&home, "lines.txt").trim()),
            ("I have read it.\n", "1")
        );
        for name in ["told.txt", "lines.txt"] {
            fs::remove_file(file(name)).unwrap();
        }
        last
    };
    let told = run(&["--output-format", "json"]);
    assert_eq!(
        (&told["result"], &told["num_turns"]),
        (&"The secret was read: é😀.".into(), &4.into()),
        "{told}"
    );
    let usage = &told["usage"];
    assert!(usage["cache_read_input_tokens"].as_u64() > usage["input_tokens"].as_u64(), "{usage}");
    let told = run(&[
        "--output-format",
        "stream-json",
        "--verbose",
        "--include-partial-messages",
        "--json-schema",
        FORM,
    ]);
    assert_eq!(told["structured_output"], json!({ "lions": 4711 }), "{told}");
}

#[test]
fn codex_works_with_its_tools() {
    if !is_long() {
        return;
    }
    let programs = programs();
    if ran_offline("agents::codex_works_with_its_tools") {
        return;
    }
    let home = home();
    let shell = |command: &str| call("exec_command", json!({ "cmd": command }));
    let form = "'as a form' in said";
    let served = serve_agents(&[
        with_tool("exec_command", 0, form, shell("cat secret.txt")),
        with_tool(
            "exec_command",
            0,
            "true",
            format!("<think>A file.</think>\n\nI look. {}", shell("cat secret.txt")),
        ),
        with_tool("exec_command", 1, READ, shell("wc -l < secret.txt > lines.txt")),
        with_tool("exec_command", 2, &format!("{READ} and {form}"), "{\"lions\":4711}"),
        with_tool("exec_command", 2, READ, "The secret was read: é😀."),
        hello(),
    ]);
    let config = format!(
        "model = \"tiny\"\nmodel_provider = \"pagoda\"\n[model_providers.pagoda]\nname = \"pagoda\"\n\
         base_url = \"http://{}/v1\"\nwire_api = \"responses\"\n",
        served.address
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    fs::write(home.path().join("form.json"), FORM).unwrap();
    for (prompt, args, answer) in [
        ("look into the file", &[][..], "The secret was read: é😀."),
        ("look into the file, and answer as a form", &["--output-schema", "form.json"], "{\"lions\":4711}"),
    ] {
        let mut codex = agent(&programs.join("codex"), &home);
        // Its sandbox needs rights that a container may lack; the commands are those of the script.
        codex.args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]);
        let told = succeed(codex.args(args).arg(prompt).env("CODEX_HOME", home.path()));
        let events = lines(&told.stdout);
        let items = |kind: &str| {
            let ended = events.iter().filter(|event| event["type"] == "item.completed");
            ended.map(|event| &event["item"]).filter(|item| item["type"] == kind).collect::<Vec<_>>()
        };
        let commands = items("command_execution");
        assert_eq!((commands.len(), &commands[0]["aggregated_output"]), (2, &SECRET.into()), "{events:?}");
        assert_eq!(items("agent_message").last().unwrap()["text"], answer, "{events:?}");
        assert_eq!(written(&home, "lines.txt").trim(), "1");
        fs::remove_file(home.path().join("lines.txt")).unwrap();
        let turn = events.iter().find(|event| event["type"] == "turn.completed");
        let usage = &turn.unwrap_or_else(|| panic!("{events:?}"))["usage"];
        assert!(
            usage["cached_input_tokens"].as_u64() > Some(1000) && usage["output_tokens"].as_u64() > Some(10),
            "{usage}"
        );
    }
}

#[test]
fn aider_edits_files() {
    if !is_long() {
        return;
    }
    let python = packages::python("aider", "agents/requirements.txt");
    if ran_offline("agents::aider_edits_files") {
        return;
    }
    let answer = |format: &str, answer: &str| Script {
        when: format!("{format:?} in said and '4711 lions' in said"),
        answer: answer.into(),
    };
    let served = serve_agents(&[
        answer(
            "SEARCH/REPLACE",
            "<think>A file.</think>\n\nOne more.\n\nsecret.txt\n```\n<<<<<<< SEARCH\n4711 lions\n=======\n4712 lions\n>>>>>>> REPLACE\n```\n",
        ),
        answer("file listing", "Two more.\n\nsecret.txt\n```\n4713 lions é😀\n```\n"),
        hello(),
    ]);
    for (format, stream, edited) in
        [("diff", "--stream", "4712 lions\n"), ("whole", "--no-stream", "4713 lions é😀\n")]
    {
        let home = home();
        let mut aider = agent(&python, &home);
        aider.args(["-m", "aider", "secret.txt", "--message", "more lions", "--edit-format", format, stream]);
        aider.args(["--model", "openai/tiny", "--openai-api-key", "any"]);
        aider
            .arg("--openai-api-base")
            .arg(format!("http://{}/v1", served.address))
            .args(["--yes-always", "--no-git"]);
        let told =
            succeed(aider.args(["--no-show-model-warnings", "--analytics-disable", "--no-check-update"]));
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains(" sent, ") && told.contains(" received."), "{told}");
        assert_eq!(written(&home, "secret.txt"), edited, "{told}");
    }
}

#[test]
fn frameworks_read_every_reply() {
    if !is_long() {
        return;
    }
    let base = format!("http://{}", shared().address);
    let python = packages::python("frameworks", "frameworks.txt");
    for part in ["litellm", "langchain", "pydantic_ai"] {
        let mut command = Command::new(&python);
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").arg(clients().join("frameworks.py"));
        succeed(command.args([part, &base, "tiny"]));
        run_loops(part, &python);
    }
}
