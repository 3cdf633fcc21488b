//! Compiles kernels on threads of its own, several at a time, while the callers continue.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::Gpu;

/// Numbers of kernels of a device that were requested and that are ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compilation {
    /// Number of kernels that are ready to run.
    pub ready: u32,
    /// Number of kernels requested so far.
    pub asked: u32,
}

impl Compilation {
    /// Whether work waits for a kernel.
    #[must_use]
    pub fn is_running(self) -> bool {
        self.ready < self.asked
    }
}

/// Counters of a [`Compilation`], which several threads increment.
#[derive(Debug, Default)]
pub(super) struct Counts {
    ready: AtomicU32,
    asked: AtomicU32,
}

impl Counts {
    pub(super) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Release);
    }

    pub(super) fn finish(&self) {
        self.ready.fetch_add(1, Ordering::Release);
    }

    fn now(&self) -> Compilation {
        // In this order, so that never more are ready than were asked for.
        let ready = self.ready.load(Ordering::Acquire);
        Compilation { ready, asked: self.asked.load(Ordering::Acquire) }
    }
}

/// Maximum number of threads that compile; more would wait for the locks of drivers.
const MAX_THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that compile kernels. They start with the first kernel and end with the device.
#[derive(Default)]
pub(super) struct Compiler {
    threads: Mutex<Option<Threads>>,
    /// Whether the threads end. Jobs that have not begun are then dropped.
    ending: Arc<AtomicBool>,
}

struct Threads {
    jobs: Sender<Job>,
    running: Vec<JoinHandle<()>>,
}

impl Compiler {
    /// Runs `job` soon, on another thread if there is one.
    pub(super) fn add(&self, job: impl FnOnce() + Send + 'static) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = threads.get_or_insert_with(|| Threads::start(&self.ending));
        if threads.running.is_empty() {
            job();
        } else if let Err(unsent) = threads.jobs.send(Box::new(job)) {
            // No thread is left.
            unsent.0();
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Threads { jobs, running }) = threads else { return };
        drop(jobs);
        // A driver must not be unloaded under a thread that is inside it.
        for thread in running {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Threads {
    fn start(ending: &Arc<AtomicBool>) -> Self {
        let (jobs, taken) = mpsc::channel();
        let taken = Arc::new(Mutex::new(taken));
        let most = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let start = |_| {
            let (taken, ending) = (Arc::clone(&taken), Arc::clone(ending));
            thread::Builder::new().name("compile".into()).spawn(move || work(&taken, &ending)).ok()
        };
        Self { jobs, running: (0..most).filter_map(start).collect() }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, ending: &AtomicBool) {
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(job) = next() {
        if !ending.load(Ordering::Relaxed) {
            job();
        }
    }
}

impl Gpu {
    /// Returns the numbers of kernels that were requested and that are ready. Most drivers compile a kernel when it
    /// is requested, software drivers when it first runs.
    #[must_use]
    pub fn compilation(&self) -> Compilation {
        self.counts.now()
    }
}
