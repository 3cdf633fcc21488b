//! Serves connections until a signal says to stop.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use pagoda::{Replicas, Shutdown};
use tokio::runtime;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::Service;
use crate::connections::{Connections, connection};
use crate::listener::{Accepting, Listener};
use crate::options::Options;
use crate::signals::{Hangup, Signals};

/// Time in which the last bytes of the last answers may be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that the engine's step and the tasks of the runtime get when the process ends.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;

/// Why a server stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// The server was told to stop, and all requests were answered.
    Drained,
    /// The server was told to stop, and requests that took longer than the drain timeout were cancelled.
    TimedOut,
    /// The server was told a second time to stop.
    AtOnce,
    /// The engine failed.
    EngineFailed,
}

/// Serves `listener` on a runtime of its own until SIGTERM or Ctrl-C. The first signal drains: new calls get a 503, and
/// running ones have [`Options::drain_timeout`]; the second one ends it at once. `ready` is called once connections are
/// accepted.
///
/// # Errors
/// If the system refuses a runtime, signals or the listener.
pub fn run(
    listener: impl Into<Listener>,
    engines: impl Into<Replicas>,
    options: Options,
    ready: impl FnOnce(),
) -> io::Result<Stopped> {
    let (listener, engines) = (listener.into(), engines.into());
    #[cfg(feature = "otel")]
    let traces = options.traces.clone();
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let stopped = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let (drain_timeout, settings) = (options.drain_timeout, options.connections.clone());
        #[cfg(feature = "kv-events")]
        for publisher in options.kv_events.clone() {
            tokio::spawn(async move {
                if let Err(error) = publisher.run().await {
                    tracing::error!(%error, ?publisher, "events of the KV cache are not published");
                }
            });
        }
        let service = Service::new(engines.clone(), options);
        let (mut hangup, reloaded) = (Hangup::listen()?, service.clone());
        tokio::spawn(async move {
            loop {
                hangup.next().await;
                reloaded.reload();
            }
        });
        let (stop, stopping) = watch::channel(());
        let listener = Accepting::new(listener)?;
        let connections = tokio::spawn(accept(listener, service.router(), settings, closed(stopping)));
        ready();
        let stopped = watch_over(&engines, &service, &mut signals, drain_timeout).await;
        if stopped == Stopped::AtOnce {
            let _ = timeout(EXIT_TIMEOUT, engines.shutdown(Shutdown::Now)).await;
        } else {
            drop(stop);
            let _ = timeout(FLUSH_TIMEOUT, connections).await;
        }
        Ok(stopped)
    });
    // What tasks hold is dropped before the process ends, the device too: one that is closed beside the exit handlers of its
    // driver ends the process by a segmentation fault. Work on the side may still run, and nobody waits for its result.
    runtime.shutdown_timeout(EXIT_TIMEOUT);
    #[cfg(feature = "otel")]
    if let Some(traces) = traces {
        traces.finish();
    }
    stopped
}

/// Waits until the engine ends, or until signals end the server.
async fn watch_over(
    engines: &Replicas,
    service: &Service,
    signals: &mut Signals,
    drain_timeout: Duration,
) -> Stopped {
    tokio::select! {
        () = engines.ended() => return Stopped::EngineFailed,
        () = signals.next() => service.drain(),
    }
    let running: usize = engines.engines().iter().map(|engine| engine.snapshot().running.len()).sum();
    let waiting = engines.num_waiting();
    info!(running, waiting, seconds = drain_timeout.as_secs(), "draining: no more calls are taken");
    let drained = engines.shutdown(Shutdown::Drain);
    tokio::select! {
        () = drained => Stopped::Drained,
        () = signals.next() => Stopped::AtOnce,
        () = sleep(drain_timeout) => tokio::select! {
            () = engines.shutdown(Shutdown::Now) => Stopped::TimedOut,
            () = signals.next() => Stopped::AtOnce,
        }
    }
}

async fn closed(mut stopping: watch::Receiver<()>) {
    while stopping.changed().await.is_ok() {}
}

/// Serves the connections of `listener` until `stop` completes, then finishes the requests that have begun. HTTP/1.1 and
/// HTTP/2 are told apart by their first bytes. Connections that send no headers are closed after 30 seconds.
///
/// # Errors
/// If the system refuses the listener.
pub async fn serve(
    listener: impl Into<Listener>,
    router: Router,
    settings: Connections,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    accept(Accepting::new(listener.into())?, router, settings, stop).await;
    Ok(())
}

async fn accept(listener: Accepting, router: Router, settings: Connections, stop: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Each connection holds a receiver: it hears of the end, and its own end is heard of.
    let (stopping, stopped) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let Ok(stream) = stream else {
            // Out of file descriptors, most likely: some will be closed.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (router, settings, stopped) = (router.clone(), settings.clone(), stopped.clone());
        tokio::spawn(async move {
            // A connection that breaks concerns nobody else.
            let _ = connection(stream, router, &settings, stopped).await;
            drop(place);
        });
    }
    drop(stopped);
    let _ = stopping.send(());
    stopping.closed().await;
}
