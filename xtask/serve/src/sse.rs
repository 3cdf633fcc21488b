//! Streams of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use pagoda::Event;
use serde::Serialize;

use crate::error::ApiError;
use crate::running::Running;

/// Tells nginx not to keep events back.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Converts the events of a call's requests to events of an API.
pub(crate) trait Frames: Send + Unpin + 'static {
    /// Adds the events that an event of a prompt leads to.
    ///
    /// # Errors
    /// The error with which the stream ends.
    fn event(&mut self, prompt: usize, event: Event, out: &mut Out) -> Result<(), ApiError>;

    /// Ends a stream that went well.
    fn end(&mut self, out: &mut Out);

    /// Ends a stream that failed.
    fn fail(&mut self, error: &ApiError, out: &mut Out);
}

/// Events that are to be sent.
#[derive(Debug, Default)]
pub(crate) struct Out(VecDeque<sse::Event>);

impl Out {
    /// Adds an event without a name.
    pub(crate) fn json(&mut self, value: &impl Serialize) {
        self.text(&serde_json::to_string(value).expect("replies are JSON"));
    }

    /// Adds an event with a name.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.named_text(name, &serde_json::to_string(value).expect("replies are JSON"));
    }

    /// Adds an event with a name.
    pub(crate) fn named_text(&mut self, name: &str, text: &str) {
        self.0.push_back(sse::Event::default().event(name).data(text));
    }

    /// Adds an event without a name.
    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_back(sse::Event::default().data(text));
    }
}

/// A stream of the events of `running`.
pub(crate) fn respond(running: Running, frames: impl Frames, keep_alive: Duration) -> Response {
    let body = Body { running: Some(running), frames, out: Out::default() };
    let pings = KeepAlive::new().interval(keep_alive).text("ping");
    let mut response = Sse::new(body).keep_alive(pings).into_response();
    response.headers_mut().insert(UNBUFFERED, HeaderValue::from_static("no"));
    response
}

struct Body<F> {
    /// `None` after the last event.
    running: Option<Running>,
    frames: F,
    out: Out,
}

impl<F: Frames> Stream for Body<F> {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { running, frames, out } = &mut *self;
        loop {
            if let Some(event) = out.0.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let Some(streams) = running else { return Poll::Ready(None) };
            let Poll::Ready(next) = Pin::new(streams).poll_next(context) else { return Poll::Pending };
            let result = match next {
                Some(Ok((prompt, event))) => frames.event(prompt, event, out),
                Some(Err(error)) => Err(error),
                None => {
                    frames.end(out);
                    *running = None;
                    continue;
                }
            };
            if let Err(error) = result {
                frames.fail(&error, out);
                *running = None;
            }
        }
    }
}
