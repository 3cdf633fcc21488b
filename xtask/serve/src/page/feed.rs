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
use pagoda::{EngineHandle, LiveView, SeqId};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::error::ApiError;
use crate::feed::{Feed, Told};
use crate::metrics::Metrics;
use crate::server::{Server, unix_seconds};

/// Time between two readings of the engine's state.
const INTERVAL: Duration = Duration::from_millis(250);

/// Time after which watchers are told that a step takes long.
const PATIENCE: Duration = Duration::from_secs(1);

/// An event named `view`.
#[derive(Serialize)]
struct View {
    model: Arc<str>,
    /// Index of the engine, and the number of engines.
    engine: usize,
    engines: usize,
    /// Number of requests that wait for their start, including requests that the engine has not seen yet.
    queued: usize,
    latency: Latency,
    /// Number of calls that were refused because of the queue, or beyond the limits of their keys.
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

/// A watcher of the live page.
struct Watcher {
    server: Arc<Server>,
    engine: usize,
    id: u64,
}

impl Watcher {
    /// Adds a watcher of the live page, who may choose a sequence.
    fn join(server: &Arc<Server>, Watched { engine, seq }: Watched) -> (Self, watch::Receiver<Told>) {
        let mut watchers = server.feeds[engine].watchers();
        let id = watchers.next;
        watchers.next += 1;
        watchers.chosen.extend(seq.map(|seq| (id, seq)));
        let mut told = match &watchers.latest {
            Some(latest) => latest.subscribe(),
            None => {
                let (latest, told) = watch::channel(None);
                watchers.latest = Some(latest);
                tokio::spawn(look(Arc::clone(server), engine));
                told
            }
        };
        // What is known already is told at once.
        told.mark_changed();
        (Self { server: Arc::clone(server), engine, id }, told)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.server.feeds[self.engine].watchers().chosen.retain(|(watcher, _)| *watcher != self.id);
    }
}

/// Reads an engine's state repeatedly and sends it, while the live page has watchers and the server takes calls.
async fn look(server: Arc<Server>, engine: usize) {
    let (handle, feed) = (&server.engines.engines()[engine], &server.feeds[engine]);
    while server.ready().is_ok() {
        let chosen = feed.chosen();
        let Ok(mut view) = handle.call(move |engine| engine.live_view(&chosen)) else { break };
        let view = loop {
            match timeout(PATIENCE, &mut view).await {
                Ok(view) => break view,
                Err(_) if tell(feed, "busy", &busy(handle)) => {}
                Err(_) => return,
            }
        };
        let Some(view) = view else { break };
        let view = View {
            model: server.options.model_name.as_str().into(),
            engine,
            engines: server.engines.engines().len(),
            queued: handle.num_waiting(),
            latency: Latency::of(&server.metrics),
            refused: [&server.metrics.rejected, &server.metrics.limited]
                .map(|count| count.load(Ordering::Relaxed))
                .iter()
                .sum(),
            uptime_s: unix_seconds().saturating_sub(server.created),
            view,
        };
        if !tell(feed, "view", &view) {
            return;
        }
        sleep(INTERVAL).await;
    }
    // Streams end with their sender.
    feed.watchers().latest = None;
}

/// Sends an event to all watchers. If no watcher is left, closes the feed and returns false.
fn tell(feed: &Feed, name: &str, event: &impl Serialize) -> bool {
    let json = serde_json::to_string(event).expect("views are JSON");
    let event = Arc::new(sse::Event::default().event(name).data(json));
    let mut watchers = feed.watchers();
    let told = watchers.latest.as_ref().is_some_and(|latest| latest.send(Some(event)).is_ok());
    if !told {
        watchers.latest = None;
    }
    told
}

fn busy(engine: &EngineHandle) -> Busy {
    let snapshot = engine.snapshot();
    Busy { queued: engine.num_waiting(), since_s: snapshot.at.elapsed().as_secs_f64() }
}

/// `GET /live/events?engine=N&seq=N`: events of an engine for a watcher, by default of the first one; `seq` chooses a sequence
/// whose block reads are shown.
pub(crate) async fn respond(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    server.ready()?;
    let (watcher, told) = Watcher::join(&server, watched(&uri, server.engines.engines().len())?);
    let events = Events { next: Box::pin(next(told)), _watcher: watcher };
    let pings = KeepAlive::new().interval(server.options.keep_alive).text("ping");
    Ok(Sse::new(events).keep_alive(pings).into_response())
}

/// The engine and the sequence that a watcher sees.
#[derive(Debug, Default, PartialEq)]
struct Watched {
    engine: usize,
    /// The sequence whose block reads are shown.
    seq: Option<SeqId>,
}

fn watched(uri: &Uri, num_engines: usize) -> Result<Watched, ApiError> {
    let mut watched = Watched::default();
    for part in uri.query().into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty()) {
        let number = |name: &str, text: &str, what: &str| {
            text.parse::<u64>()
                .map_err(|_| ApiError::field(name, format!("{text:?} is not the number of {what}")))
        };
        match part.split_once('=') {
            Some(("seq", text)) => watched.seq = Some(SeqId::new(number("seq", text, "a sequence")?)),
            Some(("engine", text)) => {
                let engine = usize::try_from(number("engine", text, "an engine")?).unwrap_or(usize::MAX);
                if engine >= num_engines {
                    let message = format!("there is no engine {engine}, the last one is {}", num_engines - 1);
                    return Err(ApiError::field("engine", message));
                }
                watched.engine = engine;
            }
            _ => {
                let message = format!("?{part} is not known, only ?seq=NUMBER and ?engine=NUMBER");
                return Err(ApiError::invalid(message));
            }
        }
    }
    Ok(watched)
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

/// The events of one watcher.
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
    fn a_watcher_chooses_an_engine_and_a_sequence_or_neither() {
        let of = |uri: &str| watched(&uri.parse().unwrap(), 2);
        assert_eq!(of("/live/events").unwrap(), Watched::default());
        let seq = Some(SeqId::new(17));
        assert_eq!(of("/live/events?seq=17").unwrap(), Watched { engine: 0, seq });
        assert_eq!(of("/live/events?engine=1&seq=17").unwrap(), Watched { engine: 1, seq });
        assert_eq!(of("/live/events?seq=x").unwrap_err().param.as_deref(), Some("seq"));
        assert_eq!(of("/live/events?engine=2").unwrap_err().param.as_deref(), Some("engine"));
        assert!(of("/live/events?all").is_err());
    }
}
