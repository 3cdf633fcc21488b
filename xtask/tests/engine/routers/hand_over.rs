//! One server prefills and another decodes, by vLLM's protocol: the blocks go through the store that they share.

use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use super::static_backends::VLLM_ROUTER;
use super::{SMG, health_every_second};
use crate::fleet::{Reply, Router, answered, chat, counted, direct, until, worker};
use crate::redis::Redis;
use crate::server::Server;

/// A server that prefills and one that decodes, with a common store.
struct Pair {
    prefill: Server,
    decode: Server,
    store: Redis,
}

impl Pair {
    fn start() -> Self {
        let store = Redis::start();
        let spec = store.spec();
        let [prefill, decode] = [(); 2].map(|()| worker(0, &["--reproducible", "--kv-tiers", &spec]));
        Self { prefill, decode, store }
    }

    /// Tokens that the decoding server has loaded from the store.
    fn loaded(&self) -> u64 {
        counted(&self.decode, "prompt_tokens_cached_by_source_total", |line| line.contains("remote"))
    }
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

/// A server that was gone is asked again after a second, not a minute. There is no other for its part.
fn flags(router: &mut Command) {
    health_every_second(router);
    router.args(["--cb-timeout-duration-secs", "1"]);
}

fn vllm_router(pair: &Pair) -> Router {
    let command = |[port, metrics]: [String; 2]| {
        let mut router = Command::new(&*VLLM_ROUTER);
        router.args(["--host", "127.0.0.1", "--port", &port, "--prometheus-host", "127.0.0.1"]);
        router.args(["--prometheus-port", &metrics, "--worker-startup-check-interval", "1"]);
        flags(&mut router);
        router.args(["--vllm-pd-disaggregation", "--prefill", &url(&pair.prefill)]);
        router.args(["--decode", &url(&pair.decode)]);
        router
    };
    Router::start(command, "/health", "")
}

/// SMG, told of the connector by which it knows the protocol. On its command line there is no place for it.
fn smg(pair: &Pair) -> Router {
    let command = |[port, metrics]: [String; 2]| {
        let mut router = Command::new(&*SMG);
        router.args(["launch", "--host", "127.0.0.1", "--port", &port, "--prometheus-host", "127.0.0.1"]);
        router.args(["--prometheus-port", &metrics, "--disable-tokenizer-autoload", "--enable-igw"]);
        flags(&mut router);
        router
    };
    let router = Router::start(command, "/liveness", "");
    for (server, part) in [(&pair.prefill, "prefill"), (&pair.decode, "decode")] {
        let worker = json!({ "url": url(server), "worker_type": part, "kv_connector": "NixlConnector" });
        assert_eq!(router.post("/workers", &worker).status, 202);
    }
    until("both servers are known", || {
        let known = router.get("/workers").ok();
        let all = known["workers"].as_array().unwrap();
        all.len() == 2 && all.iter().all(|worker| worker["is_healthy"] == true)
    });
    router
}

fn text(about: &str) -> String {
    format!("{about} is the beginning of it; ").repeat(20)
}

fn complete(about: &str) -> Value {
    let prompt = text(about);
    json!({ "model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true })
}

/// The text of a stream of chat.
fn said(stream: &Reply) -> String {
    stream.events().iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

/// Calls of all forms: prompts are prefilled by one server, loaded and continued by the other, with the tokens of one alone.
fn hands_prompts_over(pair: &Pair, router: &Router) {
    let alone = worker(0, &["--reproducible", "--no-disk-kv"]);
    let mut loaded = 0;
    for about in ["tea", "rivers", "old maps"] {
        let expected = direct(&alone, "/v1/completions", &complete(about)).ok();
        let answer = router.post("/v1/completions", &complete(about)).ok();
        assert_eq!(answer["choices"][0]["text"], expected["choices"][0]["text"], "{about}");
        let tokens = expected["usage"]["prompt_tokens"].as_u64().unwrap();
        // All full blocks but that of the last token, which is computed.
        loaded += (tokens - 1) / 16 * 16;
        assert_eq!(pair.loaded(), loaded, "{about}: {}", router.said());
        assert_eq!(answer["pagoda"]["cached_tokens"]["remote"], (tokens - 1) / 16 * 16);
    }
    let question = chat(&text("night"), 12);
    let expected = direct(&alone, "/v1/chat/completions", &question).ok();
    let stream = router.stream(question).join().unwrap();
    assert_eq!(expected["choices"][0]["message"]["content"], said(&stream));
    assert!(pair.loaded() > loaded + 100, "the chat was not loaded");
    for (path, input, limit) in
        [("/v1/messages", "messages", "max_tokens"), ("/v1/responses", "input", "max_output_tokens")]
    {
        let mut body = json!({ "model": "tiny", "temperature": 0 });
        body[input] = json!([{ "role": "user", "content": text(path) }]);
        body[limit] = 12.into();
        let loaded = pair.loaded();
        router.post(path, &body).ok();
        assert!(pair.loaded() > loaded + 100, "{path} was not loaded: {}", router.said());
    }
    assert_eq!([answered(&pair.prefill), answered(&pair.decode)], [6; 2]);
}

/// Without the server that prefills, calls end in time, well or with an error, and a new server at its address is used.
fn survives_the_end_of_prefill(mut pair: Pair, router: &Router) {
    router.post("/v1/completions", &complete("before")).ok();
    let port = pair.prefill.address.rsplit(':').next().unwrap().parse().unwrap();
    pair.prefill.kill();
    // Each is answered: the client gives up after a minute, and panics.
    thread::scope(|scope| {
        for about in ["one", "two", "three"] {
            scope.spawn(move || {
                let reply = router.post("/v1/completions", &complete(about));
                let json: Value = serde_json::from_str(&reply.body).unwrap_or_default();
                let whole = json["choices"][0]["finish_reason"] == "length";
                assert!(if reply.status == 200 { whole } else { reply.status >= 500 }, "{reply:?}");
            });
        }
    });
    let back = worker(port, &["--reproducible", "--kv-tiers", &pair.store.spec()]);
    until("the server is used again", || {
        router.post("/v1/completions", &complete("again"));
        answered(&back) > 0
    });
}

#[test]
fn vllms_router_has_one_server_prefill_for_another() {
    let pair = Pair::start();
    hands_prompts_over(&pair, &vllm_router(&pair));
}

#[test]
fn vllms_router_lives_on_without_the_server_that_prefills() {
    let pair = Pair::start();
    let router = vllm_router(&pair);
    survives_the_end_of_prefill(pair, &router);
}

#[test]
fn smg_has_one_server_prefill_for_another() {
    let pair = Pair::start();
    hands_prompts_over(&pair, &smg(&pair));
}

#[test]
fn smg_lives_on_without_the_server_that_prefills() {
    let pair = Pair::start();
    let router = smg(&pair);
    survives_the_end_of_prefill(pair, &router);
}

fn prefill(about: &str) -> Value {
    let mut body = complete(about);
    body["max_tokens"] = 1.into();
    // As vLLM's router and the sidecar of llm-d write it.
    body["kv_transfer_params"] = json!({ "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null });
    body
}

#[test]
fn a_reply_with_parameters_has_its_blocks_in_the_store() {
    let pair = Pair::start();
    // Writes take longer than the answer.
    pair.store.command("CLIENT PAUSE 1500 WRITE").unwrap();
    let reply = direct(&pair.prefill, "/v1/completions", &prefill("tea")).ok();
    let handed = &reply["kv_transfer_params"];
    assert_eq!(*handed, json!({ "do_remote_prefill": true, "do_remote_decode": false }));
    let blocks = reply["usage"]["prompt_tokens"].as_u64().unwrap() / 16;
    // And the object that states the format.
    assert_eq!(pair.store.number("DBSIZE", ":"), blocks + 1);
    let mut decode = complete("tea");
    decode["kv_transfer_params"] = handed.clone();
    let answer = direct(&pair.decode, "/v1/completions", &decode).ok();
    assert_eq!(answer["pagoda"]["cached_tokens"]["remote"], blocks * 16);
    assert_eq!(answer["kv_transfer_params"], Value::Null);
    let mut ids = prefill("rivers");
    ids.as_object_mut().unwrap().remove("prompt");
    ids["token_ids"] = (0..100).collect();
    let reply = direct(&pair.prefill, "/inference/v1/generate", &ids).ok();
    assert_eq!(reply["kv_transfer_params"], *handed);
}

#[test]
fn a_store_that_hangs_holds_a_reply_up_for_a_while_only() {
    let pair = Pair::start();
    // Longer than the minute after which the client gives up.
    pair.store.command("CLIENT PAUSE 3600000 ALL").unwrap();
    direct(&pair.prefill, "/v1/completions", &prefill("tea")).ok();
}

#[test]
fn parameters_of_other_protocols_are_refused_by_name() {
    let alone = worker(0, &["--no-disk-kv"]);
    // As vLLM without a connector: a call like others.
    let plain = direct(&alone, "/v1/completions", &prefill("tea")).ok();
    assert_eq!(plain["kv_transfer_params"], Value::Null);
    let warnings = &plain["pagoda"]["warnings"];
    assert_eq!(*warnings, json!(["kv_transfer_params: ignored, it changes nothing here"]));
    let pair = Pair::start();
    let refused = |field: &str, value: Value| {
        let mut body = chat("tea", 2);
        let (object, inner) = field.split_once('.').unwrap_or((field, ""));
        body["kv_transfer_params"] = json!({ "do_remote_decode": true });
        if inner.is_empty() {
            body[object] = value
        } else {
            body[object][inner] = value
        }
        let reply = direct(&pair.prefill, "/v1/chat/completions", &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error: Value = serde_json::from_str(&reply.body).unwrap();
        error["error"]["param"].as_str().unwrap_or_default().to_owned()
    };
    for (field, value) in [
        ("kv_transfer_params.remote_block_ids", json!([[1, 2]])),
        ("kv_transfer_params.remote_host", "10.0.0.1".into()),
        ("kv_transfer_params.do_remote_decode", "yes".into()),
    ] {
        assert_eq!(refused(field, value), field);
    }
    assert_eq!(refused("stream", true.into()), "kv_transfer_params.do_remote_decode");
}
