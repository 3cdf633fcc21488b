//! Time that the test decides about, and limits after which a test fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use prefetch::clock::Clock;

/// A limit for what must come, so that a failed test ends.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Time that goes on as the test says.
#[derive(Default)]
pub(crate) struct TestClock {
    now: Mutex<Duration>,
    /// Number of times that somebody looked at the clock.
    looks: AtomicUsize,
}

impl TestClock {
    pub(crate) fn advance(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }

    /// Runs `wait` on a thread of its own, and `then` once that has looked at the clock, which nobody else does now.
    pub(crate) fn while_waiting<T: Send>(&self, wait: impl FnOnce() -> T + Send, then: impl FnOnce()) -> T {
        let before = self.looks.load(Ordering::SeqCst);
        thread::scope(|scope| {
            let waiter = scope.spawn(wait);
            until("it waits", || self.looks.load(Ordering::SeqCst) > before);
            then();
            waiter.join().unwrap()
        })
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        let now = *self.now.lock().unwrap();
        self.looks.fetch_add(1, Ordering::SeqCst);
        now
    }
}

/// Looks again and again whether something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "waiting in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The result of a call that must not wait for what never comes.
#[track_caller]
pub(crate) fn in_time<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, result) = mpsc::channel();
    thread::spawn(move || send.send(call()));
    result.recv_timeout(LONG).expect("the call ends")
}
