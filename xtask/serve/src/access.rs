//! The access log: one event a call, with what it used. Calls whose handlers panic are answered.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
#[cfg(feature = "otel")]
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
#[cfg(feature = "otel")]
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::FutureExt;
use hyper::body::{Frame, SizeHint};
use tracing::{error, info, warn};

use crate::anthropic;
use crate::call::CallId;
use crate::error::{ApiError, Refused};
use crate::page;
use crate::record::Record;
#[cfg(feature = "otel")]
use crate::server::Server;
#[cfg(feature = "otel")]
use crate::traces::{Begun, Ended};

/// Logs a call at the end of its answer, and answers it by a 500 with its id if its handler panics.
pub(crate) async fn log(mut request: Request, next: Next) -> Response {
    let record = Record::default();
    let (begun, method, path) = (Instant::now(), request.method().clone(), request.uri().path().to_owned());
    let id = request.extensions().get::<CallId>().map_or_else(String::new, |id| id.as_str().to_owned());
    request.extensions_mut().insert(record.clone());
    #[cfg(feature = "otel")]
    let span = request.extensions_mut().remove::<Begun>();
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        let error = ApiError::internal(format!("the server failed at request {id}"));
        anthropic::respond(&path, &error.with_code("panicked"))
    });
    let is_quiet =
        path.starts_with("/health") || path == "/metrics" || path == "/load" || page::is_asset(&path);
    let refused = response.extensions_mut().remove::<Refused>().map(|Refused(reason)| reason);
    if is_quiet && refused.is_none() {
        return response;
    }
    let status = response.status();
    let line = Line {
        record,
        begun,
        id,
        method,
        path,
        status,
        refused,
        #[cfg(feature = "otel")]
        span,
    };
    response.map(|body| Body::new(Logged { body, _line: line }))
}

/// Begins the span of a call, if calls are traced.
#[cfg(feature = "otel")]
pub(crate) async fn trace(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    if let Some(traces) = &server.options.traces {
        let begun = Begun::now(traces, &server.options.model_name, request.headers());
        request.extensions_mut().insert(begun);
    }
    next.run(request).await
}

/// A body that logs its call when it is sent completely or given up.
struct Logged {
    body: Body,
    _line: Line,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Log event of a call, which is written when it is dropped.
struct Line {
    record: Record,
    begun: Instant,
    id: String,
    method: Method,
    path: String,
    status: StatusCode,
    refused: Option<String>,
    #[cfg(feature = "otel")]
    span: Option<Begun>,
}

impl Drop for Line {
    fn drop(&mut self) {
        #[cfg(feature = "otel")]
        if let Some(begun) = &self.span {
            let Self { record, id, method, path, status, refused, .. } = &*self;
            let (refused, tokens, work) = (refused.as_deref(), record.tokens(), record.work());
            Ended { id, method, path, status: *status, refused, tokens, work }.send(begun);
        }
        let Self { record, begun, id, method, path, status, refused, .. } = self;
        let (status, reason, key) = (status.as_u16(), refused.as_deref(), record.key());
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let [prompt_tokens, cached_tokens, output_tokens] =
            record.tokens().map(|tokens| Some(tokens).filter(|tokens| *tokens > 0));
        macro_rules! event {
            ($level:ident) => {
                $level!(
                    target: "pagoda::access",
                    id, %method, path, status, ms, key, prompt_tokens, cached_tokens, output_tokens, reason
                )
            };
        }
        match status {
            500.. => event!(error),
            400.. => event!(warn),
            _ => event!(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;
    use crate::call;

    async fn panics() -> &'static str {
        panic!("a handler's")
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_answered_with_the_id_of_the_call() {
        for (path, kind) in
            [("/v1/completions", r#""type":"server_error""#), ("/v1/messages", r#""type":"error""#)]
        {
            let router =
                Router::new().route(path, get(panics)).layer(from_fn(log)).layer(from_fn(call::identify));
            let request = Request::get(path).header("x-request-id", "unlucky-7").body(Body::empty()).unwrap();
            let response = router.oneshot(request).await.unwrap();
            assert_eq!(
                (response.status().as_u16(), &response.headers()["x-request-id"]),
                (500, &"unlucky-7".parse().unwrap())
            );
            let body = axum::body::to_bytes(response.into_body(), 1 << 10).await.unwrap();
            let body = String::from_utf8(body.to_vec()).unwrap();
            assert!(body.contains("request unlucky-7") && body.contains(kind), "{body}");
        }
    }
}
