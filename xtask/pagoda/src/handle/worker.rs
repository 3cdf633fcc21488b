//! The engine's thread: takes commands between steps, and passes events on.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use kvblock::SeqId;

use super::stream::Sender;
use super::{Command, Shared, Shutdown};
use crate::engine::Engine;
use crate::error::Error;
use crate::event::Event;
use crate::request::Request;

/// Time between two snapshots of a running engine.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which an engine without work checks for changes by other engines in their shared host tier.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Worker {
    /// The engine; only missing after it could not be reopened.
    engine: Option<Engine>,
    /// Whether the engine is opened anew once its device is lost.
    recovers: bool,
    commands: mpsc::Receiver<Command>,
    shared: Arc<Shared>,
    /// Unfinished requests by their first sequence.
    open: HashMap<SeqId, Open>,
    /// First sequence of each request, by the ticket of its stream.
    tickets: HashMap<u64, SeqId>,
    /// First sequences of requests that the engine has taken since the last snapshot.
    taken: Vec<SeqId>,
    shutdown: Option<Shutdown>,
    published: Instant,
}

const HAS_ENGINE: &str = "an engine that could not be opened anew takes no commands";

struct Open {
    sender: Sender,
    samples: u32,
    unfinished: u32,
    /// Whether the request has not started.
    waits: bool,
    /// Whether the reader of the stream is gone.
    unread: bool,
}

impl Worker {
    pub(super) fn new(
        engine: Engine,
        commands: mpsc::Receiver<Command>,
        shared: Arc<Shared>,
        recovers: bool,
    ) -> Self {
        let (open, tickets, taken, engine) = (HashMap::new(), HashMap::new(), Vec::new(), Some(engine));
        let (shutdown, published) = (None, Instant::now());
        Self { engine, recovers, commands, shared, open, tickets, taken, shutdown, published }
    }

    /// Serves until the engine is told to stop, fails or panics.
    pub(super) fn run(mut self) {
        let panicked = catch_unwind(AssertUnwindSafe(|| self.serve())).err();
        self.shared.closing.store(true, Ordering::Release);
        if let Some(panicked) = panicked {
            self.fail(Error::Panicked { message: message(&*panicked) });
            // What a panic left half done is asked for nothing more, and may panic again where it is dropped.
            let engine = self.engine.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        }
        self.refuse_rest();
        self.publish();
    }

    fn serve(&mut self) {
        while self.receive() {
            if self.shutdown == Some(Shutdown::Now) {
                self.cancel_all();
            }
            if !self.engine().has_work() {
                continue;
            }
            let engine = self.engine.as_mut().expect(HAS_ENGINE);
            match self.shared.watched.step(|| engine.step()) {
                Ok(events) => {
                    // Who has read the start or the end of a request finds it running, or counted.
                    if events.iter().any(|event| matches!(event, Event::Started(_) | Event::Finished(_))) {
                        self.publish();
                    }
                    events.into_iter().for_each(|event| self.pass(event));
                }
                Err(error) => {
                    if let Err(error) = self.recover(error) {
                        self.fail(error);
                        break;
                    }
                }
            }
            if self.published.elapsed() >= SNAPSHOT_INTERVAL {
                self.publish();
            }
        }
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect(HAS_ENGINE)
    }

    /// Reopens the engine if its device was lost; otherwise returns the error of its step.
    fn recover(&mut self, error: Error) -> Result<(), Error> {
        if !self.engine().is_lost() {
            return Err(error);
        }
        if !self.recovers {
            self.shared.lost.store(true, Ordering::Release);
            return Err(error);
        }
        let engine = self.engine.take().expect(HAS_ENGINE);
        self.shared.watched.reopen(true);
        let engine = engine.reopen();
        self.shared.watched.reopen(false);
        self.shared.lost.store(engine.is_err(), Ordering::Release);
        self.engine = Some(engine?);
        self.publish();
        Ok(())
    }

    /// Takes all queued commands; waits for one if the engine has no work. Returns false if no more commands can
    /// come.
    fn receive(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        while !self.engine().has_work() {
            self.engine().rest();
            if self.shutdown.is_some() {
                return false;
            }
            self.publish();
            let Some(command) = self.next_command() else { return false };
            self.obey(command);
        }
        self.announce();
        true
    }

    /// Waits for a command; `None` if no more commands can come. Meanwhile, reports changes by other engines in the
    /// shared host tier to the followers.
    fn next_command(&mut self) -> Option<Command> {
        while self.engine().hears_of_others() {
            match self.commands.recv_timeout(LOOK_INTERVAL) {
                Ok(command) => return Some(command),
                Err(mpsc::RecvTimeoutError::Timeout) => self.engine().tell_followers(),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            }
        }
        self.commands.recv().ok()
    }

    /// Tells the readers of requests that the engine has taken them, once a snapshot shows these requests as waiting.
    fn announce(&mut self) {
        if !self.taken.is_empty() {
            self.publish();
        }
        for first in self.taken.drain(..) {
            if let Some(open) = self.open.get(&first) {
                open.sender.take(first);
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(request, sender) => self.submit(*request, sender),
            Command::Call(work) => work(self.engine()),
            Command::Cancel(ticket) => {
                if let Some(first) = self.tickets.get(&ticket) {
                    self.cancel(*first);
                }
            }
            // A drain does not take back an order to stop at once.
            Command::Shutdown(shutdown) => self.shutdown = self.shutdown.max(Some(shutdown)),
        }
    }

    fn submit(&mut self, request: Request, sender: Sender) {
        let samples = request.samples;
        match self.engine().submit(request) {
            Ok(first) => {
                self.taken.push(first);
                self.tickets.insert(sender.ticket, first);
                let open = Open { sender, samples, unfinished: samples, waits: true, unread: false };
                self.open.insert(first, open);
            }
            Err(error) => {
                self.shared.release(sender.waiting_tokens);
                sender.fail(error);
            }
        }
    }

    /// Passes an event to the stream of its request, and cancels the request if its reader is gone.
    fn pass(&mut self, event: Event) {
        let first = event.request();
        let Some(open) = self.open.get_mut(&first) else { return };
        let finished = matches!(event, Event::Finished(_));
        let started = std::mem::take(&mut open.waits);
        if started {
            self.shared.release(open.sender.waiting_tokens);
        }
        let lost = !open.unread && !open.sender.send(event);
        open.unread |= lost;
        open.unfinished -= u32::from(finished);
        if open.unfinished == 0 {
            self.close(first);
        } else if lost {
            self.cancel(first);
        }
    }

    /// Ends all samples of a request.
    fn cancel(&mut self, first: SeqId) {
        let Some(open) = self.open.get(&first) else { return };
        let samples = open.samples;
        let seqs = (0..u64::from(samples)).map(|sample| SeqId::new(first.get() + sample));
        let ends: Vec<Event> = seqs.flat_map(|seq| self.engine().cancel(seq)).collect();
        ends.into_iter().for_each(|end| self.pass(end));
    }

    fn cancel_all(&mut self) {
        let all: Vec<SeqId> = self.open.keys().copied().collect();
        all.into_iter().for_each(|first| self.cancel(first));
    }

    /// Forgets a request, whose stream then ends.
    fn close(&mut self, first: SeqId) {
        if let Some(open) = self.open.remove(&first) {
            self.tickets.remove(&open.sender.ticket);
            if open.waits {
                self.shared.release(open.sender.waiting_tokens);
            }
        }
    }

    /// Ends all streams with the engine's error.
    fn fail(&mut self, error: Error) {
        let error = Arc::new(error);
        let all: Vec<SeqId> = self.open.keys().copied().collect();
        for first in all {
            self.open[&first].sender.fail(Error::Failed { source: Arc::clone(&error) });
            self.close(first);
        }
    }

    /// Refuses requests that came while the engine ended.
    fn refuse_rest(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(_, sender) = command {
                self.shared.release(sender.waiting_tokens);
                sender.fail(Error::Stopped);
            }
        }
    }

    fn publish(&mut self) {
        if let Some(engine) = &self.engine {
            self.shared.publish(engine.snapshot());
        }
        self.published = Instant::now();
    }
}

/// Message of a panic.
fn message(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<&str>().copied();
    text.or_else(|| panicked.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
