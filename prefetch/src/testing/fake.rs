//! A tier with made-up contents, set latency and injected faults, for tests of code that uses tiers.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvblock::BlockHash;

use crate::sync::lock;
use crate::tier::{BlockLayout, Stored, Tier, TierError, TierName};

/// Time after which a wait for the test, or of it, is given up: a failed test must end, too.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A tier that holds every possible block, with bytes derived from the hash, unless the test changes that.
///
/// Faults are set per block, and each read is logged, so that tests see order and repetition.
pub struct FakeTier {
    layout: BlockLayout,
    name: TierName,
    latency: Duration,
    script: Mutex<Script>,
    /// Notified by each read, and when blocks are released.
    changed: Condvar,
}

#[derive(Default)]
struct Script {
    faults: BTreeMap<BlockHash, Fault>,
    written: BTreeMap<BlockHash, Box<[u8]>>,
    reads: Vec<BlockHash>,
}

/// Fault of a block of a [`FakeTier`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The object does not exist.
    Missing,
    /// Reading fails.
    Broken,
    /// Reading panics.
    Panics,
    /// Reading waits until the block is [released](FakeTier::release).
    Held,
}

impl fmt::Debug for FakeTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeTier")
            .field("name", &self.name)
            .field("layout", &self.layout)
            .field("latency", &self.latency)
            .finish_non_exhaustive()
    }
}

impl FakeTier {
    /// A tier whose reads sleep for `latency`.
    #[must_use]
    pub fn new(name: TierName, layout: BlockLayout, latency: Duration) -> Self {
        Self { layout, name, latency, script: Mutex::default(), changed: Condvar::new() }
    }

    /// The bytes of a block: byte `i` is `hash[i % 32] + i`, wrapping.
    #[must_use]
    pub fn contents(layout: BlockLayout, key: BlockHash) -> Vec<u8> {
        let hash = key.as_bytes();
        (0..layout.block_bytes()).map(|i| hash[i % hash.len()].wrapping_add(i.to_le_bytes()[0])).collect()
    }

    /// Makes reads of `key` go wrong from now on.
    pub fn fail(&self, key: BlockHash, fault: Fault) {
        lock(&self.script).faults.insert(key, fault);
    }

    /// Blocks read so far, in order of arrival; a block read by shards appears once for each.
    #[must_use]
    pub fn reads(&self) -> Vec<BlockHash> {
        lock(&self.script).reads.clone()
    }

    /// Ends the faults of `key`. Reads that wait because the block is [held](Fault::Held) go on.
    pub fn release(&self, key: BlockHash) {
        lock(&self.script).faults.remove(&key);
        self.changed.notify_all();
    }

    /// Blocks until at least `count` reads have begun.
    ///
    /// # Panics
    /// After a minute.
    pub fn wait_for_reads(&self, count: usize) {
        drop(self.wait_while(lock(&self.script), |script| script.reads.len() < count));
    }

    fn wait_while<'a>(
        &self,
        script: MutexGuard<'a, Script>,
        goes_on: impl Fn(&Script) -> bool,
    ) -> MutexGuard<'a, Script> {
        let waited = self.changed.wait_timeout_while(script, LONGEST_WAIT, |script| goes_on(script));
        let (script, result) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!result.timed_out(), "waiting in vain; reads so far: {:?}", script.reads);
        script
    }

    fn fetch(&self, key: BlockHash) -> Result<Vec<u8>, TierError> {
        let mut script = lock(&self.script);
        script.reads.push(key);
        self.changed.notify_all();
        script = self.wait_while(script, |script| script.faults.get(&key) == Some(&Fault::Held));
        let fault = script.faults.get(&key).copied();
        let bytes = script.written.get(&key).map_or_else(|| Self::contents(self.layout, key), |b| b.to_vec());
        drop(script);
        std::thread::sleep(self.latency);
        match fault {
            None | Some(Fault::Held) => Ok(bytes),
            Some(Fault::Missing) => Err(TierError::NotFound { tier: self.name, key }),
            Some(Fault::Broken) => Err(TierError::Backend {
                tier: self.name,
                action: "reading a block with a fault",
                source: Box::new(io::Error::from(io::ErrorKind::BrokenPipe)),
            }),
            Some(Fault::Panics) => panic!("the test asked for a panic on {key:?}"),
        }
    }
}

impl Tier for FakeTier {
    fn name(&self) -> TierName {
        self.name
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    fn capacity_blocks(&self) -> Option<u64> {
        None
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        Ok(lock(&self.script).faults.get(&key) != Some(&Fault::Missing))
    }

    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_shard(shard, into.len())?;
        let range = self.layout.shard_range(shard)?;
        into.copy_from_slice(&self.fetch(key)?[range]);
        Ok(())
    }

    fn read_block(&self, key: BlockHash, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_block(into.len())?;
        into.copy_from_slice(&self.fetch(key)?);
        Ok(())
    }

    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError> {
        self.layout.check_block(block.len())?;
        let mut script = lock(&self.script);
        script.faults.remove(&key);
        script.written.insert(key, block.into());
        Ok(Stored::Written)
    }

    fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        let mut script = lock(&self.script);
        script.written.remove(&key);
        Ok(script.faults.insert(key, Fault::Missing) != Some(Fault::Missing))
    }
}
