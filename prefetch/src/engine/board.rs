//! The engine without its threads: a pure state machine over tasks, queues and the block cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use derive_setters::Setters;
use kvblock::{BlockHash, SeqId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{EngineConfig, SubmitError};
use crate::plan::Priority;
use crate::recency::Recency;
use crate::tier::{TierError, TierName};

/// Names one submission: the newest generation of a sequence replaces the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TaskKey {
    /// The sequence that waits.
    pub seq: SeqId,
    /// Number that increases with each submission of the sequence; for instance the step.
    pub generation: u64,
}

/// Work handed to the engine.
#[derive(Clone, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct Submission {
    /// Name of the task.
    pub key: TaskKey,
    /// The step that needs the blocks.
    pub step: u64,
    /// Urgency.
    pub priority: Priority,
    /// Blocks, most important first. Repeats are loaded once.
    #[setters(skip)]
    pub blocks: Vec<BlockHash>,
}

impl Submission {
    /// Blocks to load for step 0, most important first.
    #[must_use]
    pub fn new(key: TaskKey, priority: Priority, blocks: Vec<BlockHash>) -> Self {
        Self { key, step: 0, priority, blocks }
    }
}

/// A loaded block, and the tier that served it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The bytes of the whole block.
    pub bytes: Arc<[u8]>,
    /// The tier that served the block.
    pub tier: TierName,
}

/// Result of a task.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TaskOutcome {
    /// Every block was in the cache when the task ended.
    Ready {
        /// Number of blocks read from tiers, by this task or by another one that needed them at the same time.
        loaded: u32,
        /// Number of blocks that were already in the cache.
        cached: u32,
    },
    /// Some blocks could not be loaded; the other blocks were.
    Failed(Arc<[BadBlock]>),
    /// The wait timed out; the task continues. Only [`super::Handle::wait`] returns this.
    Timeout,
    /// The task was cancelled, replaced by a newer generation, displaced by more urgent work, or ended by a shutdown.
    Cancelled,
}

/// A block that could not be loaded.
#[derive(Clone, Debug)]
pub struct BadBlock {
    /// Position of the block in the submission.
    pub position: u32,
    /// Hash of the block.
    pub block: BlockHash,
    /// The reason.
    pub error: Arc<TierError>,
}

/// A task that has just ended.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The task.
    pub key: TaskKey,
    /// Result of the task; never [`TaskOutcome::Timeout`].
    pub outcome: TaskOutcome,
    /// Time from the first load to the end of the task; zero when every block was cached.
    pub transfer: Duration,
    /// The tier that served the block loaded last.
    pub last_tier: Option<TierName>,
}

#[derive(Debug)]
struct Task {
    generation: u64,
    /// Number that distinguishes this submission from an earlier one with the same key, whose loads may still be in
    /// flight.
    ticket: u64,
    priority: Priority,
    blocks: Vec<BlockHash>,
    /// Index of the next block to look up or to load.
    next: usize,
    /// Number of blocks whose loads were issued and have not ended.
    outstanding: u32,
    cached: u32,
    loaded: u32,
    bad: Vec<BadBlock>,
    first_load: Option<Duration>,
    last_tier: Option<TierName>,
}

impl Task {
    fn is_done(&self) -> bool {
        self.next == self.blocks.len() && self.outstanding == 0
    }
}

/// Tasks, their queues, blocks in flight and the cache of loaded blocks. Methods take the time as an argument.
///
/// The unit of dispatch is a block: an urgent task overtakes a long one between two blocks. A block that
/// several tasks want is loaded once.
#[derive(Debug)]
pub struct TaskBoard {
    config: EngineConfig,
    step: u64,
    tasks: FxHashMap<SeqId, Task>,
    /// Tasks with blocks still to issue, by class, oldest first.
    queues: [VecDeque<SeqId>; Priority::ALL.len()],
    /// Blocks being loaded, with the tasks that wait for each.
    loading: FxHashMap<BlockHash, Vec<(SeqId, u64)>>,
    /// Ticket of the next submission.
    next_ticket: u64,
    cache: FxHashMap<BlockHash, Arc<[u8]>>,
    recency: Recency,
    settled: Vec<Settled>,
}

impl TaskBoard {
    /// An empty board at step 0.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            config,
            step: 0,
            tasks: FxHashMap::default(),
            queues: Default::default(),
            loading: FxHashMap::default(),
            next_ticket: 0,
            cache: FxHashMap::default(),
            recency: Recency::default(),
            settled: Vec::new(),
        }
    }

    /// Announces that `step` runs now, which moves the window of `prefetch_ahead`.
    pub fn advance(&mut self, step: u64) {
        self.step = step;
    }

    /// Number of tasks that have not ended, at most `max_pending_prefetch`.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.tasks.len()
    }

    /// Number of blocks in the cache, at most `prefetch_cache_size`.
    #[must_use]
    pub fn cached_blocks(&self) -> usize {
        self.cache.len()
    }

    /// Queues a task and cancels an older task of the same sequence. On a full board, the youngest LOW task
    /// that has not started makes room for more urgent work.
    ///
    /// # Errors
    /// [`SubmitError`], which leaves the board unchanged.
    pub fn submit(&mut self, submission: Submission) -> Result<(), SubmitError> {
        let Submission { key, step, priority, mut blocks } = submission;
        let latest = self.step.saturating_add(u64::from(self.config.prefetch_ahead));
        if step > latest {
            return Err(SubmitError::TooFarAhead { step, latest });
        }
        let mut seen = FxHashSet::default();
        blocks.retain(|block| seen.insert(*block));
        if blocks.len() > self.config.prefetch_cache_size {
            return Err(SubmitError::TooLarge {
                blocks: blocks.len(),
                blocks_max: self.config.prefetch_cache_size,
            });
        }
        let live = self.tasks.get(&key.seq).map(|task| task.generation);
        if let Some(live) = live.filter(|&live| live >= key.generation) {
            return Err(SubmitError::Stale { key, live });
        }
        if live.is_none() && self.tasks.len() >= self.config.max_pending_prefetch {
            let displaced = self.youngest_unstarted_low().filter(|_| priority < Priority::Low);
            let Some(displaced) = displaced else {
                return Err(SubmitError::QueueFull { pending_max: self.config.max_pending_prefetch });
            };
            self.cancel(displaced);
        }
        self.cancel(key.seq);
        self.next_ticket += 1;
        self.queues[priority as usize].push_back(key.seq);
        self.tasks.insert(
            key.seq,
            Task {
                generation: key.generation,
                ticket: self.next_ticket,
                priority,
                blocks,
                next: 0,
                outstanding: 0,
                cached: 0,
                loaded: 0,
                bad: Vec::new(),
                first_load: None,
                last_tier: None,
            },
        );
        Ok(())
    }

    /// The next block to load, or `None` when nothing is left to issue. The caller loads it and calls
    /// [`Self::finish`]; until then, no other caller gets the same block.
    pub fn next_load(&mut self, now: Duration) -> Option<BlockHash> {
        loop {
            let seq = *self.queues.iter().find_map(VecDeque::front)?;
            let task = self.tasks.get_mut(&seq).expect("a queued sequence has a task");
            let Some(&block) = task.blocks.get(task.next) else {
                self.queues[task.priority as usize].pop_front();
                self.settle_if_done(seq, now);
                continue;
            };
            task.next += 1;
            if self.cache.contains_key(&block) {
                self.recency.touch(block);
                task.cached += 1;
                continue;
            }
            task.outstanding += 1;
            task.first_load.get_or_insert(now);
            let ticket = (seq, task.ticket);
            if let Some(waiting) = self.loading.get_mut(&block) {
                waiting.push(ticket);
                continue;
            }
            self.loading.insert(block, vec![ticket]);
            return Some(block);
        }
    }

    /// Accepts the result of a load issued by [`Self::next_load`]. A block that no live task needs is discarded.
    ///
    /// # Panics
    /// When `block` was not being loaded.
    pub fn finish(&mut self, block: BlockHash, result: Result<Loaded, Arc<TierError>>, now: Duration) {
        let waiting = self.loading.remove(&block);
        let waiting = waiting.unwrap_or_else(|| panic!("{block:?} came back but was not being loaded"));
        let mut wanted = false;
        for (seq, ticket) in waiting {
            let task = self.tasks.get_mut(&seq).filter(|task| task.ticket == ticket);
            let Some(task) = task else { continue };
            wanted = true;
            task.outstanding -= 1;
            match &result {
                Ok(loaded) => {
                    task.loaded += 1;
                    task.last_tier = Some(loaded.tier);
                }
                Err(error) => {
                    let position =
                        task.blocks.iter().position(|&b| b == block).expect("it waited for the block");
                    let position = u32::try_from(position).expect("a task has fewer than 2^32 blocks");
                    task.bad.push(BadBlock { position, block, error: error.clone() });
                }
            }
            self.settle_if_done(seq, now);
        }
        if let (true, Ok(loaded)) = (wanted, result) {
            self.insert(block, loaded.bytes);
        }
    }

    /// Cancels the task of a sequence; false if it has none. Loads in flight finish and are discarded.
    pub fn cancel(&mut self, seq: SeqId) -> bool {
        let Some(task) = self.tasks.remove(&seq) else { return false };
        self.queues[task.priority as usize].retain(|&queued| queued != seq);
        self.settled.push(Settled {
            key: TaskKey { seq, generation: task.generation },
            outcome: TaskOutcome::Cancelled,
            transfer: Duration::ZERO,
            last_tier: None,
        });
        true
    }

    /// Cancels every task.
    pub fn cancel_all(&mut self) {
        let mut all: Vec<SeqId> = self.tasks.keys().copied().collect();
        all.sort_unstable();
        for seq in all {
            self.cancel(seq);
        }
    }

    /// Tasks that ended since the last call, in order.
    pub fn take_settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }

    /// A cached block, marked as used.
    pub fn get(&mut self, block: BlockHash) -> Option<Arc<[u8]>> {
        let bytes = self.cache.get(&block)?.clone();
        self.recency.touch(block);
        Some(bytes)
    }

    /// Removes a block from the cache, for instance once it is on the device.
    pub fn take(&mut self, block: BlockHash) -> Option<Arc<[u8]>> {
        self.recency.remove(&block);
        self.cache.remove(&block)
    }

    fn insert(&mut self, block: BlockHash, bytes: Arc<[u8]>) {
        self.cache.insert(block, bytes);
        self.recency.touch(block);
        while self.cache.len() > self.config.prefetch_cache_size {
            let oldest = self.recency.pop_oldest().expect("cache and recency list hold the same blocks");
            self.cache.remove(&oldest);
        }
    }

    fn youngest_unstarted_low(&self) -> Option<SeqId> {
        let low = &self.queues[Priority::Low as usize];
        low.iter().rev().copied().find(|seq| self.tasks[seq].next == 0)
    }

    fn settle_if_done(&mut self, seq: SeqId, now: Duration) {
        if !self.tasks.get(&seq).is_some_and(Task::is_done) {
            return;
        }
        let mut task = self.tasks.remove(&seq).expect("looked up above");
        self.queues[task.priority as usize].retain(|&queued| queued != seq);
        let outcome = if task.bad.is_empty() {
            TaskOutcome::Ready { loaded: task.loaded, cached: task.cached }
        } else {
            task.bad.sort_by_key(|bad| bad.position);
            TaskOutcome::Failed(task.bad.into())
        };
        self.settled.push(Settled {
            key: TaskKey { seq, generation: task.generation },
            outcome,
            transfer: task.first_load.map_or(Duration::ZERO, |first| now.saturating_sub(first)),
            last_tier: task.last_tier,
        });
    }
}
