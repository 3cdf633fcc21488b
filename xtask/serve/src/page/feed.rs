//! `GET /live/events`: the state of the engine as server-sent events, four a second for each watcher.
//!
//! One task looks at the engine and serves all who watch; it ends when the last of them has gone. The engine spends a
//! moment between two steps for each look, and nobody's connection can hold it up: who reads slowly misses events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use pagoda::{LiveView, SeqId, Snapshot};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::error::ApiError;
use crate::feed::Told;
use crate::metrics::Metrics;
use crate::server::{Server, unix_seconds};

/// Time between two looks at the engine.
const INTERVAL: Duration = Duration::from_millis(250);

/// Time after which watchers are told that a step takes long.
const PATIENCE: Duration = Duration::from_secs(1);

/// An event named `view`.
#[derive(Serialize)]
struct View {
    model: Arc<str>,
    /// Requests that wait for their start, including requests that the engine has not seen yet.
    queued: usize,
    latency: Latency,
    /// Calls that were refused because of the queue, or beyond the limits of their keys.
    refused: u64,
    /// Time since the start of the server, in seconds.
    uptime_s: u64,
    #[serde(flatten)]
    view: LiveView,
}

/// Quantiles of the times of all requests since the start of the server, in seconds; null before the first one.
#[derive(Serialize)]
struct Latency {
    first_p50_s: Option<f64>,
    first_p99_s: Option<f64>,
    between_p50_s: Option<f64>,
    between_p99_s: Option<f64>,
}

impl Latency {
    fn of(metrics: &Metrics) -> Self {
        let (first, between) = (metrics.time_to_first_token.counted(), metrics.inter_token_latency.counted());
        Self {
            first_p50_s: first.quantile(0.5),
            first_p99_s: first.quantile(0.99),
            between_p50_s: between.quantile(0.5),
            between_p99_s: between.quantile(0.99),
        }
    }
}

/// An event named `busy`: the engine is in a long step, and nothing more is known of it.
#[derive(Serialize)]
struct Busy {
    queued: usize,
    /// Time since the last known state, in seconds.
    since_s: f64,
}

/// One who watches.
struct Watcher {
    server: Arc<Server>,
    id: u64,
}

impl Watcher {
    /// Adds a watcher of the live page, who may choose a sequence.
    fn join(server: &Arc<Server>, chosen: Option<SeqId>) -> (Self, watch::Receiver<Told>) {
        let mut watchers = server.feed.watchers();
        let id = watchers.next;
        watchers.next += 1;
        watchers.chosen.extend(chosen.map(|seq| (id, seq)));
        let mut told = match &watchers.latest {
            Some(latest) => latest.subscribe(),
            None => {
                let (latest, told) = watch::channel(None);
                watchers.latest = Some(latest);
                tokio::spawn(look(Arc::clone(server)));
                told
            }
        };
        // What is known already is told at once.
        told.mark_changed();
        (Self { server: Arc::clone(server), id }, told)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.server.feed.watchers().chosen.retain(|(watcher, _)| *watcher != self.id);
    }
}

/// Looks at the engine while the live page has watchers and the server takes calls.
async fn look(server: Arc<Server>) {
    while server.ready().is_ok() {
        let chosen = server.feed.chosen();
        let Ok(mut view) = server.handle.call(move |engine| engine.live_view(&chosen)) else { break };
        let view = loop {
            match timeout(PATIENCE, &mut view).await {
                Ok(view) => break view,
                Err(_) if tell(&server, "busy", &busy(&server)) => {}
                Err(_) => return,
            }
        };
        let Some(view) = view else { break };
        let view = View {
            model: server.options.model_name.as_str().into(),
            queued: server.handle.num_waiting(),
            latency: Latency::of(&server.metrics),
            refused: [&server.metrics.rejected, &server.metrics.limited]
                .map(|count| count.load(Ordering::Relaxed))
                .iter()
                .sum(),
            uptime_s: unix_seconds().saturating_sub(server.created),
            view,
        };
        if !tell(&server, "view", &view) {
            return;
        }
        sleep(INTERVAL).await;
    }
    // Streams end with their sender.
    server.feed.watchers().latest = None;
}

/// Sends an event to all watchers; false, and for good, if none is left.
fn tell(server: &Server, name: &str, event: &impl Serialize) -> bool {
    let json = serde_json::to_string(event).expect("views are JSON");
    let event = Arc::new(sse::Event::default().event(name).data(json));
    let mut watchers = server.feed.watchers();
    let told = watchers.latest.as_ref().is_some_and(|latest| latest.send(Some(event)).is_ok());
    if !told {
        watchers.latest = None;
    }
    told
}

fn busy(server: &Server) -> Busy {
    let snapshot: Arc<Snapshot> = server.handle.snapshot();
    Busy { queued: server.handle.num_waiting(), since_s: snapshot.at.elapsed().as_secs_f64() }
}

/// `GET /live/events?seq=N`: events for a watcher; `seq` chooses a sequence whose block reads are shown.
pub(crate) async fn respond(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    server.ready()?;
    let (watcher, told) = Watcher::join(&server, chosen(&uri)?);
    let events = Events { next: Box::pin(next(told)), _watcher: watcher };
    let pings = KeepAlive::new().interval(server.options.keep_alive).text("ping");
    Ok(Sse::new(events).keep_alive(pings).into_response())
}

/// The sequence that a watcher has chosen.
fn chosen(uri: &Uri) -> Result<Option<SeqId>, ApiError> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(None) };
    match query.split_once('=') {
        Some(("seq", number)) => match number.parse() {
            Ok(number) => Ok(Some(SeqId::new(number))),
            Err(_) => Err(ApiError::field("seq", format!("{number:?} is not the number of a sequence"))),
        },
        _ => Err(ApiError::invalid(format!("?{query} is not known, only ?seq=NUMBER"))),
    }
}

/// The next event, and the source of later ones; `None` after the last one.
type Next = Option<(Arc<sse::Event>, watch::Receiver<Told>)>;

async fn next(mut told: watch::Receiver<Told>) -> Next {
    loop {
        told.changed().await.ok()?;
        let event = told.borrow_and_update().clone();
        if let Some(event) = event {
            return Some((event, told));
        }
    }
}

/// The events of one who watches.
struct Events {
    next: Pin<Box<dyn Future<Output = Next> + Send>>,
    _watcher: Watcher,
}

impl Stream for Events {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.next.as_mut().poll(context) {
            Poll::Ready(Some((event, told))) => {
                self.next = Box::pin(next(told));
                Poll::Ready(Some(Ok((*event).clone())))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_chooses_a_sequence_or_none() {
        let of = |uri: &str| chosen(&uri.parse().unwrap());
        assert_eq!(of("/live/events").unwrap(), None);
        assert_eq!(of("/live/events?seq=17").unwrap(), Some(SeqId::new(17)));
        assert_eq!(of("/live/events?seq=x").unwrap_err().param.as_deref(), Some("seq"));
        assert!(of("/live/events?all").is_err());
    }
}
