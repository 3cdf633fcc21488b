//! The store: saves blocks in the background; a block becomes visible once it is complete. Loads are tasks of the
//! [`engine`](crate::engine).

mod task;

pub use task::Task;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use derive_setters::Setters;
use kvblock::BlockHash;

use crate::stack::TierStack;
use crate::sync::lock;
use crate::tier::TierError;
use task::TaskShared;

/// Limits of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Number of worker threads, each writing one block at a time.
    pub streams: usize,
    /// Limit on queued blocks, over all tasks.
    pub waiting_depth: usize,
    /// Time limit of [`Store::wait`].
    pub timeout: Duration,
}

impl StoreConfig {
    /// The defaults of UCM: 8 streams, 1024 waiting, 30 s.
    pub const UCM: Self = Self { streams: 8, waiting_depth: 1024, timeout: Duration::from_secs(30) };
}

/// Why a store call failed.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The queue has no room for the task; nothing was queued.
    #[error("task of {jobs} blocks on a queue with {queued} of {depth} places taken")]
    QueueFull {
        /// Number of blocks of the task.
        jobs: usize,
        /// Number of blocks queued.
        queued: usize,
        /// Number of places of the queue, `waiting_depth`.
        depth: usize,
    },
    /// The task did not finish in time; it continues in the background.
    #[error("task is not finished after {timeout:?}")]
    Timeout {
        /// The configured timeout.
        timeout: Duration,
    },
    /// A block of the task failed; the first one is named.
    #[error("block {position} of the task failed")]
    Block {
        /// Position in the task.
        position: usize,
        /// Why.
        #[source]
        source: TierError,
    },
    /// A block has the wrong size; nothing was queued.
    #[error("the task does not fit the layout of the store")]
    Layout {
        /// Mismatch that the tier reported.
        #[source]
        source: TierError,
    },
    /// The system refused a thread.
    #[error("stream {index} of {streams} did not start")]
    Spawn {
        /// Index of the stream.
        index: usize,
        /// Number of streams that was requested.
        streams: usize,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// A block to write.
struct Job {
    key: BlockHash,
    bytes: Arc<[u8]>,
    task: Arc<TaskShared>,
    /// Position of the block in the task.
    position: usize,
}

struct Shared {
    tiers: Arc<TierStack>,
    queue: Mutex<Queue>,
    work: Condvar,
    config: StoreConfig,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Saves blocks on background streams over a [`TierStack`].
///
/// ```
/// use std::sync::Arc;
/// use prefetch::kvblock::BlockHash;
/// use prefetch::policy::PolicyKind;
/// use prefetch::stack::TierStack;
/// use prefetch::store::{Store, StoreConfig};
/// use prefetch::tier::{BlockLayout, HostTier, TierName};
///
/// let host = HostTier::new(BlockLayout::new(1, 64).unwrap(), 100, PolicyKind::Lru, None);
/// let tiers = Arc::new(TierStack::new(vec![Arc::new(host)])?);
/// let store = Store::new(tiers.clone(), StoreConfig::UCM)?;
/// let key = BlockHash::from_bytes([1; 32]);
/// let task = store.dump(vec![(key, Arc::from([7; 64]))])?;
/// store.wait(task)?;
/// assert_eq!(tiers.lookup(key), Some(TierName::HOST));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store {
    shared: Arc<Shared>,
    streams: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { tiers, queue, config, .. } = &*self.shared;
        let queued = lock(queue).jobs.len();
        f.debug_struct("Store")
            .field("tiers", tiers)
            .field("config", config)
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Starts the streams.
    ///
    /// # Errors
    /// [`StoreError::Spawn`] when the system refuses a thread.
    ///
    /// # Panics
    /// When there is no stream: no task would ever end.
    pub fn new(tiers: Arc<TierStack>, config: StoreConfig) -> Result<Self, StoreError> {
        assert!(config.streams > 0, "a store with {} streams finishes no task", config.streams);
        let shared = Arc::new(Shared { tiers, queue: Mutex::default(), work: Condvar::new(), config });
        let mut store = Self { shared, streams: Vec::new() };
        for index in 0..config.streams {
            let shared = store.shared.clone();
            let stream = std::thread::Builder::new()
                .name(format!("store-{index}"))
                .spawn(move || shared.run())
                .map_err(|source| StoreError::Spawn { index, streams: config.streams, source })?;
            store.streams.push(stream);
        }
        Ok(store)
    }

    /// Saves blocks. Each is visible once it has been written.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`], or [`StoreError::Layout`].
    pub fn dump(&self, blocks: Vec<(BlockHash, Arc<[u8]>)>) -> Result<Task, StoreError> {
        let layout = self.shared.tiers.layout();
        for (_, bytes) in &blocks {
            layout.check_block(bytes.len()).map_err(|source| StoreError::Layout { source })?;
        }
        self.shared.enqueue(blocks)
    }

    /// Waits for a task.
    ///
    /// # Errors
    /// [`StoreError::Block`] when any block failed; the others were written nevertheless.
    /// [`StoreError::Timeout`] after the configured time.
    pub fn wait(&self, task: Task) -> Result<(), StoreError> {
        let timeout = self.shared.config.timeout;
        let (mut state, _) = task
            .shared
            .finished
            .wait_timeout_while(lock(&task.shared.state), timeout, |state| state.remaining > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if state.remaining > 0 {
            return Err(StoreError::Timeout { timeout });
        }
        let failure = state.failure.take();
        failure.map_or(Ok(()), |(position, source)| Err(StoreError::Block { position, source }))
    }

    /// Whether a task has finished, successfully or not; never blocks on I/O.
    #[must_use]
    pub fn check(&self, task: &Task) -> bool {
        lock(&task.shared.state).remaining == 0
    }
}

impl Drop for Store {
    /// Finishes queued tasks, then joins the streams.
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.work.notify_all();
        for stream in self.streams.drain(..) {
            if stream.join().is_err() && !std::thread::panicking() {
                panic!("a store stream panicked outside of a tier");
            }
        }
    }
}

impl Shared {
    fn enqueue(&self, blocks: Vec<(BlockHash, Arc<[u8]>)>) -> Result<Task, StoreError> {
        let depth = self.config.waiting_depth;
        let mut queue = lock(&self.queue);
        let (jobs, queued) = (blocks.len(), queue.jobs.len());
        if queued + jobs > depth {
            return Err(StoreError::QueueFull { jobs, queued, depth });
        }
        let task = Task::new(jobs);
        let job = |(position, (key, bytes))| Job { key, bytes, task: task.shared.clone(), position };
        queue.jobs.extend(blocks.into_iter().enumerate().map(job));
        drop(queue);
        self.work.notify_all();
        Ok(task)
    }

    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Job { key, bytes, task, position } = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.closed => return,
                    None => queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            // A panic of a tier must not leave the task waiting for ever.
            let write = std::panic::AssertUnwindSafe(|| self.tiers.store(key, &bytes).map(drop));
            let result = std::panic::catch_unwind(write).unwrap_or(Err(TierError::Panicked { key }));
            task.finish(position, result);
        }
    }
}
