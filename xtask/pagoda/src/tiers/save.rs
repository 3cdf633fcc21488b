//! Saving: blocks that a step filled, from the device to the tiers.
//!
//! A step only queues the copies of its blocks on the device. A thread of its own waits for them, brings the bytes of a
//! block together and hands them to the streams that write: at 8B sizes a chunk fills 268 MB, which takes longer to copy
//! than to compute.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kvblock::{BlockHash, BlockId, GroupBlock, GroupId};
use models::{BlockRead, ModelError, Pipeline};
use prefetch::store::{Store, StoreError, Task};

use super::objects::Objects;
use super::{Origin, Tiers};
use crate::saves::{SaveProgress, Saves};
use crate::{Note, error_chain};

/// Maximum number of blocks per read and write task.
pub(super) const MAX_BLOCKS: usize = BlockRead::MAX_BLOCKS;

/// For each block of a read: its group, and the hash from which the names of its objects follow.
type Names = Vec<(GroupId, BlockHash)>;

/// A block that a step filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    pub(crate) group: GroupId,
    /// Hash of the tokens up to the end of the block.
    pub(crate) hash: BlockHash,
    /// Place of the block on the device.
    pub(crate) id: BlockId,
    pub(crate) origin: Origin,
}

/// Interval at which the thread looks whether writes have ended while it waits for reads.
const LOOKS: Duration = Duration::from_millis(2);

/// The thread that saves blocks to the tiers.
pub(super) struct Saver {
    /// Sender of reads to the thread; `None` once no more reads follow.
    reads: Option<SyncSender<(Names, BlockRead)>>,
    progress: Arc<SaveProgress>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts the thread. Up to `staged` reads may wait for the thread; with more, the step that saves waits.
    ///
    /// # Errors
    /// [`StoreError::Spawn`] when the system refuses a thread.
    pub(super) fn new(store: Store, objects: &Arc<Objects>, staged: usize) -> Result<Self, StoreError> {
        let (sender, reads) = sync_channel(staged);
        let progress = Arc::new(SaveProgress::default());
        let objects = Arc::clone(objects);
        let writer = Writer { store, objects, progress: Arc::clone(&progress), writes: VecDeque::new() };
        let thread =
            std::thread::Builder::new().name("save-blocks".to_owned()).spawn(move || writer.run(&reads));
        let thread = thread.map_err(|source| StoreError::Spawn { index: 0, streams: 1, source })?;
        Ok(Self { reads: Some(sender), progress, thread: Some(thread) })
    }

    fn save(&self, names: Names, read: BlockRead) {
        self.progress.state().open += 1;
        let reads = self.reads.as_ref().expect("open until it is dropped");
        if reads.send((names, read)).is_err() {
            // The thread ends early only by a panic, which its end tells.
            self.progress.state().open -= 1;
        }
    }

    /// Returns the number of saves that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.progress.state().ended
    }

    /// The saves that have begun so far.
    fn begun(&self) -> Saves {
        Saves::begun(&self.progress)
    }

    /// Waits until all saves have ended.
    fn wait(&self) {
        let running = || self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        let mut state = self.progress.state();
        while state.open > 0 && running() {
            let woken = self.progress.idle.wait_timeout(state, LOOKS);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Saver {
    /// Finishes queued saves.
    fn drop(&mut self) {
        self.reads = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the thread that saves blocks panicked");
        }
    }
}

/// State of the thread that saves blocks.
struct Writer {
    store: Store,
    objects: Arc<Objects>,
    progress: Arc<SaveProgress>,
    /// Writes under way, the oldest first.
    writes: VecDeque<Task>,
}

impl Writer {
    fn run(mut self, reads: &Receiver<(Names, BlockRead)>) {
        loop {
            let next = if self.writes.is_empty() {
                reads.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                reads.recv_timeout(LOOKS)
            };
            match next {
                Ok((names, read)) => self.write(&names, read),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while self.writes.front().is_some_and(|task| self.store.check(task)) {
                self.end_oldest();
            }
        }
        while self.end_oldest() {}
    }

    fn write(&mut self, names: &[(GroupId, BlockHash)], read: BlockRead) {
        let contents = match read.finish() {
            Ok(contents) => contents,
            Err(error) => {
                self.progress.state().lost.get_or_insert(error);
                return self.progress.end(None);
            }
        };
        let objects = |((group, hash), contents): (&(GroupId, BlockHash), &Arc<[u8]>)| {
            let names: Vec<BlockHash> = self.objects.names(*group, *hash).collect();
            names.into_iter().zip(self.objects.cut(*group, contents))
        };
        let blocks: Vec<(BlockHash, Arc<[u8]>)> = names.iter().zip(&contents).flat_map(objects).collect();
        loop {
            match self.store.dump(blocks.clone()) {
                Ok(task) => return self.writes.push_back(task),
                // The tiers are slower than the device.
                Err(StoreError::QueueFull { .. }) if self.end_oldest() => {}
                Err(error) => return self.progress.end(Some(&error)),
            }
        }
    }

    /// Waits for the oldest write; false if there is none.
    fn end_oldest(&mut self) -> bool {
        let Some(task) = self.writes.pop_front() else { return false };
        match self.store.wait(task) {
            Ok(()) => self.progress.end(None),
            Err(error) => self.progress.end(Some(&error)),
        }
        true
    }
}

impl Tiers {
    /// Saves the current contents of blocks. The copies are queued on the device before later steps, so the blocks may be
    /// reused at once. Waits only if [`STAGED_BYTES`](super::STAGED_BYTES) have not been written yet.
    ///
    /// # Errors
    /// Errors of the device. Failures of tiers are only told and counted; blocks that
    /// they lack are computed again.
    pub(crate) fn save(&mut self, decoder: &Pipeline, blocks: &[Filled]) -> Result<(), ModelError> {
        self.look()?;
        blocks.iter().for_each(|block| self.origins.fill(block.id, block.origin));
        let named = |block: &Filled| ((block.group, self.origins.name(block.hash, block.origin)), block.id);
        let blocks: Vec<((GroupId, BlockHash), BlockId)> = blocks.iter().map(named).collect();
        for some in blocks.chunks((MAX_BLOCKS / self.objects.most_per_block()).max(1)) {
            let (names, ids): (Names, Vec<BlockId>) = some.iter().copied().unzip();
            match decoder.begin_read(&ids) {
                Ok(read) => self.saver.save(names, read),
                // The requests that need the block end when they attend to it.
                Err(ModelError::Spill(lost)) => self.tell("saving blocks", lost.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The saves that have begun so far.
    pub(crate) fn saves(&self) -> Saves {
        self.saver.begun()
    }

    /// Collects the results of the saves since the last call.
    fn look(&mut self) -> Result<(), ModelError> {
        let mut state = self.saver.progress.state();
        let (lost, failed) = (state.lost.take(), state.failed.take());
        drop(state);
        if let Some(reason) = failed {
            self.tell("saving blocks", reason);
        }
        lost.map_or(Ok(()), Err)
    }

    /// Waits until every save is written or has failed.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn settle(&mut self) -> Result<(), ModelError> {
        self.saver.wait();
        self.look()?;
        if let Err(error) = self.stack.flush() {
            self.tell("flushing the tiers", error_chain::joined(&error));
        }
        Ok(())
    }

    /// Removes wrong blocks from the tiers, whoever saved them.
    ///
    /// # Errors
    /// Errors of the device. Failures of tiers are told.
    pub(crate) fn forget(&mut self, hashes: &[BlockHash]) -> Result<(), ModelError> {
        // Writes that are under way would come after the removal.
        self.settle()?;
        let objects = Arc::clone(&self.objects);
        let tokens = u32::try_from(hashes.len()).unwrap_or(u32::MAX) * objects.needs.hash_block_size().get();
        let blocks = self.filled(0..tokens, hashes);
        let named = |(block, hash): (GroupBlock, BlockHash)| {
            let hashes = self.origins.possible().iter().map(|origin| self.origins.name(hash, *origin));
            hashes.flat_map(|hash| objects.names(block.group, hash)).collect::<Vec<_>>()
        };
        let names: Vec<BlockHash> = blocks.flat_map(named).collect();
        for name in names {
            if let Some(bytes) = self.loader.take(name) {
                self.loader.give_back(bytes);
            }
            if let Err(error) = self.stack.remove(name) {
                self.tell("removing blocks", error_chain::joined(&error));
                break;
            }
        }
        Ok(())
    }

    /// Reports a failure of the tiers to the user, if it is the first one.
    fn tell(&mut self, action: &'static str, reason: String) {
        if !std::mem::replace(&mut self.told, true) {
            self.notes.tell(&Note::TierFailed { action, reason });
        }
    }
}
