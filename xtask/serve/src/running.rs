//! The requests of a call while they run: their events, merged.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_core::Stream;
use pagoda::{Event, FinishReason, Finished, ReplicaStream, Request};

use crate::call::{Call, Caller};
use crate::error::ApiError;
use crate::server::Server;

/// The requests of a call, one for each prompt. Dropping the value cancels them; their unread events are still
/// counted and charged.
#[derive(Debug)]
pub(crate) struct Running {
    server: Arc<Server>,
    caller: Caller,
    /// Time at which the last token of each sequence came, by prompt and sample.
    last: HashMap<(usize, u32), Instant>,
    /// Streams of events of the requests; `None` after the last event.
    streams: Vec<Option<ReplicaStream>>,
    /// Index of the next stream to poll, so that no prompt waits for the others.
    turn: usize,
}

impl Running {
    /// Submits the requests and waits until the engine has accepted all of them or refused one. Before that, the call
    /// gives back the memory of its body and its place among the calls in preparation, because the requests have places
    /// of their own in the queue. `input` is the field of the prompts, which errors about prompts name.
    pub(crate) async fn start(
        server: &Arc<Server>,
        requests: Vec<Request>,
        call: Call,
        input: &str,
    ) -> Result<Self, ApiError> {
        Self::submit(server, requests, &call.caller(), input).await
    }

    /// Submits requests of a caller whose call has given back its place.
    pub(crate) async fn submit(
        server: &Arc<Server>,
        requests: Vec<Request>,
        caller: &Caller,
        input: &str,
    ) -> Result<Self, ApiError> {
        let refused = |error: pagoda::Error| ApiError::from(error).of_input(input);
        let submit = |mut request: Request| {
            request.id = Some(caller.id.of_requests());
            request.salt = caller.client.salt(request.salt.as_deref());
            #[cfg(feature = "otel")]
            caller.record.work().submitted(&request);
            server.engines.submit(request).map(Some).map_err(refused)
        };
        let mut streams = requests.into_iter().map(submit).collect::<Result<Vec<_>, _>>()?;
        for stream in streams.iter_mut().flatten() {
            stream.accepted().await.map_err(refused)?;
        }
        Ok(Self {
            server: Arc::clone(server),
            caller: caller.clone(),
            last: HashMap::new(),
            streams,
            turn: 0,
        })
    }

    /// Counts an event of a prompt, and charges its tokens to the client.
    fn count(&mut self, prompt: usize, event: &Event) {
        let metrics = &self.server.metrics;
        match event {
            Event::Started(started) => self.caller.client.use_tokens(started.prompt_tokens as usize),
            Event::Token(token) => {
                self.caller.client.use_tokens(1);
                if let Some(before) = self.last.insert((prompt, token.sample), token.at) {
                    metrics.token_after(token.at - before);
                }
            }
            Event::Finished(end) => {
                metrics.finished(end);
                #[cfg(feature = "otel")]
                self.caller.record.work().finished(end);
            }
            _ => {}
        }
    }

    /// The next event and the index of its prompt; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Running {
    type Item = Result<(usize, Event), ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (count, first) = (self.streams.len(), self.turn);
        let mut open = false;
        for at in (first..count).chain(0..first) {
            let Some(stream) = &mut self.streams[at] else { continue };
            match Pin::new(stream).poll_next(context) {
                Poll::Ready(Some(event)) => {
                    self.turn = (at + 1) % count;
                    event.iter().for_each(|event| self.count(at, event));
                    let checked = |event: Event| lost(&event).map_or(Ok((at, event)), Err);
                    return Poll::Ready(Some(event.map_err(ApiError::from).and_then(checked)));
                }
                Poll::Ready(None) => self.streams[at] = None,
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(_)) = Pin::new(&mut *self).poll_next(&mut context) {}
    }
}

/// Returns the reason why a sequence ended unfinished, if it did.
fn lost(event: &Event) -> Option<ApiError> {
    let Event::Finished(end) = event else { return None };
    let Finished { id, reason, .. } = &**end;
    match reason {
        FinishReason::Deadline => Some(ApiError::timeout()),
        FinishReason::Cancelled => Some(ApiError::ending()),
        reason => reason.error().map(|error| ApiError::internal(format!("{error} (request {id})"))),
    }
}
