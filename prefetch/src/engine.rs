//! The prefetch engine: bounded priority queues, a pool of workers, and handles to wait on.

mod board;
mod handle;

pub use board::{BadBlock, Loaded, Settled, Submission, TaskBoard, TaskKey, TaskOutcome};
pub use handle::Handle;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use derive_setters::Setters;
use kvblock::{BlockHash, SeqId};
use rustc_hash::FxHashMap;

use crate::clock::{Clock, SystemClock};
use crate::stack::TierStack;
use crate::sync::lock;
use crate::tier::TierError;
use handle::Slot;

/// Limits of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Number of worker threads, each loading one block at a time.
    pub prefetch_workers: usize,
    /// Limit on tasks that have not ended.
    pub max_pending_prefetch: usize,
    /// Number of steps ahead of the current one for which tasks may be submitted.
    pub prefetch_ahead: u32,
    /// Limit on loaded blocks kept for their consumers; the least recently used is evicted first.
    pub prefetch_cache_size: usize,
}

impl EngineConfig {
    /// The defaults that GSA states: 4 workers, 64 tasks, 2 steps ahead, 1000 blocks.
    pub const GSA: Self =
        Self { prefetch_workers: 4, max_pending_prefetch: 64, prefetch_ahead: 2, prefetch_cache_size: 1000 };
}

/// Why a task was not accepted.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full of work that is at least as urgent.
    #[error("prefetch queue holds its limit of {pending_max} tasks")]
    QueueFull {
        /// Maximum number of tasks, `max_pending_prefetch`.
        pending_max: usize,
    },
    /// The step lies beyond the prefetch window.
    #[error("step {step} is too far ahead, the latest that may be prefetched for is {latest}")]
    TooFarAhead {
        /// The requested step.
        step: u64,
        /// The current step plus `prefetch_ahead`.
        latest: u64,
    },
    /// The blocks would evict one another from the cache.
    #[error("task of {blocks} blocks where the cache holds {blocks_max}")]
    TooLarge {
        /// Number of distinct blocks of the task.
        blocks: usize,
        /// Number of blocks that the cache holds, `prefetch_cache_size`.
        blocks_max: usize,
    },
    /// The sequence has a task of this or a newer generation.
    #[error("task {key:?} is not newer than generation {live}, which is pending")]
    Stale {
        /// The task.
        key: TaskKey,
        /// The pending generation.
        live: u64,
    },
    /// The engine shuts down.
    #[error("the prefetch engine has shut down")]
    ShutDown,
}

/// Why an engine did not start.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// A limit of zero lets nothing through.
    #[error("{limit} must be at least 1")]
    ZeroLimit {
        /// Name of the limit.
        limit: &'static str,
    },
    /// The system refused a thread.
    #[error("worker {index} of {workers} did not start")]
    Spawn {
        /// Index of the worker.
        index: usize,
        /// Number of workers that was requested.
        workers: usize,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    tiers: Arc<TierStack>,
    clock: Arc<dyn Clock>,
    spare: Spare,
}

/// Buffers of freed blocks, for later loads: fresh memory must be mapped and cleared first.
struct Spare {
    bytes: usize,
    most: usize,
    buffers: Mutex<Vec<Arc<[u8]>>>,
}

impl Spare {
    fn take(&self) -> Arc<[u8]> {
        let kept = lock(&self.buffers).pop();
        kept.unwrap_or_else(|| std::iter::repeat_n(0, self.bytes).collect())
    }

    fn keep(&self, mut buffer: Arc<[u8]>) {
        let mut buffers = lock(&self.buffers);
        let fits = buffer.len() == self.bytes && buffers.len() < self.most;
        if fits && Arc::get_mut(&mut buffer).is_some() {
            buffers.push(buffer);
        }
    }
}

struct State {
    board: TaskBoard,
    slots: FxHashMap<TaskKey, Arc<Slot>>,
    shut_down: bool,
}

impl State {
    /// Pairs the tasks that ended with their slots. Slots are settled after the lock is released, since
    /// wakers run code of the executor.
    fn take_settled(&mut self) -> Vec<(Arc<Slot>, Settled)> {
        let settled = self.board.take_settled();
        settled.into_iter().filter_map(|s| Some((self.slots.remove(&s.key)?, s))).collect()
    }
}

impl Shared {
    /// Changes the board, then releases the lock and settles the tasks that ended through the change.
    fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let settled = state.take_settled();
        drop(state);
        settle(settled);
        result
    }

    fn cancel(&self, seq: SeqId, generation: Option<u64>) -> bool {
        self.update(|state| match generation {
            Some(generation) if !state.slots.contains_key(&TaskKey { seq, generation }) => false,
            _ => state.board.cancel(seq),
        })
    }

    fn load(&self, block: BlockHash) -> Result<Loaded, Arc<TierError>> {
        let loaded = catch_unwind(AssertUnwindSafe(|| self.read(block)));
        loaded.unwrap_or(Err(TierError::Panicked { key: block })).map_err(Arc::new)
    }

    fn read(&self, block: BlockHash) -> Result<Loaded, TierError> {
        let mut bytes = self.spare.take();
        let unshared = Arc::get_mut(&mut bytes).expect("nobody else has the buffer");
        match self.tiers.load(block, unshared) {
            Ok(tier) => Ok(Loaded { bytes, tier }),
            Err(error) => {
                self.spare.keep(bytes);
                Err(error)
            }
        }
    }

    fn work(&self) {
        loop {
            let mut state = lock(&self.state);
            let next = loop {
                if state.shut_down {
                    return;
                }
                let next = state.board.next_load(self.clock.now());
                let settled = state.take_settled();
                if next.is_some() || !settled.is_empty() {
                    drop(state);
                    settle(settled);
                    break next;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            if let Some(block) = next {
                let result = self.load(block);
                self.update(|state| state.board.finish(block, result, self.clock.now()));
            }
        }
    }
}

fn settle(settled: Vec<(Arc<Slot>, Settled)>) {
    for (slot, settled) in settled {
        slot.settle(settled);
    }
}

/// Loads blocks from a [`TierStack`] into memory ahead of their use.
///
/// The sizes of queues, cache and thread pool are fixed at the start. Every accepted task ends, even through
/// a shutdown, a panic of a tier or a replacement, so no waiter hangs.
pub struct Engine {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("tiers", &self.shared.tiers)
            .field("pending", &self.pending())
            .field("cached_blocks", &self.cached_blocks())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`EngineError`] for a limit of zero, or when the system refuses a thread.
    pub fn new(tiers: Arc<TierStack>, config: EngineConfig) -> Result<Self, EngineError> {
        Self::start(tiers, config, Arc::new(SystemClock::new()))
    }

    /// As [`Self::new`], with another clock for the times that are counted. [`Handle::wait`] ends by the clock of the
    /// system.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(feature = "testing")]
    pub fn with_clock(
        tiers: Arc<TierStack>,
        config: EngineConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EngineError> {
        Self::start(tiers, config, clock)
    }

    fn start(
        tiers: Arc<TierStack>,
        config: EngineConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EngineError> {
        for (limit, value) in [
            ("prefetch_workers", config.prefetch_workers),
            ("max_pending_prefetch", config.max_pending_prefetch),
            ("prefetch_cache_size", config.prefetch_cache_size),
        ] {
            if value == 0 {
                return Err(EngineError::ZeroLimit { limit });
            }
        }
        let state = State { board: TaskBoard::new(config), slots: FxHashMap::default(), shut_down: false };
        let spare = Spare {
            bytes: tiers.layout().block_bytes(),
            most: config.prefetch_cache_size.div_ceil(4),
            buffers: Mutex::default(),
        };
        let (state, work) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { state, work, tiers, clock, spare });
        // Built before its workers, so that a failed start joins those that run.
        let mut engine = Self { shared, workers: Vec::with_capacity(config.prefetch_workers) };
        for index in 0..config.prefetch_workers {
            let shared = engine.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("prefetch-{index}"))
                .spawn(move || shared.work())
                .map_err(|source| EngineError::Spawn { index, workers: config.prefetch_workers, source })?;
            engine.workers.push(worker);
        }
        Ok(engine)
    }

    /// Queues a task; never blocks on I/O.
    ///
    /// # Errors
    /// [`SubmitError`] when a limit is reached, which changes nothing.
    pub fn submit(&self, submission: Submission) -> Result<Handle, SubmitError> {
        let key = submission.key;
        let slot = Arc::new(Slot::default());
        self.shared.update(|state| {
            if state.shut_down {
                return Err(SubmitError::ShutDown);
            }
            state.board.submit(submission)?;
            state.slots.insert(key, slot.clone());
            Ok(())
        })?;
        self.shared.work.notify_all();
        let (counters, clock) = (self.shared.tiers.counters().clone(), self.shared.clock.clone());
        Ok(Handle { key, slot, counters, clock, engine: Arc::downgrade(&self.shared) })
    }

    /// Announces that `step` runs now; tasks may be submitted for up to `prefetch_ahead` steps later.
    pub fn advance(&self, step: u64) {
        self.shared.update(|state| state.board.advance(step));
    }

    /// Cancels the task of a sequence that ended or was preempted. False when it has none.
    pub fn cancel(&self, seq: SeqId) -> bool {
        self.shared.cancel(seq, None)
    }

    /// A prefetched block, or `None` when it was not loaded or has been evicted since: [`Self::load`] it in
    /// that case.
    #[must_use]
    pub fn get(&self, block: BlockHash) -> Option<Arc<[u8]>> {
        lock(&self.shared.state).board.get(block)
    }

    /// Removes a prefetched block from the cache, for when its bytes are needed nowhere else.
    #[must_use]
    pub fn take(&self, block: BlockHash) -> Option<Arc<[u8]>> {
        lock(&self.shared.state).board.take(block)
    }

    /// Recycles the memory of a block that is no longer needed, for the next load. Up to a quarter of `prefetch_cache_size`
    /// buffers are kept.
    pub fn give_back(&self, block: Arc<[u8]>) {
        self.shared.spare.keep(block);
    }

    /// A block from the cache, or else loaded on the caller's thread.
    ///
    /// # Errors
    /// As [`TierStack::load`].
    pub fn load(&self, block: BlockHash) -> Result<Arc<[u8]>, TierError> {
        if let Some(bytes) = self.get(block) {
            return Ok(bytes);
        }
        let start = self.shared.clock.now();
        let Loaded { bytes, tier } = self.shared.read(block)?;
        let time = self.shared.clock.now() - start;
        self.shared.tiers.counters().waited(tier, time);
        self.shared.tiers.counters().transfer(time, time);
        Ok(bytes)
    }

    /// Number of tasks that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        lock(&self.shared.state).board.pending()
    }

    /// Number of blocks in the cache.
    #[must_use]
    pub fn cached_blocks(&self) -> usize {
        lock(&self.shared.state).board.cached_blocks()
    }

    /// Cancels pending tasks and joins the workers, each after its current load. Dropping the engine does the same.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.update(|state| {
            state.shut_down = true;
            state.board.cancel_all();
        });
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of tiers; one that died of its own bug must not hide in a drop.
            if worker.join().is_err() && !std::thread::panicking() {
                panic!("a prefetch worker panicked outside of a load");
            }
        }
    }
}
