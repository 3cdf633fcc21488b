//! Several engines of one model, on devices of their own, with one queue of requests before them.
//!
//! A request goes where the longest beginning of its prompt is cached, against the work that an engine has already
//! ([`scheduler::Placement`]). An engine whose device is lost for good takes its requests along only until another one has begun
//! them anew: what readers have got is not sent twice.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use kvblock::{BlockHash, BlockHasher, HashChain};
use scheduler::{Placement, PlacementConfig, ReplicaId, Ticket};

use super::{EngineHandle, HandleOptions, Health, Shutdown, Stream};
use crate::engine::Engine;
use crate::error::Error;
use crate::event::Event;
use crate::model::Model;
use crate::request::Request;

/// Engines of one model and one set of options, which share the requests. Clones are handles of the same engines; they drain when
/// the last one is dropped.
#[derive(Debug, Clone)]
pub struct Replicas {
    engines: Arc<[EngineHandle]>,
    /// Placement of requests among the engines; `None` for a single engine.
    placing: Option<Arc<Placing>>,
}

#[derive(Debug)]
struct Placing {
    placement: Mutex<Placement>,
    hasher: BlockHasher,
    /// Number of the hasher's blocks per block that placement counts.
    hashes_a_block: usize,
}

impl Placing {
    fn lock(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One hash for each full block of a prompt, in the block size that placement uses.
    fn hashes(&self, request: &Request) -> Vec<BlockHash> {
        let mut chain = HashChain::new(self.hasher, request.extra_keys());
        chain.extend(&request.prompt);
        let last_of_each = chain.hashes().iter().skip(self.hashes_a_block - 1).step_by(self.hashes_a_block);
        last_of_each.copied().collect()
    }
}

impl From<EngineHandle> for Replicas {
    fn from(engine: EngineHandle) -> Self {
        Self { engines: Arc::new([engine]), placing: None }
    }
}

impl Replicas {
    /// Moves each engine to its own thread. Several engines must each have been opened with
    /// [`cache_events`](crate::EngineOptions::cache_events), which tell the placement what each engine's cache holds.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system refuses a thread.
    ///
    /// # Panics
    /// If there is no engine, or if there are several and one records no events.
    pub fn spawn(engines: Vec<Engine>, options: HandleOptions) -> Result<Self, Error> {
        assert!(!engines.is_empty(), "at least one engine");
        let count = u32::try_from(engines.len()).expect("devices are few");
        let placing = (count > 1).then(|| {
            let (hasher, block_size) = engines[0].hashing();
            let hashes_a_block = (block_size.get() / hasher.block_size().get()) as usize;
            let placement = Mutex::new(Placement::new(count, PlacementConfig::new(block_size)));
            Arc::new(Placing { placement, hasher, hashes_a_block })
        });
        let spawn = |(replica, mut engine): (ReplicaId, Engine)| {
            if let Some(placing) = placing.clone() {
                engine.follow(move |events| {
                    let mut placement = placing.lock();
                    events.iter().for_each(|event| placement.follow(replica, event));
                });
            }
            EngineHandle::spawn(engine, options)
        };
        let engines: Arc<[EngineHandle]> =
            (0..count).map(ReplicaId::new).zip(engines).map(spawn).collect::<Result<_, _>>()?;
        Ok(Self { engines, placing })
    }

    /// The engines, at least one.
    #[must_use]
    pub fn engines(&self) -> &[EngineHandle] {
        &self.engines
    }

    /// The model of the engines.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        self.engines[0].model()
    }

    /// Bounds of each engine.
    #[must_use]
    pub fn options(&self) -> HandleOptions {
        self.engines[0].options()
    }

    /// Queues a request at the replica with the lowest cost. An engine that is being reopened or has stalled gets it
    /// only if no other can take it.
    ///
    /// # Errors
    /// As of [`EngineHandle::submit`], if no engine takes it.
    pub fn submit(&self, request: Request) -> Result<ReplicaStream, Error> {
        let Some(placing) = &self.placing else {
            let stream = self.engines[0].submit(request)?;
            return Ok(ReplicaStream { stream, placed: None });
        };
        let hashes = placing.hashes(&request);
        let (stream, at) = self.place(placing, &hashes, &request)?;
        let placed =
            Placed { replicas: self.clone(), at, passed: Passed::new(request.samples), hashes, request };
        Ok(ReplicaStream { stream, placed: Some(Box::new(placed)) })
    }

    fn place(
        &self,
        placing: &Arc<Placing>,
        hashes: &[BlockHash],
        request: &Request,
    ) -> Result<(Stream, ReplicaRequest), Error> {
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let mut refused: Vec<ReplicaId> = Vec::new();
        let mut last = Error::Stopped;
        // An engine that was lost may still be about to end.
        let health = |engine: &EngineHandle| if engine.is_lost() { Health::Ended } else { engine.health() };
        let health: Vec<Health> = self.engines.iter().map(health).collect();
        loop {
            let may =
                |replica: ReplicaId| !refused.contains(&replica) && health[replica.index()] != Health::Ended;
            let well = |replica: ReplicaId| may(replica) && health[replica.index()] == Health::Well;
            let placed = {
                let mut placement = placing.lock();
                let placed = placement.place(hashes, prompt_tokens, well);
                placed.or_else(|| placement.place(hashes, prompt_tokens, may))
            };
            let Some(placed) = placed else { return Err(last) };
            let (ticket, replica) = (placed.ticket, placed.replica);
            let place = ReplicaRequest { placing: Arc::clone(placing), ticket, replica, prefilled: false };
            match self.engines[placed.replica.index()].submit(request.clone()) {
                Ok(stream) => return Ok((stream, place)),
                Err(error @ (Error::QueueFull { .. } | Error::QueueTokens { .. } | Error::Stopped)) => {
                    refused.push(placed.replica);
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Health of the best engine, which gets the requests.
    #[must_use]
    pub fn health(&self) -> Health {
        let best = |health: &Health| match health {
            Health::Well => 0,
            Health::Stalled => 1,
            Health::Reopening => 2,
            Health::Ended => 3,
        };
        self.engines.iter().map(EngineHandle::health).min_by_key(best).expect("at least one engine")
    }

    /// Number of requests that wait for their start, as [`EngineHandle::num_waiting`] counts.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.engines.iter().map(EngineHandle::num_waiting).sum()
    }

    /// Number of prompt tokens of the requests that wait for their start.
    #[must_use]
    pub fn num_waiting_tokens(&self) -> u64 {
        self.engines.iter().map(EngineHandle::num_waiting_tokens).sum()
    }

    /// Time since the start of the step that has run longest.
    #[must_use]
    pub fn step_time(&self) -> Option<Duration> {
        self.engines.iter().filter_map(EngineHandle::step_time).max()
    }

    /// Stops all engines, as [`EngineHandle::shutdown`] does. Completes once all have ended.
    pub fn shutdown(&self, shutdown: Shutdown) -> impl Future<Output = ()> + use<> {
        self.engines.iter().for_each(|engine| drop(engine.shutdown(shutdown)));
        self.ended()
    }

    /// Completes once all engines have ended, for whatever reason.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let ends: Vec<_> = self.engines.iter().map(EngineHandle::ended).collect();
        async move {
            for end in ends {
                end.await;
            }
        }
    }

    /// Whether all engines have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.engines.iter().all(|engine| engine.ended().is_over())
    }
}

/// A request at a replica, until it is dropped.
#[derive(Debug)]
struct ReplicaRequest {
    placing: Arc<Placing>,
    ticket: Ticket,
    replica: ReplicaId,
    /// Whether the prompt of the request has been computed.
    prefilled: bool,
}

impl ReplicaRequest {
    /// Records that the prompt has been computed.
    fn prefilled(&mut self) {
        if !std::mem::replace(&mut self.prefilled, true) {
            self.placing.lock().prefilled(self.ticket);
        }
    }
}

impl Drop for ReplicaRequest {
    fn drop(&mut self) {
        self.placing.lock().ended(self.ticket);
    }
}

/// A request, with everything that another engine needs to restart it.
#[derive(Debug)]
struct Placed {
    replicas: Replicas,
    at: ReplicaRequest,
    request: Request,
    hashes: Vec<BlockHash>,
    passed: Passed,
}

type Item = Result<Event, Error>;

/// The events of one request to [`Replicas`], as in a [`Stream`]. If the request's engine is lost, events of another
/// engine follow. Dropping the stream cancels the request.
#[derive(Debug)]
#[must_use = "dropping a stream cancels its request"]
pub struct ReplicaStream {
    stream: Stream,
    placed: Option<Box<Placed>>,
}

impl ReplicaStream {
    /// Completes once an engine has taken the request.
    ///
    /// # Errors
    /// As of [`Stream::accepted`].
    pub async fn accepted(&mut self) -> Result<(), Error> {
        while let Err(error) = self.stream.accepted().await {
            self.go_on(error)?;
        }
        Ok(())
    }

    /// The replica that has the request.
    #[must_use]
    pub fn replica(&self) -> ReplicaId {
        self.placed.as_ref().map_or(ReplicaId::new(0), |placed| placed.at.replica)
    }

    /// Begins the request anew elsewhere, if `error` came from the loss of its engine's device; otherwise returns the error.
    fn go_on(&mut self, error: Error) -> Result<(), Error> {
        let Some(placed) = &mut self.placed else { return Err(error) };
        let Placed { replicas, at, request, hashes, passed } = &mut **placed;
        if !replicas.engines[at.replica.index()].is_lost() {
            return Err(error);
        }
        at.placing.lock().lost(at.replica);
        // Whoever has the error of the lost engine can do more with it than with that of a full queue.
        let (stream, place) = replicas.place(&at.placing, hashes, request).map_err(|_| error)?;
        (self.stream, *at) = (stream, place);
        passed.begin_anew();
        Ok(())
    }

    /// The events as an iterator, which waits for each.
    #[must_use = "dropping a stream cancels its request"]
    pub fn blocking(self) -> BlockingReplicaStream {
        BlockingReplicaStream(self)
    }

    /// The item to pass to the reader for an item of the engine's stream; `Pending` if the next item has to be read
    /// instead.
    fn item(&mut self, item: Option<Item>) -> Poll<Option<Item>> {
        let event = match item {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                return match self.go_on(error) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Some(Err(error))),
                };
            }
            None => return Poll::Ready(None),
        };
        let Some(placed) = &mut self.placed else { return Poll::Ready(Some(Ok(event))) };
        if matches!(event, Event::Token(_) | Event::Finished(_)) {
            placed.at.prefilled();
        }
        match placed.passed.is_new(&event) {
            Ok(true) => Poll::Ready(Some(Ok(event))),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl futures_core::Stream for ReplicaStream {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        loop {
            let item = ready!(Pin::new(&mut self.stream).poll_next(context));
            if let Poll::Ready(item) = self.item(item) {
                return Poll::Ready(item);
            }
        }
    }
}

/// The events of one request to [`Replicas`] for blocking code: an iterator that waits for each. Dropping it cancels the request.
#[derive(Debug)]
pub struct BlockingReplicaStream(ReplicaStream);

impl Iterator for BlockingReplicaStream {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            let item = self.0.stream.wait();
            if let Poll::Ready(item) = self.0.item(item) {
                return item;
            }
        }
    }
}

/// Records the events that the reader has got, so that a restarted request does not send them again.
#[derive(Debug)]
struct Passed {
    started: bool,
    prompt: bool,
    samples: Vec<PassedSample>,
}

#[derive(Debug, Clone, Default)]
struct PassedSample {
    tokens: Vec<u32>,
    /// Number of the tokens that the new replica has generated again.
    again: usize,
    finished: bool,
}

impl Passed {
    fn new(samples: u32) -> Self {
        Self { started: false, prompt: false, samples: vec![PassedSample::default(); samples as usize] }
    }

    fn begin_anew(&mut self) {
        self.samples.iter_mut().for_each(|sample| sample.again = 0);
    }

    /// Whether an event has not been passed to the reader before.
    ///
    /// # Errors
    /// [`Error::Moved`] if a request that began anew drew another token than before.
    fn is_new(&mut self, event: &Event) -> Result<bool, Error> {
        match event {
            Event::Started(_) => Ok(!std::mem::replace(&mut self.started, true)),
            Event::Prompt(_) => Ok(!std::mem::replace(&mut self.prompt, true)),
            Event::Token(token) => {
                let sample = &mut self.samples[token.sample as usize];
                let at = sample.again;
                sample.again += 1;
                match sample.tokens.get(at) {
                    None => {
                        sample.tokens.push(token.id);
                        Ok(true)
                    }
                    Some(before) if *before == token.id => Ok(false),
                    Some(_) => Err(Error::Moved { tokens: at }),
                }
            }
            Event::Finished(end) => {
                let sample = &mut self.samples[end.sample as usize];
                if sample.again < sample.tokens.len() {
                    return Err(Error::Moved { tokens: sample.again });
                }
                Ok(!std::mem::replace(&mut sample.finished, true))
            }
        }
    }
}
