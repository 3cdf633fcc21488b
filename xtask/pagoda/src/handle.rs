//! An engine on a thread of its own: requests in from anywhere, streams of events out.
//!
//! Nothing here needs an async runtime: a [`Stream`] is a [`futures_core::Stream`] for any executor, and an
//! [iterator](Stream::blocking) for blocking code. No reader can stop the engine: a stream keeps its events until they
//! are read, up to [`HandleOptions::max_unread`].

mod admin;
mod replicas;
mod stream;
mod watchdog;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use derive_setters::Setters;

use crate::engine::Engine;
use crate::error::Error;
use crate::model::Model;
use crate::request::Request;
use crate::snapshot::Snapshot;

pub use admin::EngineAdmin;
pub use replicas::{BlockingReplicaStream, ReplicaStream, Replicas};
pub use stream::{BlockingStream, Ended, Reply, Stream};
use stream::{Opening, Sender};
use watchdog::{Watchdog, Watched};
use worker::Worker;

/// Limits for an engine that runs on its own thread.
#[derive(Debug, Clone, Copy, Setters)]
#[non_exhaustive]
pub struct HandleOptions {
    /// Maximum number of requests that wait for their start; further ones are refused.
    pub max_waiting: usize,
    /// Maximum number of prompt tokens of requests that wait for their start.
    pub max_waiting_tokens: u64,
    /// Maximum number of events that a stream keeps. If more events are unread, the request is cancelled.
    pub max_unread: usize,
    /// Time after which a step that still runs is reported as a [note](crate::Note::StepStalled) and by
    /// [`EngineHandle::health`]; `None` for no limit.
    pub stall_time: Option<Duration>,
    /// [Open the engine anew](Engine::reopen) whenever its device is lost, instead of ending with an error.
    pub recover: bool,
}

impl Default for HandleOptions {
    /// 1,024 requests wait, with any number of tokens; a stream keeps 65,536 events; a step takes a minute; an engine whose
    /// device is lost ends.
    fn default() -> Self {
        Self {
            max_waiting: 1024,
            max_waiting_tokens: u64::MAX,
            max_unread: 1 << 16,
            stall_time: Some(Duration::from_mins(1)),
            recover: false,
        }
    }
}

/// Way in which an engine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Shutdown {
    /// New requests are refused, and accepted ones run to their end.
    Drain,
    /// All requests are cancelled before the next step.
    Now,
}

/// Health of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The engine works, or waits for work.
    Well,
    /// A step runs for longer than [`HandleOptions::stall_time`], and has not ended.
    Stalled,
    /// The device was lost, and the engine is being reopened.
    Reopening,
    /// The engine has stopped.
    Ended,
}

/// A handle of an engine that runs on its own thread. Clones refer to the same engine, which drains when the last one
/// is dropped.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: Arc<Model>,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    options: HandleOptions,
    next_ticket: AtomicU64,
    ended: Ended,
}

/// State that the engine's thread and its handles share.
#[derive(Debug)]
struct Shared {
    /// Number of requests that wait for their start; the next field is the number of tokens of their prompts.
    waiting: AtomicUsize,
    waiting_tokens: AtomicU64,
    /// Whether new requests are refused.
    closing: AtomicBool,
    /// Whether the engine has ended because its device was lost and could not be opened anew.
    lost: AtomicBool,
    watched: Watched,
    snapshot: Mutex<Arc<Snapshot>>,
}

/// A message to the engine's thread.
enum Command {
    Submit(Box<Request>, Sender),
    /// Cancels the request with this ticket, whose stream was dropped.
    Cancel(u64),
    Shutdown(Shutdown),
    Call(Box<dyn FnOnce(&mut Engine) + Send>),
}

impl EngineHandle {
    /// Moves `engine` to a thread of its own.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system refuses a thread.
    pub fn spawn(engine: Engine, options: HandleOptions) -> Result<Self, Error> {
        let thread = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let spawned = thread::Builder::new().name(name.into()).spawn(run);
            spawned.map(drop).map_err(|source| Error::Thread { source })
        };
        let shared = Arc::new(Shared {
            lost: AtomicBool::new(false),
            watched: Watched::default(),
            waiting: AtomicUsize::new(0),
            waiting_tokens: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            snapshot: Mutex::new(Arc::new(engine.snapshot())),
        });
        let model = Arc::clone(engine.model());
        let (commands, received) = mpsc::channel();
        let (running, ended) = Ended::pair();
        if let Some(limit) = options.stall_time {
            let watchdog = Watchdog { limit, notes: engine.options().notes.clone(), ended: ended.clone() };
            let shared = Arc::clone(&shared);
            thread("engine-watchdog", Box::new(move || watchdog.run(&shared.watched)))?;
        }
        let worker = Worker::new(engine, received, Arc::clone(&shared), options.recover);
        let run = move || {
            worker.run();
            drop(running);
        };
        thread("engine", Box::new(run))?;
        let next_ticket = AtomicU64::new(0);
        Ok(Self { inner: Arc::new(Inner { model, shared, commands, options, next_ticket, ended }) })
    }

    /// Queues a request. The first item of the stream is an event if the engine accepts the request, or an error if
    /// the request can never run.
    ///
    /// # Errors
    /// [`Error::QueueFull`] and [`Error::QueueTokens`] if too much is waiting, [`Error::Stopped`] if the engine
    /// has stopped or is about to.
    pub fn submit(&self, request: Request) -> Result<Stream, Error> {
        let Inner { shared, commands, options, next_ticket, .. } = &*self.inner;
        if shared.closing.load(Ordering::Acquire) {
            return Err(Error::Stopped);
        }
        let waiting_tokens = request.prompt.len() as u64;
        shared.reserve(waiting_tokens, options)?;
        let ticket = next_ticket.fetch_add(1, Ordering::Relaxed);
        let max_unread = options.max_unread;
        let (sender, stream) = stream::pair(Opening { commands, ticket, waiting_tokens, max_unread });
        // The engine's thread gives the places back once the request has started or ended.
        if commands.send(Command::Submit(Box::new(request), sender)).is_err() {
            shared.release(waiting_tokens);
            return Err(Error::Stopped);
        }
        Ok(stream)
    }

    /// The model of the engine.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.inner.model
    }

    /// The state of the engine. Between two steps, it is at most some 20 milliseconds old. It shows a request as
    /// waiting once the engine has [accepted](Stream::accepted) it, and as running or ended once its start event can
    /// be read.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.inner.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the engine's health.
    #[must_use]
    pub fn health(&self) -> Health {
        let Inner { shared, ended, options, .. } = &*self.inner;
        if ended.is_over() { Health::Ended } else { shared.watched.health(options.stall_time) }
    }

    /// Time since the start of the current step; `None` if no step runs.
    #[must_use]
    pub fn step_time(&self) -> Option<Duration> {
        self.inner.shared.watched.step_time()
    }

    /// Number of steps that have taken longer than [`HandleOptions::stall_time`].
    #[must_use]
    pub fn num_stalls(&self) -> u64 {
        self.inner.shared.watched.num_stalls()
    }

    /// Number of requests that wait to start, including requests that the engine has not seen yet. If a caller reads
    /// this number before a snapshot, every unfinished request is in this number or among the running ones of the
    /// snapshot.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.inner.shared.waiting.load(Ordering::Relaxed)
    }

    /// Number of prompt tokens of the requests that wait for their start.
    #[must_use]
    pub fn num_waiting_tokens(&self) -> u64 {
        self.inner.shared.waiting_tokens.load(Ordering::Relaxed)
    }

    /// Returns the options that the handle was opened with.
    #[must_use]
    pub fn options(&self) -> HandleOptions {
        self.inner.options
    }

    /// Calls `work` on the engine's thread before the next step, for operations without a method here, such as a
    /// reset of the prefix cache, device times, or a live view. Meanwhile, requests wait.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the engine has stopped. If it stops before the call, the reply is `None`.
    pub fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut EngineAdmin<'_>) -> R + Send + 'static,
    ) -> Result<Reply<R>, Error> {
        let (answer, reply) = Reply::pair();
        let call = move |engine: &mut Engine| {
            // Whoever asked may have gone.
            let _ = answer.try_send(work(&mut EngineAdmin(engine)));
        };
        self.inner.commands.send(Command::Call(Box::new(call))).map_err(|_| Error::Stopped)?;
        Ok(reply)
    }

    /// Stops the engine. Returns a handle to wait for its end: until then, streams still yield their events. A later call can
    /// turn [`Shutdown::Drain`] into [`Shutdown::Now`].
    pub fn shutdown(&self, shutdown: Shutdown) -> Ended {
        self.inner.close(shutdown);
        self.inner.ended.clone()
    }

    /// Whether the engine has ended because its device was lost and could not be opened anew.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.shared.lost.load(Ordering::Acquire)
    }

    /// Completes once the engine's thread has ended, for whatever reason.
    #[must_use]
    pub fn ended(&self) -> Ended {
        self.inner.ended.clone()
    }
}

impl Inner {
    fn close(&self, shutdown: Shutdown) {
        self.shared.closing.store(true, Ordering::Release);
        // An engine that has ended takes no command.
        let _ = self.commands.send(Command::Shutdown(shutdown));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close(Shutdown::Drain);
    }
}

impl Shared {
    /// Takes a place in the queue.
    fn reserve(&self, tokens: u64, options: &HandleOptions) -> Result<(), Error> {
        let HandleOptions { max_waiting, max_waiting_tokens, .. } = *options;
        let place = |waiting: usize| (waiting < max_waiting).then_some(waiting + 1);
        if let Err(waiting) = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place) {
            return Err(Error::QueueFull { waiting, max_waiting });
        }
        let room = |waiting: u64| waiting.checked_add(tokens).filter(|sum| *sum <= max_waiting_tokens);
        if let Err(waiting) = self.waiting_tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::QueueTokens { tokens, waiting, max_waiting_tokens });
        }
        Ok(())
    }

    /// Gives a place in the queue back.
    fn release(&self, tokens: u64) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiting_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}
