//! Full queues, clients that go away, and the end of a server.

use std::io::{BufReader, Read};
use std::time::Duration;

use pagoda::HandleOptions;
use serde_json::{Value, json};

use crate::client::{chunk, get, post, post_bytes, receive, send};
use crate::fixture::{Setup, is_idle, slowed, start, until};

/// A request that runs far longer than a test.
fn endless(stream: bool) -> Vec<u8> {
    let body = json!({ "prompt": "the lion", "max_tokens": 900, "ignore_eos": true, "stream": stream });
    post_bytes("/v1/completions", body.to_string().as_bytes())
}

fn short() -> Value {
    json!({ "prompt": "the hare", "max_tokens": 1 })
}

#[test]
fn a_client_that_goes_away_frees_its_blocks() {
    let served = start(Setup::default());
    let _slowed = slowed(&served);
    for stream in [true, false] {
        let before = served.handle.snapshot().totals;
        let connection = send(&served, &endless(stream));
        until("it runs", || served.handle.snapshot().running.len() == 1);
        drop(connection);
        until("its blocks are free", || is_idle(&served));
        let after = served.handle.snapshot().totals;
        assert_eq!(after.aborted, before.aborted + 1);
        assert!(after.generated_tokens < before.generated_tokens + 900);
    }
    post(&served, "/v1/completions", &short()).ok();
}

#[test]
fn a_full_queue_refuses_before_it_reads() {
    let mut bounds = HandleOptions::default();
    bounds.max_waiting = 1;
    let served = start(Setup { sequences: 1, bounds, ..Setup::default() });
    let _slowed = slowed(&served);
    let running = send(&served, &endless(true));
    until("one runs", || served.handle.snapshot().running.len() == 1);
    let waiting = send(&served, &endless(true));
    until("one waits", || served.handle.num_waiting() == 1);
    // The body never comes, and need not.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
    let refused = receive(send(&served, head.as_bytes()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    let error = refused.refused(503);
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!("overloaded"), &json!("1 requests are waiting, the limit is 1"))
    );
    get(&served, "/health").ok();
    drop((running, waiting));
    until("nothing runs", || is_idle(&served));
    post(&served, "/v1/completions", &short()).ok();
}

#[test]
fn too_many_waiting_tokens_are_refused() {
    let mut bounds = HandleOptions::default();
    bounds.max_waiting_tokens = 20;
    let served = start(Setup { sequences: 1, bounds, ..Setup::default() });
    let _slowed = slowed(&served);
    let _running = send(&served, &endless(true));
    until("one runs", || served.handle.snapshot().running.len() == 1);
    let reply = post(&served, "/v1/completions", &json!({ "prompt": vec![5; 30] }));
    assert_eq!(reply.refused(503)["code"], "overloaded");
}

#[test]
fn long_waits_are_bridged_by_comments() {
    let mut setup = Setup { sequences: 1, ..Setup::default() };
    setup.options.keep_alive = Duration::from_millis(20);
    let served = start(setup);
    let _slowed = slowed(&served);
    let _running = send(&served, &endless(true));
    until("one runs", || served.handle.snapshot().running.len() == 1);
    let mut waiting = BufReader::new(send(&served, &endless(true)));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        waiting.read_exact(&mut byte).unwrap();
        head.push(byte[0].into());
    }
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    assert_eq!(chunk(&mut waiting).unwrap(), b": ping\n\n");
}

#[test]
fn late_requests_end_with_an_error() {
    let mut setup = Setup::default();
    setup.options.request_timeout = Some(Duration::from_millis(150));
    let served = start(setup);
    let _slowed = slowed(&served);
    let error = receive(send(&served, &endless(false))).refused(504);
    assert_eq!(error["code"], "timeout");
    let events = receive(send(&served, &endless(true))).events();
    let [.., failed, done] = &events[..] else { panic!("{events:?}") };
    let failed: Value = serde_json::from_str(failed).unwrap();
    assert_eq!((&failed["error"]["code"], done.as_str()), (&json!("timeout"), "[DONE]"));
}

#[test]
fn a_draining_server_finishes_what_runs() {
    let served = start(Setup::default());
    let _slowed = slowed(&served);
    let body = json!({ "prompt": "the lion", "max_tokens": 60, "ignore_eos": true, "stream": true });
    let running = send(&served, &post_bytes("/v1/completions", body.to_string().as_bytes()));
    until("it runs", || !served.handle.snapshot().running.is_empty());
    served.service.drain();
    let refused = get(&served, "/health/ready");
    assert_eq!(refused.refused(503)["code"], "shutting_down");
    get(&served, "/health/live").ok();
    let refused = post(&served, "/v1/completions", &short());
    assert_eq!((refused.header("retry-after"), refused.status), (Some("1"), 503));
    let events = receive(running).events();
    assert!(events[events.len() - 2].contains(r#""finish_reason":"length""#), "{events:?}");
}
