//! Reports of the server about itself, and who may ask for them.

use std::sync::Arc;

use serde_json::json;
use serve::{ApiKey, Options};

use crate::client::{get, post, receive, send};
use crate::fixture::{MODEL, Setup, shared, start};

#[test]
fn models_version_and_health_are_told() {
    let served = shared();
    let models = get(served, "/v1/models").ok();
    let card = &models["data"][0];
    assert_eq!(
        (&models["object"], &card["id"], &card["max_model_len"]),
        (&json!("list"), &json!("tiny"), &json!(4096))
    );
    assert_eq!(&get(served, "/v1/models/tiny").ok(), card);
    assert_eq!(get(served, "/v1/models/other/one").refused(404)["code"], "model_not_found");
    assert_eq!(get(served, "/version").ok()["version"], env!("CARGO_PKG_VERSION"));
    for path in ["/health", "/health/ready", "/health/live"] {
        assert_eq!(get(served, path).ok()["status"], "ok");
    }
}

#[test]
fn unknown_routes_and_methods_get_an_error_in_json() {
    let served = shared();
    assert_eq!(get(served, "/v2/chat").refused(404)["message"], "there is no /v2/chat");
    assert_eq!(post(served, "/health", &json!({})).refused(405)["message"], "/health does not take POST");
    assert_eq!(get(served, "/v1/chat/completions").refused(405)["type"], "invalid_request_error");
}

#[test]
fn requests_have_ids_that_replies_repeat() {
    let served = shared();
    let ask = |head: &str| {
        receive(send(
            served,
            format!("GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{head}\r\n").as_bytes(),
        ))
    };
    assert_eq!(ask("x-request-id: mine-7\r\n").header("x-request-id"), Some("mine-7"));
    let [one, two] =
        [ask(""), ask("x-request-id:\r\n")].map(|reply| reply.header("x-request-id").unwrap().to_owned());
    assert!(one.len() == 32 && two.len() == 32 && one != two, "{one} {two}");
}

#[test]
fn a_server_with_keys_asks_for_one() {
    let mut options = Options::new(Arc::clone(&MODEL), "tiny");
    options.api_keys = ["key-first", "key-second"].map(ApiKey::new).into();
    assert!(!format!("{options:?}").contains("key-first"), "a key is in the debug text");
    let served = start(Setup { options, ..Setup::default() });
    let ask = |head: &str| {
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{head}\r\n");
        receive(send(&served, head.as_bytes()))
    };
    for key in ["authorization: Bearer key-second", "x-api-key: key-first"] {
        ask(&format!("{key}\r\n")).ok();
    }
    for key in ["", "authorization: Bearer third\r\n", "x-api-key: \r\n"] {
        let error = ask(key).refused(401);
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("authentication_error"), &json!("invalid_api_key"))
        );
    }
    // Anthropic's clients read errors of another shape.
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let reply = get(&served, path);
        assert_eq!((reply.status, &reply.json()["type"]), (401, &json!("error")), "{path}");
        assert_eq!(reply.json()["error"]["type"], "authentication_error");
    }
    // Routers ask for health without a key, and nothing else is open, not even what does not exist.
    get(&served, "/health").ok();
    assert_eq!(get(&served, "/metrics").status, 401);
    assert_eq!(get(&served, "/healthy").status, 401);
}
