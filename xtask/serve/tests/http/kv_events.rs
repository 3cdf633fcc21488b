//! Events of the KV cache, as a router's subscriber reads them.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pagoda::{CacheEvents, Demand, Engine, EngineHandle, EngineOptions, HandleOptions};
use serde_json::json;
use serve::{KvPublisher, Options};

use crate::client::get;
use crate::fixture::{RUNTIME, Served, engine_options, listen, open_model, shared};
use crate::is_long;
use crate::packages::{clients, python, succeed};

/// A server of an engine whose events `publisher` publishes. Its model is its own: engines of one model share a host tier.
fn serve_published(publisher: &KvPublisher, options: EngineOptions) -> Served {
    let model = Arc::new(open_model());
    let mut engine = Engine::open(model.clone(), options.cache_events(CacheEvents::All)).unwrap();
    publisher.follow(&mut engine);
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    RUNTIME.spawn({
        let publisher = publisher.clone();
        async move { publisher.run().await.unwrap() }
    });
    listen(handle, Options::new(model, "tiny").kv_events(vec![publisher.clone()]))
}

/// Runs a program against a server with a pool for two prompts, memory for some blocks below it, and a disk for all. It gets
/// the address of the server.
fn run(python: &Path, program: &str, topic: &str, more: &str) {
    let folder = tempfile::tempdir().unwrap();
    let tiers = format!("host=512KiB,disk={}:64MiB", folder.path().display());
    // The longest sequence fits the device, so that the host is a tier for prefixes alone.
    let options = engine_options(2).demand(Demand::new(2, 512).longest(256)).kv_blocks(Some(24));
    let options = options.kv_tiers(tiers.parse().unwrap());
    let any = "tcp://127.0.0.1:0";
    let publisher = KvPublisher::bind(any, Some(any), topic, 0).unwrap();
    let served = serve_published(&publisher, options);
    let base = format!("http://{}", served.address);
    succeed(Command::new(python).arg(clients().join(program)).args([&base, more]));
}

/// A subscriber that others wrote, with vLLM's layout of events.
#[test]
fn a_subscriber_knows_what_requests_find() {
    let topic = "kv@127.0.0.1:8000@tiny";
    run(&python("kv-events", "kv_events.txt"), "kv_events.py", topic, topic);
}

/// The index of Dynamo's router. `PAGODA_LONG_TESTS=1` runs this test.
#[test]
fn the_indexer_of_dynamo_finds_what_requests_find() {
    if !is_long() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    run(&python("kv-indexer", "kv_indexer.txt"), "kv_indexer.py", "", &port.to_string());
}

#[test]
fn endpoints_that_cannot_be_had_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let of_rank = |endpoint: &str, replay: Option<&str>, rank: u16| {
        let error = KvPublisher::bind(endpoint, replay, "", rank).unwrap_err();
        pagoda::error_chain::joined(&error)
    };
    let told = |endpoint: &str| of_rank(endpoint, None, 0);
    assert!(told(&endpoint).starts_with(&format!("cannot listen at {endpoint}: ")), "{}", told(&endpoint));
    for wrong in ["127.0.0.1:5557", "ipc:///a/b", "tcp://127.0.0.1", "tcp://:5557", "tcp://*:port"] {
        assert_eq!(
            told(wrong),
            format!("{wrong:?} is not tcp://HOST:PORT, such as tcp://127.0.0.1:5557 or tcp://*:5557")
        );
    }
    let replay = of_rank("tcp://127.0.0.1:0", Some(&endpoint), 0);
    assert!(replay.starts_with(&format!("cannot listen at {endpoint}: ")), "{replay}");
    assert_eq!(
        of_rank("tcp://127.0.0.1:65535", None, 2),
        "engine 2 has no port: it is that of tcp://127.0.0.1:65535 and 2, and the last port is 65535"
    );
    // A port of the system's choice is told.
    let publisher = KvPublisher::bind("tcp://127.0.0.1:0", None, "", 0).unwrap();
    let served = serve_published(&publisher, engine_options(2));
    let listed = get(&served, "/kv_event_sources").ok();
    let port = listed[0]["endpoint"].as_str().and_then(|endpoint| endpoint.rsplit_once(':')).unwrap().1;
    assert_ne!(port, "0");
    let endpoint = format!("tcp://127.0.0.1:{port}");
    assert_eq!(
        listed,
        json!([{ "data_parallel_rank": 0, "endpoint": endpoint, "replay_endpoint": null, "topic": "" }])
    );
    assert_eq!(get(shared(), "/kv_event_sources").ok(), json!([]));
}
