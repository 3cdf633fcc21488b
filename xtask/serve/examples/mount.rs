//! The routes of the server inside of an axum application, which has others beside them and a layer of its own.
//!
//! `cargo run --release -p pagoda-serve --example mount`, then `curl localhost:8080/llm/v1/models`

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use pagoda::EngineHandle;
use serve::Options;

#[cfg(not(test))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use pagoda::{Demand, Engine, EngineOptions, HandleOptions, Model};
    use std::sync::Arc;

    let model = Arc::new(Model::fetch_default(|_| {})?);
    let demand = Demand::new(8, 32_768).longest(8192);
    let engine = Engine::open(Arc::clone(&model), EngineOptions::new().demand(demand))?;
    let handle = EngineHandle::spawn(engine, HandleOptions::default())?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:8080")?;
        let stop = handle.ended();
        let application = application(handle.clone(), Options::new(model, "my-model"));
        serve::serve(listener, application, serve::Connections::default(), stop).await?;
        Ok(())
    })
}

/// An application that answers `/about` itself, and everything below `/llm` with the engine.
pub(crate) fn application(handle: EngineHandle, options: Options) -> Router {
    Router::new()
        .route("/about", get(|| async { "A library of fables" }))
        .nest("/llm", serve::router(handle, options))
        .layer(from_fn(signed))
}

/// Marks every reply.
async fn signed(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert("x-library", "fables".parse().expect("a header's value"));
    response
}
