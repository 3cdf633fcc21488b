//! A server with an engine on each of two devices.

use std::sync::Arc;

use pagoda::{CacheEvents, Engine, HandleOptions, Replicas};
use serde_json::{Value, json};
use serve::{Options, Service};

use crate::client::{get, post, post_bytes, receive, send};
use crate::fixture::{Served, engine_options, is_idle, open_model, route, slowed, until};
use crate::page::Watch;

/// A server of two engines, of which the first one is `Served::handle`.
fn two() -> (Served, Replicas) {
    let model = Arc::new(open_model());
    let open = |_| {
        model.forget_gpu();
        Engine::open(Arc::clone(&model), engine_options(4).cache_events(CacheEvents::Device)).unwrap()
    };
    let engines = Replicas::spawn((0..2).map(open).collect(), HandleOptions::default()).unwrap();
    let service = Service::new(engines.clone(), Options::new(Arc::clone(&model), "tiny"));
    let address = route(service.router());
    (Served { address, handle: engines.engines()[0].clone(), service }, engines)
}

fn body(seed: u32, max_tokens: u32) -> Value {
    let prompt: Vec<u32> = (0..48).map(|at| (at * 7 + seed) % 120).collect();
    json!({
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    })
}

/// Value of a metric for each engine.
fn metric(served: &Served, name: &str) -> Vec<f64> {
    let reply = get(served, "/metrics");
    let of = |engine: usize| {
        let begin = format!(r#"{name}{{model_name="tiny",engine="{engine}"}} "#);
        let mut values = reply.text().lines().filter_map(|line| line.strip_prefix(&begin));
        let value = values.next().map(|value| value.parse().unwrap());
        assert_eq!(values.next(), None);
        value
    };
    (0..3).map_while(of).collect()
}

#[test]
fn two_engines_are_one_server() {
    let (served, engines) = two();
    let (one, other) = (body(1, 4), body(2, 4));
    let cached = |body: &Value| {
        post(&served, "/v1/completions", body).ok()["pagoda"]["cached_tokens"]["device"].clone()
    };
    assert_eq!([&one, &other, &one, &other].map(cached), [0, 0, 32, 32].map(Value::from));
    assert_eq!(metric(&served, "pagoda:generation_tokens_total"), [8.0, 8.0]);
    let reply = get(&served, "/metrics");
    let heads =
        reply.text().lines().filter(|line| line.starts_with("# TYPE pagoda:generation_tokens_total "));
    assert_eq!(heads.count(), 1, "samples of one family are together");
    // Both are told together, and are reset together.
    let blocks = |engine: usize| engines.engines()[engine].snapshot().blocks.total;
    assert_eq!(get(&served, "/load").ok()["kv_blocks_total"], blocks(0) + blocks(1));
    get(&served, "/health").ok();
    post(&served, "/reset_prefix_cache", &json!({})).ok();
    assert_eq!([&one, &other].map(cached), [0, 0].map(Value::from));
    // The live page shows one of them.
    let view = Watch::open(&served, "?engine=1").next().unwrap();
    assert_eq!((&view["engine"], &view["engines"]), (&json!(1), &json!(2)));
    assert_eq!(view["snapshot"]["totals"]["generated_tokens"], 12);
    assert_eq!(get(&served, "/live/events?engine=2").refused(400)["param"], "engine");
}

#[test]
fn a_lost_device_is_not_seen_by_clients() {
    let (served, engines) = two();
    let want = post(&served, "/v1/completions", &body(3, 150)).ok()["choices"][0]["token_ids"].clone();
    post(&served, "/reset_prefix_cache", &json!({})).ok();
    let slow = slowed(&served);
    let mut streamed = body(3, 150);
    streamed["stream"] = true.into();
    let stream = send(&served, &post_bytes("/v1/completions", streamed.to_string().as_bytes()));
    let running = |engine: usize| {
        engines.engines()[engine].snapshot().running.iter().any(|view| view.tokens > view.prompt_tokens + 3)
    };
    until("it generates", || (0..2).any(running));
    let at = usize::from(running(1));
    engines.engines()[at].call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
    let events = receive(stream).events();
    drop(slow);
    let ids = |event: &String| {
        let event: Value = serde_json::from_str(event).ok()?;
        let ids = event["choices"][0]["token_ids"].as_array()?.clone();
        Some(ids)
    };
    let got: Vec<Value> = events.iter().filter_map(ids).flatten().collect();
    assert_eq!(Value::from(got), want);
    assert!(engines.engines()[at].is_lost());
    until("the answer holds no blocks", || engines.engines()[1 - at].snapshot().blocks.used == 0);
    post(&served, "/reset_prefix_cache", &json!({})).ok();
    // The server goes on with the other one, and says what it has.
    get(&served, "/health").ok();
    get(&served, "/health/live").ok();
    assert_eq!(post(&served, "/v1/completions", &body(4, 3)).ok()["usage"]["completion_tokens"], 3);
    let rest = Served { handle: engines.engines()[1 - at].clone(), ..served };
    until("nothing runs", || is_idle(&rest));
}
