//! The stream of one request's events, and the end of the engine.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};

use async_channel as channel;
use futures_core::Stream as _;
use kvblock::SeqId;

use super::Command;
use crate::error::Error;
use crate::event::Event;

type Item = Result<Event, Error>;

/// The events of one request, ending after each of its samples has [finished](Event::Finished), or with an
/// error. Dropping it cancels the request.
///
/// It is a [`futures_core::Stream`] for any async runtime. Blocking code takes it [as an iterator](Self::blocking).
#[derive(Debug)]
#[must_use = "dropping a stream cancels its request"]
pub struct Stream {
    events: Pin<Box<channel::Receiver<Item>>>,
    /// Receiver of the first sequence, once the engine has taken the request.
    taken: Pin<Box<channel::Receiver<SeqId>>>,
    first: Option<SeqId>,
    commands: mpsc::Sender<Command>,
    ticket: u64,
}

/// Parts that a new stream is made from.
pub(super) struct Opening<'a> {
    pub(super) commands: &'a mpsc::Sender<Command>,
    /// Number that identifies the stream.
    pub(super) ticket: u64,
    /// Number of tokens that wait with the request.
    pub(super) waiting_tokens: u64,
    pub(super) max_unread: usize,
}

/// The sending end of a [`Stream`].
#[derive(Debug)]
pub(super) struct Sender {
    events: channel::Sender<Item>,
    taken: channel::Sender<SeqId>,
    max_unread: usize,
    /// Number that identifies the stream.
    pub(super) ticket: u64,
    /// Number of tokens that wait with the request.
    pub(super) waiting_tokens: u64,
}

/// Both ends of a new stream.
pub(super) fn pair(opening: Opening<'_>) -> (Sender, Stream) {
    let Opening { commands, ticket, waiting_tokens, max_unread } = opening;
    // The sender checks the bound itself, because a bounded channel would allocate all its places at once.
    let (sender, receiver) = channel::unbounded();
    let (take, taken) = channel::bounded(1);
    let taken = Box::pin(taken);
    let stream =
        Stream { events: Box::pin(receiver), taken, first: None, commands: commands.clone(), ticket };
    (Sender { events: sender, taken: take, max_unread, ticket, waiting_tokens }, stream)
}

impl Sender {
    /// Tells that the engine has taken the request, whose first sequence is `seq`.
    pub(super) fn take(&self, seq: SeqId) {
        // A reader that is gone need not know.
        let _ = self.taken.try_send(seq);
    }

    /// Queues an event. Returns false if the reader was dropped, or too many events were unread and the stream was
    /// closed.
    pub(super) fn send(&self, event: Event) -> bool {
        let unread = self.events.len();
        if unread < self.max_unread {
            return self.events.try_send(Ok(event)).is_ok();
        }
        self.fail(Error::Unread { unread });
        false
    }

    /// Ends the stream with an error.
    pub(super) fn fail(&self, error: Error) {
        // A reader that is gone needs no reason.
        let _ = self.events.try_send(Err(error));
        self.events.close();
    }
}

impl Stream {
    /// Completes once the engine has taken the request, which is within a step and before the request starts.
    /// Returns its first sequence.
    ///
    /// # Errors
    /// Why the request was refused; nothing comes after that.
    pub async fn accepted(&mut self) -> Result<SeqId, Error> {
        if let Some(first) = self.first {
            return Ok(first);
        }
        match self.taken.recv().await {
            Ok(first) => Ok(*self.first.insert(first)),
            Err(_) => Err(self.events.recv().await.ok().and_then(Result::err).unwrap_or(Error::Stopped)),
        }
    }

    /// The events as an iterator, which waits for each.
    #[must_use = "dropping a stream cancels its request"]
    pub fn blocking(self) -> BlockingStream {
        BlockingStream(self)
    }

    /// Waits for the next event; `None` after the last one.
    pub(crate) fn wait(&mut self) -> Option<Item> {
        self.events.recv_blocking().ok()
    }
}

/// The events of one request for blocking code: an iterator that waits for each. Dropping it cancels the request.
#[derive(Debug)]
pub struct BlockingStream(Stream);

impl Iterator for BlockingStream {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.0.wait()
    }
}

impl futures_core::Stream for Stream {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        self.events.as_mut().poll_next(context)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.events.close();
        // An engine that has ended cancels nothing.
        let _ = self.commands.send(Command::Cancel(self.ticket));
    }
}

/// The answer to a [call](super::EngineHandle::call), to be waited for or awaited.
#[derive(Debug)]
pub struct Reply<R>(Pin<Box<channel::Receiver<R>>>);

impl<R> Reply<R> {
    pub(super) fn pair() -> (channel::Sender<R>, Self) {
        let (sender, receiver) = channel::bounded(1);
        (sender, Self(Box::pin(receiver)))
    }

    /// Waits for the answer; `None` if the engine stopped before the call.
    #[must_use]
    pub fn wait(self) -> Option<R> {
        self.0.recv_blocking().ok()
    }
}

impl<R> Future for Reply<R> {
    type Output = Option<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R>> {
        self.0.as_mut().poll_next(context)
    }
}

/// The end of an engine's thread, to be waited for or awaited.
#[derive(Debug, Clone)]
pub struct Ended(Pin<Box<channel::Receiver<Infallible>>>);

impl Ended {
    /// Returns a guard that the thread drops at its end, and the `Ended` that waits for the drop.
    pub(super) fn pair() -> (channel::Sender<Infallible>, Self) {
        let (sender, receiver) = channel::bounded(1);
        (sender, Self(Box::pin(receiver)))
    }

    /// Waits for the end.
    pub fn wait(&self) {
        let _ = self.0.recv_blocking();
    }

    /// Whether the engine's thread has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_closed()
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll_next(context).map(|_| ())
    }
}
