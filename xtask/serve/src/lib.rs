#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod about;
mod access;
mod answering;
mod anthropic;
mod authorize;
mod bodies;
mod call;
mod comparison;
mod connections;
mod embedding;
mod engine_use;
mod error;
mod feed;
mod fields;
mod generate;
mod generation;
mod hand_over;
mod host;
mod ids;
mod keys;
#[cfg(feature = "kv-events")]
mod kv_events;
mod kv_source;
mod limits;
mod listener;
mod metrics;
mod openai;
mod options;
mod output_format;
mod page;
mod prompt;
mod record;
mod reply;
mod rerank;
mod routes;
mod run;
mod running;
mod server;
mod signals;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod tools;
#[cfg(feature = "otel")]
mod traces;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use pagoda::Replicas;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;

use error::ApiError;
use routes::{Route, routes};
use server::Server;

pub use connections::Connections;
pub use keys::{ApiKey, ApiKeyError};
#[cfg(feature = "kv-events")]
pub use kv_events::{KvPublisher, KvPublisherError};
pub use listener::Listener;
pub use metrics::MetricsNames;
pub use options::Options;
pub use run::{Stopped, run, serve};
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(feature = "otel")]
pub use traces::{Traces, TracesError};

/// A server that can be mounted in another one and drained.
#[derive(Debug, Clone)]
pub struct Service(Arc<Server>);

impl Service {
    /// A server that answers calls with one engine or with several.
    #[must_use]
    pub fn new(engines: impl Into<Replicas>, options: Options) -> Self {
        Self(Arc::new(Server::new(engines.into(), options)))
    }

    /// Refuses new calls with a 503 from now on, so that routers send them elsewhere. Running calls continue.
    pub fn drain(&self) {
        self.0.drain();
    }

    /// Reads the file of API keys and the certificate again, as at SIGHUP.
    pub fn reload(&self) {
        self.0.reload();
    }

    /// All routes.
    pub fn router(&self) -> Router {
        let add = |router: Router<_>, Route { path, handler, .. }| router.route(path, handler);
        let router = routes()
            .into_iter()
            .fold(page::routes(), add)
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            // Other encodings are refused where bodies are read. What comes out has the bounds of a body, whatever came in.
            .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
            .layer(from_fn_with_state(Arc::clone(&self.0), authorize::check))
            .layer(cors(&self.0.options.allowed_origins))
            .layer(from_fn_with_state(Arc::clone(&self.0), host::check))
            .layer(from_fn(access::log));
        #[cfg(feature = "otel")]
        let router = router.layer(from_fn_with_state(Arc::clone(&self.0), access::trace));
        router.layer(from_fn(call::identify)).with_state(Arc::clone(&self.0))
    }
}

/// Layer that tells browsers whether pages of other origins may call.
fn cors(origins: &[String]) -> CorsLayer {
    let listed = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    let origins = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(listed)
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods(AllowMethods::any())
        .allow_headers(AllowHeaders::any())
}

/// The routes of a server with an engine, or with several, to be mounted in another one.
pub fn router(engines: impl Into<Replicas>, options: Options) -> Router {
    Service::new(engines, options).router()
}

async fn unknown(uri: Uri) -> Response {
    let message = format!("there is no {}", uri.path());
    let error = ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_url");
    anthropic::respond(uri.path(), &error)
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let message = format!("{} does not take {method}", uri.path());
    anthropic::respond(uri.path(), &ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message))
}
