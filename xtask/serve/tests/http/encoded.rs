//! Bodies that come compressed.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::client::{Reply, post, receive, send};
use crate::fixture::{Served, Setup, shared, start};

const PATH: &str = "/v1/completions";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn post_encoded(encoding: &str, body: &[u8]) -> Reply {
    post_encoded_to(shared(), encoding, body)
}

fn post_encoded_to(served: &Served, encoding: &str, body: &[u8]) -> Reply {
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-encoding: {encoding}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    receive(send(served, &[head.as_bytes(), body].concat()))
}

#[test]
fn compressed_bodies_are_those_that_they_hold() {
    let body = json!({ "prompt": "the hare", "max_tokens": 8, "temperature": 0 });
    let plain = post(shared(), PATH, &body).ok();
    let text = body.to_string();
    for reply in [post_encoded("gzip", &gzip(text.as_bytes())), post_encoded("identity", text.as_bytes())] {
        assert_eq!(reply.ok()["choices"], plain["choices"]);
    }
}

#[test]
fn other_encodings_are_refused() {
    for encoding in ["br", "zstd", "gzip, gzip", "x"] {
        let error = post_encoded(encoding, b"{}").refused(415);
        assert_eq!(error["message"], format!("content-encoding is {encoding:?}, it must be gzip or none"));
    }
}

#[test]
fn what_is_not_compressed_as_it_says_is_refused() {
    let whole = gzip(br#"{"prompt":"the hare"}"#);
    let mut wrong = whole.clone();
    wrong[15] ^= 0xff;
    for body in [&b"{\"prompt\":\"the hare\"}"[..], &whole[..whole.len() - 4], &wrong, b""] {
        let error = post_encoded("gzip", body).refused(400);
        assert!(error["message"].as_str().unwrap().starts_with("the body "), "{error}");
    }
}

/// A body of 64 MiB in 64 KiB: its bound is that of what comes out, and so is its part of the memory for all bodies.
#[test]
fn bombs_end_at_the_bound_of_a_body() {
    let bomb = gzip(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 100_000);
    let error = post_encoded("gzip", &bomb).refused(413);
    assert_eq!(error["message"], "the body has more than 4194304 bytes, the limit is 4194304");
    // What was held is given back.
    let mut setup = Setup::default();
    setup.options.max_held_bytes = setup.options.max_body_bytes;
    let served = start(setup);
    for _ in 0..3 {
        post_encoded_to(&served, "gzip", &bomb).refused(413);
        post(&served, PATH, &json!({ "prompt": "the hare", "max_tokens": 1 })).ok();
    }
}
