//! KV that outlives a server, and what is said of it.

use pagoda::{Engine, EngineHandle, HandleOptions, Shutdown};
use serde_json::{Value, json};
use serve::Options;

use crate::client::post;
use crate::fixture::{MODEL, engine_options, listen};

#[test]
fn a_restarted_server_says_where_a_prompt_misses() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = format!("disk={}:64MiB", folder.path().display()).parse().unwrap();
    let options = engine_options(2).kv_tiers(tiers);
    let ask = |prompts: &[&[u32]]| {
        let engine = Engine::open(&MODEL, &options).unwrap();
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
