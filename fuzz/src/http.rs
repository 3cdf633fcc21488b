//! Bodies of POST requests, after a line with the path: the server answers, and never with an error of its own.

#[path = "../../xtask/serve/tests/http/tiny.rs"]
mod tiny;

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use pagoda::{Demand, Engine, EngineHandle, EngineOptions, HandleOptions, KvDtype, Model};
use serve::Options;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower_service::Service as _;

/// Time until a client goes away.
const PATIENCE: Duration = Duration::from_millis(100);

/// A server of the tiny Llama.
struct Server {
    runtime: Runtime,
    router: Router,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder for a model");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    tiny::write(folder.path(), &fixtures.join("tiny-llama"));
    let model = Arc::new(Model::open(folder.path()).expect("a model"));
    let demand = Demand::new(4, 1024).longest(256);
    let options = EngineOptions::new().kv_dtype(KvDtype::F32).chunk(64).demand(demand);
    let engine = Engine::open(Arc::clone(&model), options).expect("an engine");
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).expect("a thread");
    let runtime = Runtime::new().expect("a runtime");
    Server { runtime, router: serve::router(handle, Options::new(model, "tiny")) }
});

/// Posts the body, and goes away after a while. Says whether the server took it.
pub fn run(bytes: &[u8]) -> bool {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let body = bytes.get(line + 1..).unwrap_or_default().to_vec();
    let request =
        Request::post(&bytes[..line]).header("content-type", "application/json").body(Body::from(body));
    let Ok(request) = request else { return false };
    let mut router = SERVER.router.clone();
    let answer = SERVER.runtime.block_on(async { timeout(PATIENCE, router.call(request)).await });
    let Ok(Ok(response)) = answer else { return answer.is_err() };
    assert_ne!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    response.status().is_success()
}
