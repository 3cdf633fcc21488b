//! Replies in JSON.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

/// Header that names the fields of a call that changed nothing.
const IGNORED: HeaderName = HeaderName::from_static("x-pagoda-ignored");

/// Adds a header to a reply. The header names the fields of the call that changed nothing.
pub(crate) fn with_ignored(mut reply: Response, ignored: &[String]) -> Response {
    if let Ok(names) = HeaderValue::from_str(&ignored.join(", "))
        && !ignored.is_empty()
    {
        reply.headers_mut().insert(IGNORED, names);
    }
    reply
}

/// A reply with `value` as its body.
pub(crate) fn json(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("replies are JSON");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A part of a reply.
pub(crate) fn value(part: &impl Serialize) -> Value {
    serde_json::to_value(part).expect("replies are JSON")
}
