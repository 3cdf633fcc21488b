//! The store: saves and loads blocks in the background, shard by shard; a block becomes visible once it is
//! complete.

mod dump;
mod task;

pub use dump::Dump;
pub use task::Task;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvblock::BlockHash;

use crate::stack::TierStack;
use crate::sync::lock;
use crate::tier::{TierError, TierName};
use dump::{Partial, Places};
use task::TaskShared;

/// Limits of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Worker threads, each moving one block or shard at a time.
    pub streams: usize,
    /// Limit on queued blocks and shards, over all tasks.
    pub waiting_depth: usize,
    /// Limit on blocks of which only some shards have been dumped.
    pub partial_max: usize,
    /// Time limit of [`Store::wait`].
    pub timeout: Duration,
}

impl StoreConfig {
    /// The defaults of UCM: 8 streams, 1024 waiting, 30 s; and 1024 partial blocks.
    pub const UCM: Self =
        Self { streams: 8, waiting_depth: 1024, partial_max: 1024, timeout: Duration::from_secs(30) };

    /// Sets the number of worker threads.
    #[must_use]
    pub const fn streams(self, threads: usize) -> Self {
        Self { streams: threads, ..self }
    }

    /// Sets the limit on queued blocks and shards, over all tasks.
    #[must_use]
    pub const fn waiting_depth(self, entries: usize) -> Self {
        Self { waiting_depth: entries, ..self }
    }

    /// Sets the limit on blocks of which only some shards have been dumped.
    #[must_use]
    pub const fn partial_max(self, blocks: usize) -> Self {
        Self { partial_max: blocks, ..self }
    }

    /// Sets the time limit of [`Store::wait`].
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// Why a store call failed.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The queue has no room for the task; nothing was queued.
    #[error("task of {jobs} blocks on a queue with {queued} of {depth} places taken")]
    QueueFull {
        /// Blocks of the task.
        jobs: usize,
        /// Blocks queued.
        queued: usize,
        /// `waiting_depth`.
        depth: usize,
    },
    /// Too many blocks are being dumped by shards.
    #[error("{partial} blocks are dumped in part, the limit is {partial_max}")]
    TooManyPartial {
        /// Blocks dumped in part, including those of this call.
        partial: usize,
        /// `partial_max`.
        partial_max: usize,
    },
    /// One shard is expected for each block of a dump; nothing was queued.
    #[error("{given} shards for a dump of {expected} blocks")]
    BlockCount {
        /// Shards given.
        given: usize,
        /// Blocks of the dump.
        expected: usize,
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
    /// A buffer has the wrong size, or the shard does not exist; nothing was queued.
    #[error("the task does not fit the layout of the store")]
    Layout {
        /// Mismatch that the tier reported.
        #[source]
        source: TierError,
    },
    /// The store of a dump is gone.
    #[error("the store has shut down")]
    ShutDown,
    /// The system refused a thread.
    #[error("stream {index} of {streams} did not start")]
    Spawn {
        /// Index of the stream.
        index: usize,
        /// Streams asked for.
        streams: usize,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

struct Job {
    key: BlockHash,
    work: Work,
    /// The task and the position in it; prefetches have none.
    task: Option<(Arc<TaskShared>, usize)>,
}

enum Work {
    Load { shard: u32, buffer: Vec<u8> },
    Dump { block: Arc<Partial>, shard: u32, bytes: Arc<[u8]> },
    DumpBlock { bytes: Arc<[u8]> },
    Prefetch,
}

struct Shared {
    tiers: Arc<TierStack>,
    queue: Mutex<Queue>,
    work: Condvar,
    places: Places,
    config: StoreConfig,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Loads and dumps blocks on background streams over a [`TierStack`].
///
/// Blocks are saved whole ([`Store::dump_blocks`]) or shard by shard ([`Store::dump`]).
pub struct Store {
    shared: Arc<Shared>,
    streams: Vec<JoinHandle<()>>,
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
        let (queue, work, places) = (Mutex::default(), Condvar::new(), Places::new(config.partial_max));
        let shared = Arc::new(Shared { tiers, queue, work, places, config });
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

    /// Says which blocks a load would find now.
    #[must_use]
    pub fn lookup(&self, blocks: &[BlockHash]) -> Vec<bool> {
        self.shared.tiers.lookup_many(blocks).iter().map(Option::is_some).collect()
    }

    /// The last block of the leading run of hits, or `None` when the first block misses.
    #[must_use]
    pub fn lookup_on_prefix(&self, blocks: &[BlockHash]) -> Option<usize> {
        self.shared.tiers.lookup_prefix(blocks).len().checked_sub(1)
    }

    /// Copies blocks into the fastest tiers in the background. Nobody waits for it: failures are counted per
    /// tier, and blocks for which the queue has no room are skipped. Returns how many blocks were queued.
    pub fn prefetch(&self, blocks: &[BlockHash]) -> usize {
        let mut queue = lock(&self.shared.queue);
        let room = self.shared.config.waiting_depth.saturating_sub(queue.jobs.len());
        let accepted = &blocks[..room.min(blocks.len())];
        queue.jobs.extend(accepted.iter().map(|&key| Job { key, work: Work::Prefetch, task: None }));
        drop(queue);
        self.shared.work.notify_all();
        accepted.len()
    }

    /// Loads one shard of each block into the buffer given with it; [`Self::wait`] returns the filled
    /// buffers.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`], or [`StoreError::Layout`] for a buffer of the wrong size.
    pub fn load(&self, blocks: Vec<(BlockHash, Vec<u8>)>, shard: u32) -> Result<Task, StoreError> {
        let layout = self.shared.tiers.layout();
        for (_, buffer) in &blocks {
            layout.check_shard(shard, buffer.len()).map_err(|source| StoreError::Layout { source })?;
        }
        self.shared
            .enqueue(blocks.into_iter().map(|(key, buffer)| (key, Work::Load { shard, buffer })).collect())
    }

    /// Begins to save `blocks` shard by shard. Repeats are saved once each.
    ///
    /// # Errors
    /// [`StoreError::TooManyPartial`].
    pub fn dump(&self, blocks: Vec<BlockHash>) -> Result<Dump, StoreError> {
        Dump::new(self.shared.clone(), blocks)
    }

    /// Saves whole blocks, all shards at once. A block is visible once it has been written.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`], or [`StoreError::Layout`].
    pub fn dump_blocks(&self, blocks: Vec<(BlockHash, Arc<[u8]>)>) -> Result<Task, StoreError> {
        let layout = self.shared.tiers.layout();
        for (_, bytes) in &blocks {
            layout.check_block(bytes.len()).map_err(|source| StoreError::Layout { source })?;
        }
        self.shared.enqueue(blocks.into_iter().map(|(key, bytes)| (key, Work::DumpBlock { bytes })).collect())
    }

    /// Waits for a task, and returns the buffers of a load in the order of its blocks (empty ones for a
    /// dump).
    ///
    /// # Errors
    /// [`StoreError::Block`] when any block failed; the others were transferred all the same.
    /// [`StoreError::Timeout`] after the configured time.
    pub fn wait(&self, task: Task) -> Result<Vec<Vec<u8>>, StoreError> {
        let begin = Instant::now();
        let timeout = self.shared.config.timeout;
        let (mut state, _) = task
            .shared
            .finished
            .wait_timeout_while(lock(&task.shared.state), timeout, |state| state.remaining > 0)
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(tier) = state.last_tier {
            self.shared.tiers.counters().waited(tier, begin.elapsed());
        }
        if state.remaining > 0 {
            return Err(StoreError::Timeout { timeout });
        }
        match state.failure.take() {
            Some((position, source)) => Err(StoreError::Block { position, source }),
            None => Ok(std::mem::take(&mut state.buffers)),
        }
    }

    /// Whether a task has finished, successfully or not; never blocks on I/O.
    #[must_use]
    pub fn check(&self, task: &Task) -> bool {
        lock(&task.shared.state).remaining == 0
    }
}

impl Drop for Store {
    /// Finishes what is queued, then joins the streams.
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
    fn enqueue(&self, works: Vec<(BlockHash, Work)>) -> Result<Task, StoreError> {
        let depth = self.config.waiting_depth;
        let mut queue = lock(&self.queue);
        if queue.closed {
            return Err(StoreError::ShutDown);
        }
        let (jobs, queued) = (works.len(), queue.jobs.len());
        if queued + jobs > depth {
            return Err(StoreError::QueueFull { jobs, queued, depth });
        }
        let task = Task::new(jobs);
        queue.jobs.extend(works.into_iter().enumerate().map(|(position, (key, work))| Job {
            key,
            work,
            task: Some((task.shared.clone(), position)),
        }));
        drop(queue);
        self.work.notify_all();
        Ok(task)
    }

    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.closed => return,
                    None => queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            let key = job.key;
            // A panic of a tier must not leave the task waiting for ever.
            let moved = std::panic::AssertUnwindSafe(|| self.perform(key, job.work));
            let result = std::panic::catch_unwind(moved).unwrap_or(Err(TierError::Panicked { key }));
            if let Some((task, position)) = job.task {
                task.finish(position, result);
            }
        }
    }

    fn perform(&self, key: BlockHash, work: Work) -> Result<(Vec<u8>, Option<TierName>), TierError> {
        match work {
            Work::Load { shard, mut buffer } => {
                let tier = self.tiers.load_shard(key, shard, &mut buffer)?;
                Ok((buffer, Some(tier)))
            }
            Work::Dump { block, shard, bytes } => {
                self.dump(key, &block, shard, &bytes).map(|()| (Vec::new(), None))
            }
            Work::DumpBlock { bytes } => self.tiers.store(key, &bytes).map(|_| (Vec::new(), None)),
            Work::Prefetch => {
                let mut block = vec![0; self.tiers.layout().block_bytes()];
                self.tiers.load(key, &mut block)?;
                Ok((Vec::new(), None))
            }
        }
    }

    fn dump(&self, key: BlockHash, block: &Partial, shard: u32, bytes: &[u8]) -> Result<(), TierError> {
        let layout = self.tiers.layout();
        if layout.shards() == 1 {
            return self.tiers.store(key, bytes).map(drop);
        }
        match block.take(layout, shard, bytes)? {
            Some(whole) => self.tiers.store(key, whole.bytes()).map(drop),
            None => Ok(()),
        }
    }
}
