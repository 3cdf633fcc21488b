//! Refuses calls without an accepted API key.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::error::ApiError;
use crate::record::Record;
use crate::server::Server;
use crate::{anthropic, page};

/// Refuses calls without an accepted key, except calls about the server's health and calls for files of the page.
pub(crate) async fn check(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path == "/health" || path.starts_with("/health/") || page::is_asset(path) {
        return next.run(request).await;
    }
    let Some(client) = server.client(request.headers()) else {
        let message = "the API key is missing or unknown: send it as Authorization: Bearer KEY";
        let error = ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key");
        let mut response = anthropic::respond(path, &error);
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    };
    if let Some((name, record)) = client.name().zip(request.extensions().get::<Record>()) {
        record.set_key(name);
    }
    request.extensions_mut().insert(client.clone());
    let mut response = next.run(request).await;
    client.tell_limits(response.headers_mut());
    response
}
