//! Bounded queues of reads and writes.

use std::collections::{BTreeMap, VecDeque};

use super::{Piece, SpillRun};
use crate::sync::explored::{Condvar, Mutex, lock, wait};

/// Work for the threads of a spill, and their results.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is something to read, or room for it.
    to_read: Condvar,
    /// There is something to write.
    to_write: Condvar,
    /// Something was read or written.
    ready: Condvar,
    /// Maximum number of bytes in transfer in each direction.
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Reads by number, in the order of the requests.
    reads: BTreeMap<u64, Pieces>,
    next: u64,
    /// Bytes of reads that run or wait to be taken.
    staged: usize,
    writes: VecDeque<(SpillRun, Vec<u8>)>,
    /// Bytes of writes that run or wait.
    unwritten: usize,
    closed: bool,
}

/// Pieces of one read.
#[derive(Debug, Default)]
struct Pieces {
    /// Pieces that no worker has begun to read, with their bytes.
    waiting: VecDeque<(usize, SpillRun)>,
    /// Pieces that are read or being read, from the one that is taken next on.
    begun: VecDeque<Option<Piece>>,
    /// Number of the first of these.
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

    /// The next piece to read, once there is room for it; `None` at the end.
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

    /// The next write; `None` at the end.
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

    /// Takes the room of a write back.
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

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn run(first: u32) -> SpillRun {
        SpillRun { region: 0, blocks: first..first + 1 }
    }

    /// Asks for `count` pieces of one byte.
    fn ask(queue: &Queue, count: u32) -> u64 {
        queue.ask((0..count).map(|block| (1, run(block))).collect())
    }

    /// Reads one piece, if there is one to read.
    fn read(queue: &Queue) -> bool {
        let Some(job) = queue.next_read() else { return false };
        queue.done(&job, Piece { run: job.run.clone(), bytes: vec![0], lost: Vec::new() });
        true
    }

    /// Two threads read through room for one piece: they get pieces in the order of their requests, and neither waits for
    /// ever.
    #[test]
    fn pieces_arrive_in_order_whoever_reads_them() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(1));
            let id = ask(&queue, 2);
            let readers = [(); 2].map(|()| {
                let queue = queue.clone();
                thread::spawn(move || assert!(read(&queue)))
            });
            let taken = [(); 2].map(|()| queue.take(id).map(|piece| piece.run));
            assert_eq!(taken, [0, 1].map(|block| Some(run(block))));
            assert!(queue.take(id).is_none());
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    /// A read is given up before, while or after its piece is read; its room serves the next one.
    #[test]
    fn what_is_given_up_leaves_its_room() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(1));
            let [unwanted, wanted] = [(); 2].map(|()| ask(&queue, 1));
            let reader = {
                let queue = queue.clone();
                thread::spawn(move || while read(&queue) {})
            };
            queue.give_up(unwanted);
            assert!(queue.take(wanted).is_some());
            queue.close();
            reader.join().unwrap();
            assert_eq!(lock(&queue.state).staged, 0);
        });
    }

    /// A write waits for the room of the one before.
    #[test]
    fn writes_keep_their_order_through_room_for_one() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(1));
            let writer = {
                let queue = queue.clone();
                thread::spawn(move || {
                    [(); 2].map(|()| {
                        let (run, bytes) = queue.next_write().unwrap();
                        queue.written(bytes.len());
                        run
                    })
                })
            };
            [0, 1].map(run).into_iter().for_each(|run| queue.push_write(run, vec![0]));
            assert_eq!(writer.join().unwrap(), [0, 1].map(run));
            assert_eq!(lock(&queue.state).unwritten, 0);
        });
    }

    /// Closing the spill wakes all threads that wait for a piece or for room to write.
    #[test]
    fn close_wakes_all_sides() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(1));
            let id = ask(&queue, 1);
            queue.push_write(run(0), vec![0]);
            let taker = {
                let queue = queue.clone();
                thread::spawn(move || queue.take(id).is_none())
            };
            let pusher = {
                let queue = queue.clone();
                thread::spawn(move || queue.push_write(run(1), vec![0]))
            };
            queue.close();
            assert!(taker.join().unwrap() && queue.next_read().is_none() && queue.next_write().is_none());
            pusher.join().unwrap();
        });
    }
}
