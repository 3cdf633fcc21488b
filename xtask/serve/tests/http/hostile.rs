//! Clients that break off, send nonsense, or come in crowds.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::client::{get, post, post_bytes, receive, send};
use crate::fixture::{Setup, is_idle, slowed, start, until};
use crate::is_long;

fn body(seed: u64) -> String {
    let stream = seed.is_multiple_of(2);
    let prompt = vec![seed % 100; 20 + usize::try_from(seed % 80).unwrap()];
    json!({ "prompt": prompt, "max_tokens": 1 + seed % 60, "ignore_eos": true, "stream": stream, "n": 1 + seed % 2 }).to_string()
}

/// Clients that go away after a while: `PAGODA_LONG_TESTS=1` for 10,000 of them.
#[test]
fn disconnects_at_any_time_leak_nothing() {
    let clients: u64 = if is_long() { 10_000 } else { 300 };
    let served = start(Setup::default());
    let disconnect = |client: u64| {
        let bytes = post_bytes("/v1/completions", body(client).as_bytes());
        // Some break off within the request, others within the answer.
        let sent = if client.is_multiple_of(5) { bytes.len() - 7 } else { bytes.len() };
        let mut stream = send(&served, &bytes[..sent]);
        thread::sleep(Duration::from_millis(client * 7919 % 40));
        if client.is_multiple_of(3) {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
            let _ = stream.read(&mut [0; 64]);
        }
    };
    thread::scope(|scope| {
        for worker in 0..8 {
            scope.spawn(move || (0..clients / 8).for_each(|turn| disconnect(turn * 8 + worker)));
        }
    });
    until("everything is given back", || is_idle(&served));
    post(&served, "/v1/completions", &json!({ "prompt": "the", "max_tokens": 2 })).ok();
    until("everything is given back again", || is_idle(&served));
}

#[test]
fn a_client_that_closes_its_sending_half_is_gone() {
    let served = start(Setup::default());
    let _slowed = slowed(&served);
    let endless = json!({ "prompt": "the", "max_tokens": 900, "ignore_eos": true }).to_string();
    let stream = send(&served, &post_bytes("/v1/completions", endless.as_bytes()));
    until("it runs", || !served.handle.snapshot().running.is_empty());
    stream.shutdown(Shutdown::Write).unwrap();
    until("it has ended", || is_idle(&served));
}

#[test]
fn nonsense_is_refused_and_its_connection_closed() {
    let served = start(Setup::default());
    let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(1 << 20));
    let heads = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    let smuggled = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let wrong = [
        ("a greeting of TLS", &b"\x16\x03\x01\x02\x00\x01"[..], "400"),
        ("an unknown version", b"GET / HTTP/9.9\r\n\r\n", "400"),
        ("zeros", b"\0\0\0\r\n\r\n", "400"),
        ("a path of a megabyte", long.as_bytes(), "431"),
        ("10,000 headers", heads.as_bytes(), "431"),
        // Taken as chunked, and without a type of its content.
        ("two lengths", smuggled.as_bytes(), "415"),
    ];
    for (what, bytes, status) in wrong {
        let mut stream = send(&served, bytes);
        let mut answer = Vec::new();
        // What the server has not read before it closes resets the connection.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: the connection stays open");
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
    }
    get(&served, "/health").ok();
}

#[test]
fn a_body_of_100_mb_is_not_taken() {
    let served = start(Setup::default());
    let size = 100 << 20;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    );
    let mut stream = send(&served, head.as_bytes());
    let megabyte = vec![b' '; 1 << 20];
    let sent = (0..100).take_while(|_| stream.write_all(&megabyte).is_ok()).count();
    assert!(sent < 100, "all of it was taken");
    get(&served, "/health").ok();
}

/// Nothing is allocated for samples and prompts that the engine does not take.
#[test]
fn more_samples_or_prompts_than_ever_run_are_refused() {
    let served = start(Setup::default());
    let messages = json!([{ "role": "user", "content": "x" }]);
    for n in [30_000_000_u32, u32::MAX] {
        let asked = [
            ("/v1/chat/completions", json!({ "model": "tiny", "messages": messages, "n": n })),
            ("/v1/completions", json!({ "prompt": "the", "n": n })),
            ("/inference/v1/generate", json!({ "token_ids": [1, 2], "sampling_params": { "n": n } })),
        ];
        for (path, body) in asked {
            assert_eq!(post(&served, path, &body).refused(400)["param"], "n", "{path}, {n}");
        }
    }
    let prompts = json!({ "prompt": vec!["a"; 20_000], "n": 2 });
    assert_eq!(post(&served, "/v1/completions", &prompts).refused(400)["param"], "prompt");
    until("everything is given back", || is_idle(&served));
}

#[test]
fn many_idle_connections_stop_nobody() {
    let served = start(Setup::default());
    let idle: Vec<_> = (0..500)
        .map(|turn: usize| send(&served, if turn.is_multiple_of(2) { b"" } else { b"GET /hea" }))
        .collect();
    let reply = receive(send(&served, &post_bytes("/v1/completions", body(1).as_bytes())));
    assert_eq!(reply.status, 200);
    drop(idle);
}
