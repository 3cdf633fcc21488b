//! KV that outlives a server, and what is said of it.

use std::io::Read;

use pagoda::{Engine, EngineHandle, HandleOptions, Shutdown};
use serde_json::{Value, json};
use serve::Options;

use crate::client::{post, post_bytes, send};
use crate::fixture::{MODEL, engine_options, listen, slowed, until};

#[test]
fn a_restarted_server_says_where_a_prompt_misses() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = format!("disk={}:64MiB", folder.path().display()).parse().unwrap();
    let options = engine_options(2).kv_tiers(tiers);
    let ask = |prompts: &[&[u32]]| {
        let engine = Engine::open(MODEL.clone(), options.clone()).unwrap();
        let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
        let served = listen(handle.clone(), Options::new(MODEL.clone(), "tiny"));
        let reply = |prompt: &&[u32]| {
            let body = json!({ "token_ids": prompt, "max_tokens": 1 });
            post(&served, "/inference/v1/generate", &body).ok()["pagoda"].clone()
        };
        let replies: Vec<Value> = prompts.iter().map(reply).collect();
        handle.shutdown(Shutdown::Drain).wait();
        replies
    };
    let first: Vec<u32> = (0..100).collect();
    let changed = [&first[..70], &[7; 30]].concat();
    let told = ask(&[&first, &changed]);
    assert_eq!(
        [&told[0]["first_miss"], &told[0]["first_new_token"]],
        [&json!({ "from": 0, "to": 16 }), &Value::Null]
    );
    assert_eq!(
        [&told[1]["first_miss"], &told[1]["first_new_token"]],
        [&json!({ "from": 70, "to": 71 }), &json!(70)]
    );
    let other = [&first[..50], &[7; 50]].concat();
    let told = ask(&[&other, &first]);
    assert_eq!(told[0]["cached_tokens"], json!({ "device": 0, "host": 0, "disk": 48, "remote": 0 }));
    assert_eq!(
        [&told[0]["first_miss"], &told[0]["first_new_token"]],
        [&json!({ "from": 48, "to": 64 }), &Value::Null]
    );
    assert_eq!((&told[1]["first_miss"], &told[1]["first_new_token"]), (&Value::Null, &json!(50)));
}

/// A request that a client broke off is found when it is asked again, by this server and by the next one.
#[test]
fn what_an_aborted_request_computed_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = format!("disk={}:64MiB", folder.path().display()).parse().unwrap();
    let options = engine_options(2).kv_tiers(tiers);
    let serve = || {
        let engine = Engine::open(MODEL.clone(), options.clone()).unwrap();
        let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
        listen(handle, Options::new(MODEL.clone(), "tiny"))
    };
    let prompt: Vec<u32> = (0..100).collect();
    let mut body =
        json!({ "prompt": prompt, "max_tokens": 900, "ignore_eos": true, "stream": true, "temperature": 0 });
    let served = serve();
    let slow = slowed(&served);
    let mut connection = send(&served, &post_bytes("/v1/completions", body.to_string().as_bytes()));
    let mut head = [0; 12];
    connection.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    until("it generates", || served.handle.snapshot().running.iter().any(|seq| seq.tokens >= 132));
    drop(connection);
    until("it has ended", || served.handle.snapshot().running.is_empty());
    drop(slow);
    // The answer so far, as a whole one would have begun.
    (body["max_tokens"], body["stream"], body["return_token_ids"]) = (32.into(), false.into(), true.into());
    let reply = post(&served, "/v1/completions", &body).ok();
    assert_eq!(reply["pagoda"]["cached_tokens"]["device"], 96, "{reply}");
    let answer: Vec<u32> = serde_json::from_value(reply["choices"][0]["token_ids"].clone()).unwrap();
    let prompt = [&prompt[..], &answer, &[7; 4]].concat();
    let retried = json!({ "prompt": prompt, "max_tokens": 1 });
    let cached = |served, tier: &str| {
        post(served, "/v1/completions", &retried).ok()["pagoda"]["cached_tokens"][tier].clone()
    };
    // 128 tokens fill blocks; the KV of the last one that was drawn is not computed.
    assert_eq!(cached(&served, "device"), 128);
    served.handle.shutdown(Shutdown::Drain).wait();
    assert_eq!(cached(&serve(), "disk"), 128);
}
