//! A model whose logits are no numbers: errors, whole or in mid-stream, from a server that goes on.

use std::fs;
use std::sync::Arc;

use pagoda::{Engine, EngineHandle, HandleOptions, Model};
use serde_json::{Value, json};
use serve::Options;

use crate::client::{get, post, post_bytes, receive, send};
use crate::fixture::{Served, engine_options, listen, model_folder, until};

/// The tiny model with a matrix of NaN.
fn poisoned() -> Model {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(model_folder().join(name), folder.path().join(name)).unwrap();
    }
    let mut file = fs::read(model_folder().join("model.safetensors")).unwrap();
    let header = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let tensors: Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
    let offset = |at: usize| {
        usize::try_from(tensors["model.layers.0.mlp.down_proj.weight"]["data_offsets"][at].as_u64().unwrap())
            .unwrap()
    };
    for value in file[8 + header..][offset(0)..offset(1)].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    Model::open(folder.path()).unwrap()
}

fn serve() -> Served {
    let model = Arc::new(poisoned());
    let engine = Engine::open(Arc::clone(&model), engine_options(4)).unwrap();
    listen(EngineHandle::spawn(engine, HandleOptions::default()).unwrap(), Options::new(model, "tiny"))
}

#[test]
fn requests_end_with_an_error_and_the_server_goes_on() {
    let served = serve();
    for _ in 0..2 {
        let body = json!({ "prompt": [5, 6, 7], "max_tokens": 4 });
        let reply = post(&served, "/v1/completions", &body);
        let of_request = format!(" (request {})", reply.header("x-request-id").unwrap());
        let error = reply.refused(500);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("non-finite logits in step ") && message.ends_with(&of_request),
            "{message}"
        );
        assert_eq!(error["type"], "server_error");
    }
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "the text" }], "max_tokens": 4, "stream": true });
    let events =
        receive(send(&served, &post_bytes("/v1/chat/completions", body.to_string().as_bytes()))).events();
    let told = events.iter().filter(|event| event.contains("non-finite logits in step ")).count();
    assert_eq!(told, 1, "{events:?}");
    let metrics = get(&served, "/metrics").text().to_owned();
    assert!(metrics.contains("pagoda"), "{metrics}");
    until("all are counted", || served.handle.snapshot().totals.failed == 3);
    let totals = served.handle.snapshot().totals;
    assert_eq!((totals.stopped, totals.length), (0, 0));
}
