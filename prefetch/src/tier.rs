//! Tiers: storage below the device that keeps whole KV blocks by content hash.

#[cfg(feature = "disk")]
mod disk;
mod fake;
mod host;
mod name;
#[cfg(feature = "remote")]
mod remote;

#[cfg(feature = "disk")]
pub use disk::{DiskConfig, DiskTier};
pub use fake::{FakeTier, Fault};
pub use host::HostTier;
pub use name::TierName;
#[cfg(feature = "remote")]
pub use remote::{RemoteConfig, RemoteTier};

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use kvblock::BlockHash;

/// How the bytes of one block are divided into equal shards, usually one per layer of a cache group.
///
/// A shard is the unit of a read and carries its own checksum; a block is the unit of a write and of
/// visibility.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockLayout {
    shards: u32,
    shard_bytes: u32,
}

impl BlockLayout {
    /// `shards` shards of `shard_bytes` bytes, or `None` when either is 0 or the block exceeds 4 GiB.
    #[must_use]
    pub const fn new(shards: u32, shard_bytes: u32) -> Option<Self> {
        match shards.checked_mul(shard_bytes) {
            None | Some(0) => None,
            Some(_) => Some(Self { shards, shard_bytes }),
        }
    }

    /// Shards of a block, at least 1.
    #[must_use]
    pub const fn shards(self) -> u32 {
        self.shards
    }

    /// Bytes of one shard, at least 1.
    #[must_use]
    pub const fn shard_bytes(self) -> usize {
        self.shard_bytes as usize
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.shards as usize * self.shard_bytes as usize
    }

    /// The byte range of `shard` in a block.
    ///
    /// # Errors
    /// [`TierError::NoSuchShard`] when the block has fewer shards.
    pub fn shard_range(self, shard: u32) -> Result<std::ops::Range<usize>, TierError> {
        if shard >= self.shards {
            return Err(TierError::NoSuchShard { shard, shards: self.shards });
        }
        let start = shard as usize * self.shard_bytes();
        Ok(start..start + self.shard_bytes())
    }

    pub(crate) fn check_shard(self, shard: u32, given_bytes: usize) -> Result<(), TierError> {
        let expected_bytes = self.shard_range(shard)?.len();
        if given_bytes == expected_bytes {
            Ok(())
        } else {
            Err(TierError::WrongSize { given_bytes, expected_bytes })
        }
    }

    pub(crate) fn check_block(self, given_bytes: usize) -> Result<(), TierError> {
        let expected_bytes = self.block_bytes();
        if given_bytes == expected_bytes {
            Ok(())
        } else {
            Err(TierError::WrongSize { given_bytes, expected_bytes })
        }
    }
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stored {
    /// The block was written and is now visible.
    Written,
    /// The block was already there, or another writer is writing it; nothing was transferred.
    AlreadyThere,
    /// The reuse filter has not seen the block often enough; nothing was transferred.
    Filtered,
}

/// A keyed store of equal-sized blocks.
///
/// Implementations guarantee that a block is visible only after all its bytes are in place; that a read
/// returns the bytes that were written or an error, never other bytes; and that every method may be called
/// from several threads at once.
pub trait Tier: Send + Sync {
    /// Name of the tier in counters and errors.
    fn name(&self) -> TierName;

    /// Size and division of every block of this tier.
    fn layout(&self) -> BlockLayout;

    /// Number of blocks that fit, or `None` when the tier has no limit of its own.
    fn capacity_blocks(&self) -> Option<u64>;

    /// Checks that the storage can be reached and holds blocks that this build can read.
    ///
    /// # Errors
    /// When the storage cannot be reached, and [`TierError::Mismatch`] when another version wrote it.
    fn probe(&self) -> Result<(), TierError> {
        Ok(())
    }

    /// Whether a read of `key` would now find the block. Counts as a request for the reuse filter.
    ///
    /// # Errors
    /// When the storage cannot be reached.
    fn contains(&self, key: BlockHash) -> Result<bool, TierError>;

    /// [`Self::contains`] for each of `keys`; tiers with a cost per request override this to ask for many at
    /// once.
    ///
    /// # Errors
    /// As [`Self::contains`], for any of them.
    fn contains_many(&self, keys: &[BlockHash]) -> Result<Vec<bool>, TierError> {
        keys.iter().map(|&key| self.contains(key)).collect()
    }

    /// Reads one shard of a block. Reading shard 0 counts as a use for the eviction policy; reads of the
    /// other shards belong to the same use.
    ///
    /// # Errors
    /// [`TierError::NotFound`], [`TierError::Corrupt`], [`TierError::WrongSize`], [`TierError::NoSuchShard`],
    /// or the backend's own failure. On error, the contents of `into` are unspecified.
    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError>;

    /// Reads a whole block; tiers with a cost per request override this.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_block(&self, key: BlockHash, into: &mut [u8]) -> Result<(), TierError> {
        let layout = self.layout();
        layout.check_block(into.len())?;
        for (shard, bytes) in (0..layout.shards()).zip(into.chunks_exact_mut(layout.shard_bytes())) {
            self.read(key, shard, bytes)?;
        }
        Ok(())
    }

    /// Writes a whole block, evicting others where the tier is full.
    ///
    /// # Errors
    /// [`TierError::Full`] when nothing can be evicted, [`TierError::WrongSize`], or the backend's own
    /// failure. The block is not visible then.
    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError>;

    /// Removes a block; false when it was not there.
    ///
    /// # Errors
    /// When the storage cannot be changed, or the block is being read.
    fn remove(&self, key: BlockHash) -> Result<bool, TierError>;

    /// Makes every finished write survive a crash of the machine, if the tier can.
    ///
    /// # Errors
    /// When the storage cannot be reached.
    fn flush(&self) -> Result<(), TierError> {
        Ok(())
    }
}

/// Why a tier could not serve a call.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum TierError {
    /// The tier does not hold the block.
    #[error("block {key:?} is not in the {tier} tier")]
    NotFound {
        /// The tier that was asked.
        tier: TierName,
        /// The block.
        key: BlockHash,
    },
    /// The stored bytes are not those that were written.
    #[error(
        "block {key:?} in the {tier} tier is corrupt: shard {shard} sums to {found:016x}, not {expected:016x}"
    )]
    Corrupt {
        /// The tier that holds the block.
        tier: TierName,
        /// The block.
        key: BlockHash,
        /// The shard that failed.
        shard: u32,
        /// Checksum of the bytes as read.
        found: u64,
        /// Checksum of the bytes as written.
        expected: u64,
    },
    /// No block can be evicted.
    #[error("{tier} tier is full: all {capacity_blocks} blocks are in use")]
    Full {
        /// The tier.
        tier: TierName,
        /// Its capacity in blocks.
        capacity_blocks: u64,
    },
    /// The block is pinned, so it cannot be removed.
    #[error("block {key:?} in the {tier} tier is in use by {pins} readers")]
    InUse {
        /// The tier.
        tier: TierName,
        /// The block.
        key: BlockHash,
        /// Readers that hold it.
        pins: u32,
    },
    /// A buffer does not have the size that the layout requires.
    #[error("buffer of {given_bytes} bytes where {expected_bytes} are needed")]
    WrongSize {
        /// Bytes of the caller's buffer.
        given_bytes: usize,
        /// Bytes that the layout requires.
        expected_bytes: usize,
    },
    /// The block has fewer shards.
    #[error("shard {shard} of blocks that have {shards}")]
    NoSuchShard {
        /// The shard asked for.
        shard: u32,
        /// Shards of a block.
        shards: u32,
    },
    /// The tier holds blocks of another size or model.
    #[error("{tier} tier holds {found}, not {expected}")]
    Mismatch {
        /// The tier.
        tier: TierName,
        /// What the tier says it holds.
        found: Box<str>,
        /// What was asked for.
        expected: Box<str>,
    },
    /// A directory cannot be used.
    #[error("{tier} tier cannot use the directory {}", path.display())]
    Directory {
        /// The tier.
        tier: TierName,
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A bucket, or another container of blocks, is missing. Tiers do not create it.
    #[error("{tier} tier: there is no bucket {bucket:?}")]
    NoBucket {
        /// The tier.
        tier: TierName,
        /// Its name.
        bucket: Box<str>,
    },
    /// The directory, which only one tier may use at a time, is in use.
    #[error("{tier} tier in {} is already open, by this or another process", path.display())]
    Locked {
        /// The tier.
        tier: TierName,
        /// Its directory.
        path: PathBuf,
    },
    /// The capacity of the tier exceeds the size of the file system, used and free space together.
    #[error(
        "{tier} tier of {capacity_bytes} bytes in {}, whose file system has {total_bytes}", path.display()
    )]
    TooLarge {
        /// The tier.
        tier: TierName,
        /// Its directory.
        path: PathBuf,
        /// Bytes of the tier.
        capacity_bytes: u64,
        /// Bytes of the file system.
        total_bytes: u64,
    },
    /// The tier failed recently and is not queried again yet.
    #[error("{tier} tier is down and will be asked again in {retry_in:?}")]
    Down {
        /// The tier.
        tier: TierName,
        /// Time until the next request goes through.
        retry_in: Duration,
    },
    /// A tier panicked while it served a block; the panic was caught, so that nobody waits forever.
    #[error("a tier panicked while it served block {key:?}")]
    Panicked {
        /// The block.
        key: BlockHash,
    },
    /// The backend failed.
    #[error("{tier} tier: {action} failed")]
    Backend {
        /// The tier.
        tier: TierName,
        /// The action that failed.
        action: &'static str,
        /// The backend's own error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Checksum of a shard: XXH3-64, fast enough to run at memory speed. It guards against torn writes and bad
/// media, not against an adversary.
#[cfg(feature = "disk")]
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
