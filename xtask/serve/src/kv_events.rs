//! KV events for routers, as vLLM publishes them: what the KV cache of an engine holds, over ZeroMQ. Each engine of a server has
//! its own, as the data-parallel ranks of vLLM do.
//!
//! One socket (PUB) sends every batch of events to all subscribers, another one (ROUTER) sends the last batches again to who asks
//! for them. No reader can hold up the engine or another reader: a subscriber that is slow loses events, which it sees by the
//! numbers of the batches, and asks for them.

mod replay;
mod wire;

use std::fmt;
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use pagoda::Engine;
use pagoda::kv_events::{CacheEvent, KvCacheGroup};
use tokio::sync::mpsc;
use tracing::error;
use zeromq::{PubSocket, RouterSocket, Socket as _, SocketSend as _, ZmqMessage};

use crate::kv_source::KvEventSource;
use replay::Replay;

/// Maximum number of batches between the engine and the socket. Further batches are lost, which leaves a gap in the
/// numbers of batches.
const MAX_QUEUED: usize = 100_000;

/// Events of one step.
struct Batch {
    seq: u64,
    /// Seconds since 1970.
    ts: f64,
    events: Vec<CacheEvent>,
}

/// Publisher of the changes of one engine's KV cache in vLLM's form, for [`Options::kv_events`](crate::Options::kv_events). It
/// must [follow](Self::follow) the engine. Clones are one publisher.
#[derive(Clone)]
pub struct KvPublisher(Arc<Inner>);

struct Inner {
    source: KvEventSource,
    /// The bound sockets; `None` once the publisher runs.
    sockets: Mutex<Option<Sockets>>,
    /// The batches of the engine that the publisher follows; `None` if it follows none, and once it runs.
    batches: Mutex<Option<Batches>>,
}

struct Sockets {
    listener: TcpListener,
    replay: Option<TcpListener>,
}

struct Batches {
    queue: mpsc::Receiver<Batch>,
    /// Number of the first batch.
    first: u64,
    groups: Vec<KvCacheGroup>,
}

impl fmt::Debug for KvPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KvPublisher").field(&self.0.source).finish()
    }
}

/// Why events cannot be published at an endpoint.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum KvPublisherError {
    /// The endpoint is not of the form `tcp://HOST:PORT`.
    #[error("{endpoint:?} is not tcp://HOST:PORT, such as tcp://127.0.0.1:5557 or tcp://*:5557")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
    },
    /// The sum of the endpoint's port and the engine's number exceeds the last port.
    #[error("engine {rank} has no port: it is that of {endpoint} and {rank}, and the last port is 65535")]
    Port {
        /// The endpoint of engine 0.
        endpoint: String,
        /// Number of the engine.
        rank: u16,
    },
    /// The system refused the endpoint.
    #[error("cannot listen at {endpoint}")]
    Bind {
        /// The endpoint.
        endpoint: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl KvPublisher {
    /// Listens at `endpoint` for subscribers, and at `replay` for those that missed batches. Every message begins with `topic`.
    /// The engine is number `rank` among those of the server: as in vLLM, this is added to both ports.
    ///
    /// # Errors
    /// If an endpoint is not `tcp://HOST:PORT`, has no port for the rank, or the system refuses it.
    pub fn bind(
        endpoint: &str,
        replay: Option<&str>,
        topic: &str,
        rank: u16,
    ) -> Result<Self, KvPublisherError> {
        let (listener, endpoint) = listen(endpoint, rank)?;
        let (replay, replay_endpoint) = replay.map(|replay| listen(replay, rank)).transpose()?.unzip();
        let source =
            KvEventSource { data_parallel_rank: rank, endpoint, replay_endpoint, topic: topic.to_owned() };
        let sockets = Mutex::new(Some(Sockets { listener, replay }));
        Ok(Self(Arc::new(Inner { source, sockets, batches: Mutex::default() })))
    }

    /// Follows an engine, whose events it publishes once it [runs](Self::run). The events of an engine that it followed
    /// before are no longer published.
    ///
    /// # Panics
    /// As [`Engine::follow`].
    pub fn follow(&self, engine: &mut Engine) {
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        let groups = engine.decoder().kv().plan().layout.groups.clone();
        let first = first_number();
        *lock(&self.0.batches) = Some(Batches { queue, first, groups });
        let mut next = first;
        engine.follow(move |events| {
            // Readers may remember blocks of a server that was killed.
            let cleared = (next == first).then_some(CacheEvent::AllCleared);
            let events = cleared.into_iter().chain(events.iter().cloned()).collect();
            // A batch that finds no room leaves a gap in the numbers.
            let _ = sender.try_send(Batch::now(next, events));
            next += 1;
        });
    }

    /// Publishes the events of the engine, as long as it is polled: readers still get batches that they missed after the engine
    /// has ended. [`run`](crate::run()) calls this; a program that mounts the [`Service`](crate::Service) spawns it. Only the
    /// first call has an effect.
    ///
    /// # Errors
    /// If the runtime refuses the sockets.
    pub async fn run(&self) -> io::Result<()> {
        let batches = lock(&self.0.batches).take();
        let Some(Batches { queue, first, groups }) = batches else { return Ok(()) };
        let sockets = lock(&self.0.sockets).take();
        let Some(Sockets { listener, replay }) = sockets else { return Ok(()) };
        let mut socket = PubSocket::new();
        socket.bind_listener(listener).await.map_err(io::Error::other)?;
        let past = Arc::new(Replay::new(Bytes::from(self.0.source.topic.clone())));
        let publish = self.publish(socket, queue, first, &groups, &past);
        let Some(replay) = replay else {
            publish.await;
            return Ok(());
        };
        let mut socket = RouterSocket::new();
        socket.bind_listener(replay).await.map_err(io::Error::other)?;
        tokio::join!(publish, Arc::clone(&past).serve(socket));
        Ok(())
    }

    pub(crate) fn source(&self) -> &KvEventSource {
        &self.0.source
    }

    /// Sends the batches of `queue`. After the engine has ended, sends the event that all of its blocks are cleared.
    async fn publish(
        &self,
        mut socket: PubSocket,
        mut queue: mpsc::Receiver<Batch>,
        first: u64,
        groups: &[KvCacheGroup],
        past: &Replay,
    ) {
        let mut next = first;
        while let Some(batch) = queue.recv().await {
            next = batch.seq + 1;
            self.send(&mut socket, &batch, groups, past).await;
        }
        self.send(&mut socket, &Batch::now(next, vec![CacheEvent::AllCleared]), groups, past).await;
        // A socket that is dropped sends no more.
        pending().await
    }

    async fn send(&self, socket: &mut PubSocket, batch: &Batch, groups: &[KvCacheGroup], past: &Replay) {
        let KvEventSource { data_parallel_rank: rank, topic, .. } = &self.0.source;
        let seq = batch.seq;
        let payload = match wire::payload(batch, groups, *rank) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => {
                error!(%error, seq, rank, "a batch of KV events cannot be written");
                return;
            }
        };
        past.keep(seq, payload.clone());
        let frames = vec![Bytes::from(topic.clone()), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        // Slow subscribers lose messages by themselves; the socket has no other failure while it is open.
        if let Err(error) = socket.send(ZmqMessage::try_from(frames).expect("it has frames")).await {
            error!(%error, seq, rank, "a batch of KV events was not sent");
        }
    }
}

impl Batch {
    fn now(seq: u64, events: Vec<CacheEvent>) -> Self {
        Self { seq, ts: since_1970().as_secs_f64(), events }
    }
}

/// Number of the first batch of an engine: the microseconds since 1970. Readers skip numbers below those that they
/// have seen, so a restarted server must begin above the numbers of its predecessor. The predecessor has sent fewer
/// batches than microseconds have passed.
fn first_number() -> u64 {
    u64::try_from(since_1970().as_micros()).unwrap_or(0)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens at an endpoint. Its port is that of rank 0, and the rank is added. Returns the endpoint with the resulting
/// port; for port 0, the system chooses one.
fn listen(endpoint: &str, rank: u16) -> Result<(TcpListener, String), KvPublisherError> {
    let address = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
    let address = address.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let Some((host, port)) = address.filter(|(host, _)| !host.is_empty()) else {
        return Err(KvPublisherError::Endpoint { endpoint: endpoint.to_owned() });
    };
    let port = if port == 0 { Some(0) } else { port.checked_add(rank) };
    let Some(port) = port else {
        return Err(KvPublisherError::Port { endpoint: endpoint.to_owned(), rank });
    };
    let endpoint = format!("tcp://{host}:{port}");
    let place = match host {
        "*" => "0.0.0.0",
        host => host.trim_start_matches('[').trim_end_matches(']'),
    };
    let bound = TcpListener::bind((place, port)).and_then(|listener| {
        let port = listener.local_addr()?.port();
        Ok((listener, format!("tcp://{host}:{port}")))
    });
    bound.map_err(|source| KvPublisherError::Bind { endpoint, source })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pagoda::kv_events::{BlockHash, CacheKey, GroupId, Medium};
    use tokio::time::timeout;
    use zeromq::{DealerSocket, SocketRecv as _};

    use super::*;

    type Payload = (f64, Vec<BTreeMap<String, serde_json::Value>>, u16);

    /// Returns all batches that the endpoint has.
    async fn replayed(endpoint: &str) -> Vec<Payload> {
        let mut socket = DealerSocket::new();
        socket.connect(endpoint).await.unwrap();
        let request = vec![Bytes::new(), Bytes::copy_from_slice(&0_u64.to_be_bytes())];
        socket.send(ZmqMessage::try_from(request).unwrap()).await.unwrap();
        let mut batches = Vec::new();
        loop {
            let frames = socket.recv().await.unwrap().into_vec();
            let number = i64::from_be_bytes(frames[2].as_ref().try_into().unwrap());
            if number < 0 {
                return batches;
            }
            assert_eq!(number, 5 + i64::try_from(batches.len()).unwrap());
            batches.push(rmp_serde::from_slice(&frames[3]).unwrap());
        }
    }

    /// Routers send nothing more to a rank whose engine has ended for good, while others of its server go on.
    #[test]
    fn an_engine_that_ends_has_told_that_it_holds_nothing() {
        let any = "tcp://127.0.0.1:0";
        let publisher = KvPublisher::bind(any, Some(any), "", 3).unwrap();
        let replay = publisher.source().replay_endpoint.clone().unwrap();
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        *lock(&publisher.0.batches) = Some(Batches { queue, first: 5, groups: Vec::new() });
        let key = CacheKey { hash: BlockHash::from_bytes([7; 32]), group: GroupId::new(0) };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let told = runtime.block_on(async move {
            tokio::spawn(async move { publisher.run().await.unwrap() });
            let removed = Batch::now(5, vec![CacheEvent::removed(key, Medium::Gpu)]);
            assert!(sender.send(removed).await.is_ok());
            drop(sender);
            let until_both = async {
                loop {
                    let batches = replayed(&replay).await;
                    if batches.len() == 2 {
                        return batches;
                    }
                }
            };
            timeout(Duration::from_secs(60), until_both).await.expect("both are told within a minute")
        });
        let types: Vec<_> = told.iter().map(|(_, events, rank)| (events[0]["type"].clone(), *rank)).collect();
        assert_eq!(types, [("BlockRemoved".into(), 3), ("AllBlocksCleared".into(), 3)]);
    }
}
