//! Scratch space on disk for the blocks of a pool that neither device nor host memory holds.
//!
//! A tier keeps whole blocks by content, for whoever asks; a spill is memory of one pool, addressed by number, whose parts
//! are read again in every step. Reads are requested ahead and complete in order; writes return at once and are done in the
//! background. Both stay within a given number of bytes. What is read is what was written last, or an error that names file,
//! block and reason.
//!
//! ```text
//! region 0 │ b0 b1 b2 b3 ... │ region 1 │ b0 b1 b2 b3 ... │ ...
//! ```
//!
//! A region holds what one buffer of the pool holds, so that neighbours of a buffer are neighbours in the file.

mod keys;
mod queue;
mod tier;

pub use tier::SpillTier;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{self, Arc};
use std::thread::JoinHandle;

use crate::volume::{VolumeFile, read_exact, write_all};
use keys::{Contents, Keys};
use queue::Queue;

/// Number of threads that read.
const READERS: usize = 4;

/// Largest piece of a read in bytes, unless a block is larger.
const MAX_PIECE: usize = 1 << 20;

/// Number and size of the blocks of a spill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillShape {
    /// Number of regions, at least 1: one for each buffer of the pool.
    pub regions: u32,
    /// Number of blocks of every region.
    pub blocks: u32,
    /// Bytes of a block in one region, at least 1.
    pub block_bytes: usize,
}

impl SpillShape {
    /// Bytes of all blocks.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.regions as u64 * self.blocks as u64 * self.block_bytes as u64
    }

    /// Position of a block in the file.
    fn offset(&self, region: u32, block: u32) -> u64 {
        (u64::from(region) * u64::from(self.blocks) + u64::from(block)) * self.block_bytes as u64
    }

    /// Bytes of the blocks of a run.
    fn run_bytes(&self, run: &SpillRun) -> usize {
        run.blocks.len() * self.block_bytes
    }

    /// Cuts a run into pieces of up to `most` bytes, at least one block each.
    fn pieces(&self, run: &SpillRun, most: usize) -> impl Iterator<Item = SpillRun> + use<> {
        let step = (most / self.block_bytes).max(1);
        let SpillRun { region, blocks } = run.clone();
        let end = blocks.end;
        blocks.step_by(step).map(move |first| {
            let len = u32::try_from(step).unwrap_or(u32::MAX);
            SpillRun { region, blocks: first..first.saturating_add(len).min(end) }
        })
    }
}

/// Consecutive blocks of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpillRun {
    /// The region.
    pub region: u32,
    /// Blocks of the run.
    pub blocks: Range<u32>,
}

/// Why a block of a spill cannot be read.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("KV block {block} of {} cannot be {action}: {reason}", file.display())]
pub struct SpillError {
    /// The file.
    pub file: PathBuf,
    /// The block.
    pub block: u32,
    /// Action that failed, as a participle: reading the block, or writing it before.
    pub action: &'static str,
    /// Reason that the system gives, or the unexpected content.
    pub reason: Arc<str>,
}

/// Blocks that were read.
#[derive(Debug)]
pub struct Piece {
    /// The blocks of the piece: a part of a requested run.
    pub run: SpillRun,
    /// Bytes of the blocks; zeros for lost blocks.
    pub bytes: Vec<u8>,
    /// Blocks that could not be read.
    pub lost: Vec<SpillError>,
}

/// Bytes moved so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpillTraffic {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Number of blocks of a region that could not be read or could not be written.
    pub errors: u64,
}

/// File and sizes that all threads share.
struct Disk {
    file: Box<dyn VolumeFile>,
    path: PathBuf,
    shape: SpillShape,
}

/// Scratch space on disk. Blocks that were never written are zeros. Dropping it ends the current reads and writes.
pub struct Spill {
    disk: Arc<Disk>,
    queue: Arc<Queue>,
    keys: Arc<Keys>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Spill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spill")
            .field("path", &self.disk.path)
            .field("shape", &self.disk.shape)
            .finish_non_exhaustive()
    }
}

impl Spill {
    /// Creates a spill with blocks of `shape` in `file`, which no other process may use. Errors call the file `path`. Up
    /// to `staging_bytes` of read blocks wait to be taken, and as many bytes wait to be written, but at least one block
    /// each.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(
        file: Box<dyn VolumeFile>,
        path: impl Into<PathBuf>,
        shape: SpillShape,
        staging_bytes: usize,
    ) -> std::io::Result<Self> {
        let disk = Arc::new(Disk { file, path: path.into(), shape });
        let (queue, keys) = (Arc::new(Queue::new(staging_bytes)), Arc::new(Keys::new(shape)));
        let mut spill = Self { disk, queue, keys, threads: Vec::new() };
        for _ in 0..READERS {
            spill.thread("spill-read", Disk::read_all)?;
        }
        // One thread writes, so that of two writes of a block the later one wins.
        spill.thread("spill-write", Disk::write_all)?;
        Ok(spill)
    }

    fn thread(&mut self, name: &str, work: fn(&Disk, &Queue, &Keys)) -> std::io::Result<()> {
        let (disk, queue, keys) = (Arc::clone(&self.disk), Arc::clone(&self.queue), Arc::clone(&self.keys));
        let builder = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(builder.spawn(move || work(&disk, &queue, &keys))?);
        Ok(())
    }

    /// Sizes of the spill.
    #[must_use]
    pub fn shape(&self) -> SpillShape {
        self.disk.shape
    }

    /// The name of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.disk.path
    }

    /// Maximum number of bytes that wait in one direction.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.queue.limit()
    }

    /// Traffic so far.
    #[must_use]
    pub fn traffic(&self) -> SpillTraffic {
        self.keys.traffic()
    }

    /// Begins to read runs, after all reads that were begun before. Reads share the staging memory, so callers must take
    /// the pieces of several reads in the same order, or give them up. Runs must not be written before their pieces were
    /// taken.
    ///
    /// # Panics
    /// When a run leaves the spill.
    #[must_use]
    pub fn read(&self, runs: &[SpillRun]) -> PendingRead {
        runs.iter().for_each(|run| self.check(run));
        let most = MAX_PIECE.min(self.queue.limit() / (2 * READERS));
        let pieces: Vec<SpillRun> = runs.iter().flat_map(|run| self.disk.shape.pieces(run, most)).collect();
        let sized = pieces.into_iter().map(|run| (self.disk.shape.run_bytes(&run), run)).collect();
        PendingRead { id: self.queue.ask(sized), queue: Arc::clone(&self.queue) }
    }

    /// Queues a write of a run, and waits only until the staging memory has room. A failure is reported when the
    /// blocks are read.
    ///
    /// # Panics
    /// When the run leaves the spill, or there are not as many bytes as it has.
    pub fn write(&self, run: SpillRun, bytes: Vec<u8>) {
        self.check(&run);
        assert_eq!(bytes.len(), self.disk.shape.run_bytes(&run), "bytes of {run:?}");
        self.keys.begin_write(&run);
        self.queue.push_write(run, bytes);
    }

    /// Reads a run at once, on the caller's thread. Returns the blocks that were lost, which are zeros.
    ///
    /// # Panics
    /// When the run leaves the spill, or `into` has not as many bytes as it has.
    #[must_use]
    pub fn read_into(&self, run: &SpillRun, into: &mut [u8]) -> Vec<SpillError> {
        self.check(run);
        assert_eq!(into.len(), self.disk.shape.run_bytes(run), "bytes of {run:?}");
        self.disk.read_into(run, &self.keys, into)
    }

    /// Number of writes of a block that were begun so far. As long as the number stays the same, the contents do too.
    ///
    /// # Panics
    /// When the block leaves the spill.
    #[must_use]
    pub fn writes(&self, region: u32, block: u32) -> u32 {
        self.check(&SpillRun { region, blocks: block..block + 1 });
        self.keys.writes(region, block)
    }

    /// Waits until all queued writes have been written or have failed.
    pub fn settle(&self) {
        self.keys.settle();
    }

    fn check(&self, run: &SpillRun) {
        let shape = self.disk.shape;
        assert!(
            run.region < shape.regions
                && run.blocks.start <= run.blocks.end
                && run.blocks.end <= shape.blocks,
            "{run:?} of {shape:?}"
        );
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.queue.close();
        self.keys.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has told so.
            let _ = thread.join();
        }
    }
}

/// Pieces of a read, in the order of its runs. Dropping it gives up the rest.
#[derive(Debug)]
pub struct PendingRead {
    id: u64,
    queue: Arc<Queue>,
}

impl Iterator for PendingRead {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        self.queue.take(self.id)
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        self.queue.give_up(self.id);
    }
}

impl Disk {
    fn read_all(&self, queue: &Queue, keys: &Keys) {
        while let Some(job) = queue.next_read() {
            let piece = self.read(job.run.clone(), keys);
            queue.done(&job, piece);
        }
    }

    fn write_all(&self, queue: &Queue, keys: &Keys) {
        while let Some((run, bytes)) = queue.next_write() {
            let at = self.shape.offset(run.region, run.blocks.start);
            let failed = write_all(&*self.file, &bytes, at).err();
            keys.end_write(&run, &bytes, failed.map(|error| error.to_string().into()));
            queue.written(bytes.len());
        }
    }

    fn read(&self, run: SpillRun, keys: &Keys) -> Piece {
        let mut bytes = vec![0; self.shape.run_bytes(&run)];
        let lost = self.read_into(&run, keys, &mut bytes);
        Piece { run, bytes, lost }
    }

    /// Reads a run in one go, or block by block if that fails. Returns the lost blocks.
    fn read_into(&self, run: &SpillRun, keys: &Keys, bytes: &mut [u8]) -> Vec<SpillError> {
        let mut lost = Vec::new();
        let known = keys.when_written(run);
        let at = |block: u32| self.shape.offset(run.region, block);
        let whole = known.iter().all(Contents::is_written)
            && read_exact(&*self.file, bytes, at(run.blocks.start)).is_ok();
        let blocks = run.blocks.clone().zip(bytes.chunks_exact_mut(self.shape.block_bytes)).zip(&known);
        for ((block, bytes), known) in blocks {
            let result = match known {
                Contents::Zeros => {
                    bytes.fill(0);
                    Ok(())
                }
                Contents::Lost(reason) => Err(("written", Arc::clone(reason))),
                Contents::Sum(_) if !whole && let Err(error) = read_exact(&*self.file, bytes, at(block)) => {
                    Err(("read", error.to_string().into()))
                }
                Contents::Sum(expected) => match keys::sum(bytes) {
                    found if found == *expected => Ok(()),
                    found => {
                        Err(("read", format!("its bytes sum to {found:016x}, not {expected:016x}").into()))
                    }
                },
            };
            if let Err((action, reason)) = result {
                bytes.fill(0);
                lost.push(SpillError { file: self.path.clone(), block, action, reason });
            }
        }
        keys.count_read(bytes.len(), lost.len());
        lost
    }
}
