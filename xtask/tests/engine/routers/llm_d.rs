//! The contract of llm-d's router, which is not a package here: the metrics that its configuration names, and the ids of prompts.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::SMG;
use crate::fleet::{chat, direct, packages, worker};
use crate::server::Server;

/// The configuration in the documentation, read by the YAML that comes with SMG.
fn config() -> Value {
    let file: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "docs", "fleet", "llm-d.yaml"].iter().collect();
    let mut python = Command::new(SMG.with_file_name("python"));
    python.args(["-c", "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)"]);
    serde_json::from_slice(&packages::succeed(python.arg(file)).stdout).unwrap()
}

/// The only sample of a gauge: its labels and its value.
fn gauge(metrics: &str, name: &str) -> (String, f64) {
    assert!(metrics.contains(&format!("\n# TYPE {name} gauge\n")), "{name} is no gauge");
    let mut samples = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    let (labels, value) = samples.next().unwrap_or_else(|| panic!("no {name}")).split_once("} ").unwrap();
    assert_eq!(samples.next(), None, "{name}");
    (labels.to_owned(), value.parse().unwrap())
}

fn label(labels: &str, name: &str) -> u64 {
    let (_, rest) = labels.split_once(&format!("{name}=\"")).unwrap_or_else(|| panic!("{name} in {labels}"));
    rest.split('"').next().unwrap().parse().unwrap()
}

fn props(server: &Server) -> Value {
    let reply = server.ask("GET", "/props", "");
    serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn the_configuration_names_gauges_that_a_server_has() {
    let config = config();
    let plugins = config["plugins"].as_array().unwrap();
    let extractor = plugins.iter().find(|plugin| plugin["type"] == "core-metrics-extractor").unwrap();
    let parameters = &extractor["parameters"];
    let engine = &parameters["engineConfigs"][0];
    assert_eq!(parameters["defaultEngine"], engine["name"]);
    let server = worker(0, &["--no-disk-kv"]);
    let (metrics, props) = (server.ask("GET", "/metrics", ""), props(&server));
    let named = |spec: &str| engine[spec].as_str().unwrap_or_else(|| panic!("{spec} in {engine}")).to_owned();
    // The built-in engine of the router reads the same gauges by vLLM's names.
    for prefix in ["pagoda:", "vllm:"] {
        for spec in ["queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"] {
            let (_, value) = gauge(&metrics, &named(spec).replace("pagoda:", prefix));
            assert_eq!(value.to_bits(), 0_f64.to_bits(), "nothing runs: {spec}");
        }
        let (labels, _) = gauge(&metrics, &named("cacheInfoSpec").replace("pagoda:", prefix));
        assert_eq!(label(&labels, "block_size"), props["kv_block_size"]);
        assert_eq!(label(&labels, "num_gpu_blocks"), props["kv_blocks"]);
    }
}

/// The producer of token ids forwards the body of a call as it is, but for the name of the model, and takes `token_ids` of a chat
/// and those of the first element of a completion.
#[test]
fn prompts_are_rendered_as_they_run() {
    let server = worker(0, &["--no-disk-kv"]);
    let rendered = |path: &str, body: &Value| direct(&server, &format!("{path}/render"), body).ok();
    let ran = |path: &str, body: &Value| {
        let mut asked = body.clone();
        asked["return_token_ids"] = true.into();
        asked.as_object_mut().unwrap().retain(|field, _| !field.starts_with("stream"));
        direct(&server, path, &asked).ok()
    };
    let chats = "/v1/chat/completions";
    let mut streamed = chat("the hare", 2);
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({ "include_usage": true });
    let mut salted = chat("the hare", 2);
    salted["cache_salt"] = "a tenant".into();
    salted["user"] = "somebody".into();
    salted["messages"] = json!([
        { "role": "system", "content": [{ "type": "text", "text": "be brief" }] },
        { "role": "user", "content": "the hare" },
    ]);
    for body in [chat("the hare", 2), streamed, salted] {
        assert_eq!(rendered(chats, &body)["token_ids"], ran(chats, &body)["prompt_token_ids"], "{body}");
    }
    let completions = "/v1/completions";
    for prompt in [json!("the hare"), json!(["the hare"]), json!([3, 1, 2]), json!([[3, 1, 2], [4]])] {
        let body = json!({ "model": "tiny", "prompt": prompt, "max_tokens": 2 });
        let listed = rendered(completions, &body);
        let ran = ran(completions, &body);
        for (listed, ran) in listed.as_array().unwrap().iter().zip(ran["choices"].as_array().unwrap()) {
            assert_eq!(listed["token_ids"], ran["prompt_token_ids"], "{body}");
        }
    }
    // A reply is a body of the route for ids.
    let whole = rendered(chats, &chat("the hare", 2));
    let answer = direct(&server, "/inference/v1/generate", &whole).ok();
    assert_eq!(answer["choices"][0]["token_ids"].as_array().unwrap().len(), 2);
    assert_eq!(whole["model"], "tiny");
}

/// The endpoint picker leaves out pods whose `max_model_len` is too small for a prompt.
#[test]
fn the_longest_prompt_is_known_by_the_name_of_the_model() {
    let server = worker(0, &["--no-disk-kv", "--context", "300"]);
    let reply = server.ask("GET", "/v1/models", "");
    let models: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    let models = models["data"].as_array().unwrap();
    let limit = models.iter().find(|model| model["id"] == "tiny").unwrap()["max_model_len"].clone();
    assert_eq!(limit, 300);
    assert_eq!(limit, props(&server)["context_length"]);
}
