//! All interleavings of threads at the queues of `spill`, by the model checker loom.

use loom::sync::{self, Arc};
use loom::thread;
use prefetch::spill::{Piece, SpillRun};

#[path = "../../src/spill/queue.rs"]
#[expect(dead_code, reason = "the spill calls more of it")]
mod queue;

use queue::{Queue, lock};

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
