//! Streams blocks from tiers through a staging ring to one consumer, in order.
//!
//! Library only: the engine loads whole requests through [`engine`](crate::engine). This is for consumers that read blocks in one
//! known order, as [`staging`](crate::staging) is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use kvblock::BlockHash;

use crate::stack::TierStack;
use crate::staging::StagingRing;
use crate::sync::lock;
use crate::tier::{TierError, TierName};

/// A block that could not be read; the blocks before it were consumed.
#[derive(thiserror::Error, Debug)]
#[error("block {position} of the stream failed")]
pub struct StreamError {
    /// Position in the list of blocks.
    pub position: usize,
    /// Why.
    #[source]
    pub error: TierError,
}

/// Shape of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Staging slots: how many blocks may be read ahead of the consumer.
    pub slots: usize,
    /// Threads that read.
    pub readers: usize,
}

impl StreamConfig {
    /// A stream of `readers` threads that read up to `slots` blocks ahead of the consumer.
    #[must_use]
    pub const fn new(slots: usize, readers: usize) -> Self {
        Self { slots, readers }
    }
}

/// Reads one shard of each block on other threads and passes the shards to `consume`, with their positions,
/// in the order of `blocks`. Reading runs ahead by as many blocks as there are slots.
///
/// # Errors
/// [`StreamError`] for the first block that no tier could serve.
///
/// # Panics
/// When slots or readers are 0, or a tier or `consume` panics.
pub fn stream_shards(
    tiers: &TierStack,
    blocks: &[BlockHash],
    shard: u32,
    config: StreamConfig,
    mut consume: impl FnMut(usize, &[u8]),
) -> Result<(), StreamError> {
    assert!(config.readers > 0, "a stream with {} readers never ends", config.readers);
    let stream = Stream {
        tiers,
        blocks,
        shard,
        ring: StagingRing::new(config.slots, tiers.layout().shard_bytes()),
        turn: Mutex::new(()),
        served: blocks.iter().map(|_| OnceLock::new()).collect(),
        last_publish_ns: AtomicU64::new(0),
        start: Instant::now(),
    };
    let mut waited = Duration::ZERO;
    let mut last_tier = None;
    let mut position = 0;
    std::thread::scope(|scope| {
        // A panic in `consume` must not leave readers waiting for slots.
        let _close = CloseOnDrop(&stream.ring);
        for _ in 0..config.readers {
            scope.spawn(|| stream.read());
        }
        while position < blocks.len() {
            let begin = Instant::now();
            let block = stream.ring.take();
            waited += begin.elapsed();
            // A gap, or the end, is a block whose reader failed.
            let Some(block) = block.filter(|block| block.number() == position as u64) else { break };
            consume(position, block.bytes());
            position += 1;
            last_tier = Some(position - 1);
        }
    });
    let transfer = Duration::from_nanos(stream.last_publish_ns.load(Relaxed));
    tiers.counters().transfer(transfer, waited);
    let tier_of = |at: usize| stream.served[at].get().and_then(|result| result.as_ref().ok().copied());
    if let Some(tier) = last_tier.and_then(tier_of) {
        tiers.counters().waited(tier, waited);
    }
    if position == blocks.len() {
        return Ok(());
    }
    let error = stream.served.into_iter().nth(position).and_then(OnceLock::into_inner).and_then(Result::err);
    Err(StreamError { position, error: error.expect("the stream stopped at a block that failed") })
}

struct Stream<'a> {
    tiers: &'a TierStack,
    blocks: &'a [BlockHash],
    shard: u32,
    ring: StagingRing,
    /// Held while a slot is acquired, so that slot numbers are block positions.
    turn: Mutex<()>,
    /// `[blocks]`: the tier that served each block, or why none did.
    served: Vec<OnceLock<Result<TierName, TierError>>>,
    last_publish_ns: AtomicU64,
    start: Instant,
}

impl Stream<'_> {
    fn read(&self) {
        let _close = CloseOnDrop(&self.ring);
        loop {
            let turn = lock(&self.turn);
            let Some(mut slot) = self.ring.acquire() else { return };
            let position = usize::try_from(slot.number()).expect("a position in memory");
            let Some(&block) = self.blocks.get(position) else { return };
            drop(turn);
            let result = self.tiers.load_shard(block, self.shard, slot.bytes_mut());
            let failed = result.is_err();
            let first = self.served[position].set(result).is_ok();
            assert!(first, "block {position} was read twice");
            if failed {
                return;
            }
            let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.last_publish_ns.fetch_max(now, Relaxed);
            slot.publish();
        }
    }
}

/// Closes the ring when a reader ends or the consumer unwinds: no more slots are handed out, but published
/// blocks still arrive.
struct CloseOnDrop<'a>(&'a StagingRing);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
