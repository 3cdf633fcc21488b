//! Tiers: storage below the device that keeps whole KV blocks by content hash.

#[cfg(feature = "disk")]
mod disk;
mod error;
mod host;
mod name;
#[cfg(any(feature = "remote", feature = "testing"))]
mod remote;

#[cfg(feature = "disk")]
pub(crate) use disk::scratch::scratch;
#[cfg(feature = "disk")]
pub use disk::{DiskConfig, DiskTier};
pub use error::{TierError, TierWarning};
pub use host::HostTier;
pub use name::TierName;
#[cfg(feature = "remote")]
pub use remote::Credentials;
#[cfg(any(feature = "s3", feature = "tls"))]
pub use remote::choose_cryptography;
#[cfg(any(feature = "remote", feature = "testing"))]
pub use remote::{MacKey, MacKeyError, ObjectError, Objects, RemoteConfig, RemoteTier};

pub use crate::volume::{Access, Volume, VolumeFile};

use kvblock::BlockHash;

/// Division of the bytes of one block into equal shards, usually one per layer of a cache group.
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

    /// Number of shards of a block, at least 1.
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

/// Outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Stored {
    /// The block was written and is now visible.
    Written,
    /// The block was already there, or another writer is writing it; nothing was transferred.
    AlreadyThere,
    /// The reuse filter has not seen the block often enough; nothing was transferred.
    Filtered,
    /// The tier can only be read; nothing was transferred.
    ReadOnly,
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

    /// Whether a read of `key` would now find the block. The reuse filter counts the call as a request.
    ///
    /// # Errors
    /// When the storage cannot be reached.
    fn contains(&self, key: BlockHash) -> Result<bool, TierError>;

    /// Returns the result of [`Self::contains`] for each of `keys`. Tiers with a cost per request override this
    /// method, and ask for many keys at once.
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

    /// Reads a whole block. Tiers with a cost per request override this method.
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

    /// Writes a whole block, evicting others if the tier is full.
    ///
    /// # Errors
    /// [`TierError::Full`] when nothing can be evicted, [`TierError::WrongSize`], or the backend's own
    /// failure. The block is not visible then.
    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError>;

    /// Removes a block; false if the tier does not hold it.
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

    /// Returns the faults that were repaired or worked around since the last call.
    fn take_warnings(&self) -> Vec<TierWarning> {
        Vec::new()
    }
}

/// Checksum of a shard of the block `key`: XXH3-64, fast enough to run at memory speed. It guards against torn
/// writes, bad media and mixed-up blocks, not against an adversary.
#[cfg(any(feature = "disk", feature = "remote", feature = "testing"))]
pub(crate) fn shard_sum(key: BlockHash, shard: u32, bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
    xxhash_rust::xxh3::xxh3_64_with_seed(
        bytes,
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ u64::from(shard),
    )
}
