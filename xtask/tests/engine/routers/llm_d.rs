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

#[test]
fn prompts_are_rendered_as_they_run() {
    let server = worker(0, &["--no-disk-kv"]);
    let mut asked = chat("the hare", 2);
    let rendered = direct(&server, "/v1/chat/completions/render", &asked).ok();
    asked["return_token_ids"] = true.into();
    assert_eq!(
        rendered["token_ids"],
        direct(&server, "/v1/chat/completions", &asked).ok()["prompt_token_ids"]
    );
    let text = json!({ "model": "tiny", "prompt": "the hare", "max_tokens": 2, "return_token_ids": true });
    let listed = direct(&server, "/v1/completions/render", &text).ok();
    let ran = direct(&server, "/v1/completions", &text).ok();
    assert_eq!(listed[0]["token_ids"], ran["choices"][0]["prompt_token_ids"]);
}
