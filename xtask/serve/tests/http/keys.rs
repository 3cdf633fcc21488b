//! API keys: whose prefixes are whose, and how much each may use.

use std::sync::Arc;

use serde_json::{Value, json};
use serve::{ApiKey, Options};

use crate::client::{Reply, get, receive, send};
use crate::fixture::{MODEL, Served, Setup, start};

fn serve_keys(file: &str) -> Served {
    let mut options = Options::new(Arc::clone(&MODEL), "tiny");
    options.api_keys = ApiKey::read_all(file).unwrap();
    start(Setup { options, ..Setup::default() })
}

fn complete(served: &Served, key: &str, fields: &Value) -> Reply {
    let mut body = json!({ "prompt": vec![9; 100], "max_tokens": 2, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\n\
         authorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    receive(send(served, head.as_bytes()))
}

#[test]
fn keys_find_their_own_prefixes_unless_they_share() {
    let served = serve_keys("a\nb\nc share-prefixes\nd share-prefixes");
    let cached = |key, fields| {
        let reply = complete(&served, key, &fields).ok();
        let told = &reply["pagoda"]["first_new_token"];
        assert!(told.is_null(), "key {key} learns of the prompts of others: {told}");
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!([cached("a", json!({})), cached("a", json!({}))], [0, 96]);
    assert_eq!([cached("b", json!({})), cached("b", json!({ "cache_salt": "x" }))], [0, 0]);
    assert_eq!([cached("c", json!({})), cached("d", json!({}))], [0, 96]);
    assert_eq!(cached("d", json!({ "cache_salt": "x" })), 0);
}

#[test]
fn a_key_with_limits_is_told_and_held_to_them() {
    let served = serve_keys("few requests-per-minute=2\nshort tokens-per-minute=51\nfree");
    let first = complete(&served, "few", &json!({}));
    let told = |reply: &Reply, name: &str| reply.header(&format!("x-ratelimit-{name}")).map(str::to_owned);
    assert_eq!(told(&first, "limit-requests").as_deref(), Some("2"));
    assert_eq!(
        (told(&first, "remaining-requests").as_deref(), told(&first, "limit-tokens")),
        (Some("1"), None)
    );
    first.ok();
    complete(&served, "few", &json!({})).ok();
    let refused = complete(&served, "few", &json!({}));
    let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31).contains(&wait), "{wait}");
    assert_eq!(told(&refused, "remaining-requests").as_deref(), Some("0"));
    let error = refused.refused(429);
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limit_exceeded")));

    complete(&served, "short", &json!({})).ok();
    let refused = complete(&served, "short", &json!({}));
    assert_eq!(told(&refused, "remaining-tokens").as_deref(), Some("0"));
    assert!(refused.refused(429)["message"].as_str().unwrap().contains("51 tokens a minute"));

    let free = complete(&served, "free", &json!({}));
    assert!(told(&free, "limit-requests").is_none() && told(&free, "limit-tokens").is_none());
    free.ok();
    get(&served, "/health").ok();
}

#[test]
fn bodies_have_a_bound_together() {
    let mut options = Options::new(Arc::clone(&MODEL), "tiny");
    options.max_held_bytes = 64 << 10;
    let served = start(Setup { options, ..Setup::default() });
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 90000\r\n\r\n";
    let half = [head.as_bytes(), &[b' '; 40_000]].concat();
    let body = vec![b' '; 40_000];
    let head = head.replace("90000", "40000");
    let mut waiting = None;
    crate::fixture::until("there is no room", || {
        // Half of a body arrives, and stays, unless the other body took its room before.
        waiting = Some(send(&served, &half));
        let reply = receive(send(&served, &[head.as_bytes(), &body].concat()));
        reply.status == 503 && reply.refused(503)["code"] == "overloaded"
    });
    drop(waiting);
    crate::fixture::until("there is room", || {
        receive(send(&served, &[head.as_bytes(), &body].concat())).status == 400
    });
}
