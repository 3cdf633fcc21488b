//! The live page: a chat, and the engine as it runs.
//!
//! The page is part of the program, and asks no other address for anything. What it shows comes from [`/live/events`](feed),
//! which does nothing without watchers.

mod feed;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use axum::routing::get;

use crate::server::Server;

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($path:literal, $file:literal, $content_type:expr) => {
        Asset { path: $path, content_type: $content_type, text: include_str!(concat!("../assets/", $file)) }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", "page.html", "text/html; charset=utf-8"),
    asset!("/live/page.css", "page.css", "text/css; charset=utf-8"),
    asset!("/live/icon.svg", "icon.svg", "image/svg+xml"),
    asset!("/live/page.mjs", "page.mjs", SCRIPT),
    asset!("/live/chat.mjs", "chat.mjs", SCRIPT),
    asset!("/live/chats.mjs", "chats.mjs", SCRIPT),
    asset!("/live/markdown.mjs", "markdown.mjs", SCRIPT),
    asset!("/live/engine.mjs", "engine.mjs", SCRIPT),
    asset!("/live/draw.mjs", "draw.mjs", SCRIPT),
    asset!("/live/history.mjs", "history.mjs", SCRIPT),
    asset!("/live/key.mjs", "key.mjs", SCRIPT),
    asset!("/live/sse.mjs", "sse.mjs", SCRIPT),
];

/// Content security policy: the page loads only its own files, and no other page may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of all files of the page.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // The next version of the program has another page.
    (header::CACHE_CONTROL, "no-cache"),
];

/// Whether a path is the path of a file of the page. These files need no API key: the page contains no secret, and
/// asks the user for the key.
pub(crate) fn is_asset(path: &str) -> bool {
    ASSETS.iter().any(|asset| asset.path == path)
}

/// Routes of the page and of its events.
pub(crate) fn routes() -> Router<Arc<Server>> {
    let router = Router::new().route("/live/events", get(feed::respond));
    ASSETS.iter().fold(router, |router, asset| router.route(asset.path, get(|| async { respond(asset) })))
}

fn respond(asset: &'static Asset) -> Response {
    let mut response = Response::new(Body::from(asset.text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}
