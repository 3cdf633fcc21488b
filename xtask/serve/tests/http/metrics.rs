//! The page that Prometheus and routers read.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use pagoda::{Registry, Sparse};
use serde_json::json;
use serve::MetricsNames;

use crate::client::{get, post};
use crate::fixture::{Served, Setup, block_on, start, until};

/// Samples by their names with labels.
fn samples(served: &Served) -> BTreeMap<String, f64> {
    let reply = get(served, "/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.replace("model_name=\"tiny\",engine=\"0\"", ""), value.parse().unwrap())
    };
    reply.text().lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

#[test]
fn what_happens_is_counted() {
    let mut setup = Setup::default();
    setup.options.metrics_names = MetricsNames::Both;
    let served = start(setup);
    let body = json!({ "prompt": vec![9; 100], "max_tokens": 12, "ignore_eos": true, "n": 2 });
    post(&served, "/v1/completions", &body).ok();
    post(&served, "/v1/completions", &body).ok();
    assert_eq!(get(&served, "/load").ok()["num_running"], 0);
    let samples = samples(&served);
    for prefix in ["pagoda", "vllm"] {
        let at = |name: &str| samples[&format!("{prefix}:{name}")];
        assert_eq!(at("request_success_total{,finished_reason=\"length\"}").to_bits(), 4_f64.to_bits());
        assert_eq!([at("generation_tokens_total{}"), at("prompt_tokens_cached_total{}")], [48.0, 96.0]);
        assert_eq!(
            at("prompt_tokens_cached_by_source_total{,source=\"device\"}").to_bits(),
            96_f64.to_bits()
        );
        assert_eq!(
            [at("num_requests_running{}"), at("num_requests_waiting{}"), at("kv_cache_usage_perc{}")],
            [0.0; 3]
        );
        assert_eq!(
            [at("time_to_first_token_seconds_count{}"), at("inter_token_latency_seconds_count{}")],
            [4.0, 44.0]
        );
        assert_eq!(at("request_generation_tokens_bucket{,le=\"10\"}").to_bits(), 0_f64.to_bits());
        assert_eq!(
            [at("request_generation_tokens_bucket{,le=\"50\"}"), at("request_generation_tokens_sum{}")],
            [4.0, 48.0]
        );
        assert_eq!(at("e2e_request_latency_seconds_bucket{,le=\"+Inf\"}").to_bits(), 4_f64.to_bits());
        assert!(at("prefix_cache_hits_total{}") <= at("prefix_cache_queries_total{}"));
    }
    let at = |name: &str| samples[&format!("vllm:{name}{{}}")].to_bits();
    assert_eq!(at("gpu_cache_usage_perc"), at("kv_cache_usage_perc"));
    assert_eq!(at("gpu_prefix_cache_hits_total"), at("prefix_cache_hits_total"));
    assert_eq!(at("gpu_prefix_cache_queries_total"), at("prefix_cache_queries_total"));
    assert!(
        samples
            .keys()
            .any(|name| name.starts_with("vllm:cache_config_info{,block_size=\"16\",num_gpu_blocks="))
    );
}

/// Readers take the first piece, and pause until the engine has long ended: one then reads on, the other is gone.
#[test]
fn times_and_counts_are_the_engines_whoever_reads() {
    let served = start(Setup::default());
    let body = json!({ "prompt": vec![9; 20], "max_tokens": 40, "ignore_eos": true, "stream": true });
    for (reads_on, ended) in [(true, 1), (false, 2)] {
        let post = Request::post("/v1/completions").header("host", "test");
        let post = post.header("content-type", "application/json").body(Body::from(body.to_string()));
        let service = TowerToHyperService::new(served.service.router());
        block_on(async {
            let mut reply = service.call(post.unwrap()).await.unwrap().into_body();
            reply.frame().await.unwrap().unwrap();
            until("the engine is done", || served.handle.snapshot().totals.length == ended);
            thread::sleep(Duration::from_millis(500));
            while let (true, Some(frame)) = (reads_on, reply.frame().await) {
                frame.unwrap();
            }
        });
        let samples = samples(&served);
        let at = |name: &str| samples[&format!("pagoda:{name}_seconds_sum{{}}")];
        let (gaps, decode) = (at("inter_token_latency"), at("request_decode_time"));
        assert!((gaps - decode).abs() < 1e-6, "{gaps} s between tokens that took {decode} s");
        let count = samples["pagoda:inter_token_latency_seconds_count{}"];
        assert_eq!(count.to_bits(), f64::from(39 * u32::try_from(ended).unwrap()).to_bits());
    }
}

#[test]
fn sparse_attention_is_measured() {
    let body = json!({ "prompt": vec![9; 200], "max_tokens": 8, "ignore_eos": true });
    let dense = start(Setup::default());
    post(&dense, "/v1/completions", &body).ok();
    assert!(!samples(&dense).keys().any(|name| name.contains("sparse")));
    let mut certified = body.clone();
    certified["certify"] = true.into();
    assert_eq!(post(&dense, "/v1/completions", &certified).refused(400)["param"], "certify");
    let sparse = Sparse::new(&Registry::builtin(), &"quest:page_budget=2,block_size=16".parse().unwrap());
    let served = start(Setup { sparse: Some(sparse.unwrap()), ..Setup::default() });
    let told = post(&served, "/v1/completions", &certified).ok()["pagoda"]["sparse"].clone();
    let samples = samples(&served);
    for name in ["density", "bound"] {
        let at = |part: &str| samples[&format!("pagoda:request_sparse_{name}_{part}{{}}")];
        assert_eq!(at("count").to_bits(), 1_f64.to_bits());
        // serde_json reads a number to within a unit in the last place.
        let told = told[name].as_f64().unwrap();
        assert!((at("sum") - told).abs() <= told * f64::EPSILON, "{} and {told}", at("sum"));
    }
    assert!(samples["pagoda:request_sparse_density_sum{}"] < 1.0);
    // Nothing is certified for those who do not ask.
    assert!(post(&served, "/v1/completions", &body).ok()["pagoda"]["sparse"]["bound"].is_null());
    let bounds = self::samples(&served)["pagoda:request_sparse_bound_count{}"];
    assert_eq!(bounds.to_bits(), 1_f64.to_bits());
}
