//! vLLM's router and the proxy of LiteLLM, which are told the addresses of the servers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::{
    flags, keeps_beginnings_together, leaves_the_dead_and_takes_them_back, passes_answers_on,
    spares_the_draining, urls, workers,
};
use crate::fleet::{Router, answered, cached, chat, program, until};
use crate::is_long;
use crate::server::Server;

pub(super) static VLLM_ROUTER: LazyLock<PathBuf> = LazyLock::new(|| program("vllm_router", "vllm-router"));

fn vllm_router(workers: &[Server; 2]) -> Router {
    let command = |ports| {
        let mut router = Command::new(&*VLLM_ROUTER);
        flags(&mut router, &ports, workers);
        // It asks the same server again, which must be known as gone by then.
        router.args(["--retry-initial-backoff-ms", "500"]);
        router
    };
    Router::start(command, "/health", "")
}

#[test]
fn vllms_router_keeps_beginnings_together() {
    let workers = workers();
    let router = vllm_router(&workers);
    keeps_beginnings_together(&router, &workers);
    passes_answers_on(&router);
}

#[test]
fn vllms_router_leaves_a_killed_server_and_takes_it_back() {
    let workers = workers();
    leaves_the_dead_and_takes_them_back(&vllm_router(&workers), workers);
}

#[test]
fn vllms_router_sends_nothing_to_a_draining_server() {
    let workers = workers();
    spares_the_draining(&vllm_router(&workers), workers);
}

/// The proxy asks for a key, which must not be short.
const KEY: &str = "sk-4f1a90c25b7e48d3a6c1f09e7b2d5a8840c3";
const HEADERS: &str = "authorization: Bearer sk-4f1a90c25b7e48d3a6c1f09e7b2d5a8840c3\r\n";

fn litellm(workers: &[Server; 2]) -> Router {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("litellm.yaml");
    let models = urls(workers).map(|url| {
        format!(
            "  - model_name: tiny\n    litellm_params: {{ model: hosted_vllm/tiny, api_base: \"{url}/v1\" }}\n"
        )
    });
    let settings = "router_settings: { num_retries: 3, allowed_fails: 0, cooldown_time: 2 }\n";
    fs::write(&config, format!("model_list:\n{}{settings}", models.concat())).unwrap();
    let command = |[port, _]: [String; 2]| {
        let mut proxy = Command::new(program("litellm", "litellm"));
        proxy.args(["--host", "127.0.0.1", "--port", &port, "--telemetry", "False", "--config"]).arg(&config);
        proxy.envs([("LITELLM_MASTER_KEY", KEY), ("LITELLM_LOCAL_MODEL_COST_MAP", "True")]);
        proxy
    };
    Router::start(command, "/health/liveliness", HEADERS)
}

#[test]
fn the_proxy_of_litellm_goes_on_with_one_server() {
    if !is_long() {
        return;
    }
    let mut workers = workers();
    let router = litellm(&workers);
    // It chooses at random.
    let text = "the stones of the hall are in the other hall ".repeat(8);
    until("both servers have the prompt", || {
        router.post("/v1/chat/completions", &chat(&text, 4)).ok();
        workers.iter().all(|worker| answered(worker) > 0)
    });
    let answer = router.post("/v1/chat/completions", &chat(&text, 4)).ok();
    assert_eq!(answer["pagoda"]["cached_tokens"]["device"], cached(&answer["usage"]).1);
    passes_answers_on(&router);
    workers[1].kill();
    leaves_one_alone(&router);
}

/// Calls to a proxy of which one server is gone.
fn leaves_one_alone(router: &Router) {
    super::asks(router, 8);
    let streamed = router.stream(chat("one is left", 8)).join().unwrap().events();
    assert!(cached(&streamed.last().unwrap()["usage"]).0 > 0);
}
