//! The routes inside of another application: the example of the package.

use pagoda::{Engine, EngineHandle, HandleOptions};
use serde_json::json;
use serve::Options;

use crate::client::{get, post};
use crate::fixture::{MODEL, engine_options, listen_with};

#[path = "../../examples/mount.rs"]
mod example;

#[test]
fn routes_are_mounted_beside_others() {
    let engine = Engine::open(MODEL.clone(), engine_options(2)).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    let options = Options::new(MODEL.clone(), "tiny");
    let served = listen_with(handle, options, example::application);
    let about = get(&served, "/about");
    assert_eq!(
        (about.status, about.text(), about.header("x-library")),
        (200, "A library of fables", Some("fables"))
    );
    let models = get(&served, "/llm/v1/models");
    assert_eq!((&models.ok()["data"][0]["id"], models.header("x-library")), (&json!("tiny"), Some("fables")));
    let body = json!({ "prompt": "the lion", "max_tokens": 3, "stream": true });
    assert_eq!(
        post(&served, "/llm/v1/completions", &body).events().last().map(String::as_str),
        Some("[DONE]")
    );
    assert_eq!(get(&served, "/llm/v1/nothing").refused(404)["code"], "unknown_url");
    assert_eq!(get(&served, "/v1/models").status, 404);
}
