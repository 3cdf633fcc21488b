//! Bounded queues of reads and writes. A test compiles this file with the locks of the model checker loom.

use std::collections::{BTreeMap, VecDeque};

use super::sync::{Condvar, Mutex, MutexGuard};
use super::{Piece, SpillRun};

/// Work for the threads of a spill, and their results.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) state: Mutex<State>,
    /// Condition variable that signals work for readers, or room for its result.
    to_read: Condvar,
    /// Condition variable that signals work for writers.
    to_write: Condvar,
    /// Condition variable that signals that a piece was read or written.
    ready: Condvar,
    /// Maximum number of bytes in transfer in each direction.
    limit: usize,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Reads by number, in the order of the requests.
    reads: BTreeMap<u64, Pieces>,
    next: u64,
    /// Bytes of reads that run or wait to be taken.
    pub(super) staged: usize,
    writes: VecDeque<(SpillRun, Vec<u8>)>,
    /// Bytes of writes that run or wait.
    pub(super) unwritten: usize,
    closed: bool,
}

/// Pieces of one read.
#[derive(Debug, Default)]
struct Pieces {
    /// Pieces that no worker has begun to read, with their bytes.
    waiting: VecDeque<(usize, SpillRun)>,
    /// Pieces that were read or are being read, starting with the next to be taken.
    begun: VecDeque<Option<Piece>>,
    /// Number of the first piece in `begun`.
    first: u64,
}

/// A piece to read.
pub(super) struct ReadJob {
    read: u64,
    number: u64,
    bytes: usize,
    pub(super) run: SpillRun,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        let [to_read, to_write, ready] = [(); 3].map(|()| Condvar::new());
        Self { state: Mutex::new(State::default()), to_read, to_write, ready, limit }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Queues a read, and returns its number.
    pub(super) fn ask(&self, pieces: VecDeque<(usize, SpillRun)>) -> u64 {
        let mut state = lock(&self.state);
        let id = state.next;
        state.next += 1;
        state.reads.insert(id, Pieces { waiting: pieces, ..Pieces::default() });
        self.to_read.notify_all();
        id
    }

    /// The next piece to read, once there is room for it; `None` once the queue is closed.
    pub(super) fn next_read(&self) -> Option<ReadJob> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let State { reads, staged, .. } = &mut *state;
            let found = reads.iter_mut().find(|(_, pieces)| !pieces.waiting.is_empty());
            if let Some((id, pieces)) = found {
                let bytes = pieces.waiting[0].0;
                // A piece that is larger than all room is read alone.
                if *staged == 0 || *staged + bytes <= self.limit {
                    let (_, run) = pieces.waiting.pop_front().expect("there is one");
                    pieces.begun.push_back(None);
                    let number = pieces.first + pieces.begun.len() as u64 - 1;
                    *staged += bytes;
                    return Some(ReadJob { read: *id, number, bytes, run });
                }
            }
            state = wait(&self.to_read, state);
        }
    }

    /// Stores the result of a read.
    pub(super) fn done(&self, job: &ReadJob, piece: Piece) {
        let mut state = lock(&self.state);
        match state.reads.get_mut(&job.read) {
            Some(pieces) => {
                let at = usize::try_from(job.number - pieces.first).expect("pieces are taken in order");
                pieces.begun[at] = Some(piece);
                self.ready.notify_all();
            }
            // Nobody wants it any more.
            None => self.free(&mut state, job.bytes),
        }
    }

    /// The next piece of a read; `None` after the last, and once the queue is closed.
    pub(super) fn take(&self, read: u64) -> Option<Piece> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let pieces = state.reads.get_mut(&read)?;
            match pieces.begun.front_mut().map(Option::take) {
                None if pieces.waiting.is_empty() => return None,
                Some(Some(piece)) => {
                    pieces.begun.pop_front();
                    pieces.first += 1;
                    self.free(&mut state, piece.bytes.len());
                    return Some(piece);
                }
                None | Some(None) => {}
            }
            state = wait(&self.ready, state);
        }
    }

    /// Forgets a read.
    pub(super) fn give_up(&self, read: u64) {
        let mut state = lock(&self.state);
        let Some(pieces) = state.reads.remove(&read) else { return };
        let bytes = pieces.begun.iter().flatten().map(|piece| piece.bytes.len()).sum();
        self.free(&mut state, bytes);
    }

    fn free(&self, state: &mut State, bytes: usize) {
        state.staged -= bytes;
        self.to_read.notify_all();
    }

    /// Queues a write, once there is room for it.
    pub(super) fn push_write(&self, run: SpillRun, bytes: Vec<u8>) {
        let mut state = lock(&self.state);
        while state.unwritten > 0 && state.unwritten + bytes.len() > self.limit && !state.closed {
            state = wait(&self.ready, state);
        }
        state.unwritten += bytes.len();
        state.writes.push_back((run, bytes));
        self.to_write.notify_all();
    }

    /// The next write, once there is one; `None` once the queue is closed.
    pub(super) fn next_write(&self) -> Option<(SpillRun, Vec<u8>)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(write) = state.writes.pop_front() {
                return Some(write);
            }
            state = wait(&self.to_write, state);
        }
    }

    /// Releases the staging memory of a finished write.
    pub(super) fn written(&self, bytes: usize) {
        lock(&self.state).unwritten -= bytes;
        self.ready.notify_all();
    }

    /// Ends all threads.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        [&self.to_read, &self.to_write, &self.ready].iter().for_each(|signal| signal.notify_all());
    }
}

/// Locks `mutex`, poisoned or not: no code panics while the protected state is broken.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits on `condvar`, poisoned or not.
fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}
