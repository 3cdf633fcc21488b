//! Errors and warnings of tiers.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use kvblock::BlockHash;

use super::TierName;

/// Why a tier could not serve a call.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum TierError {
    /// The tier does not hold the block.
    #[error("block {key:?} is not in the {tier} tier")]
    NotFound {
        /// The tier that was used.
        tier: TierName,
        /// The block.
        key: BlockHash,
    },
    /// The stored bytes differ from the written ones.
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
    /// A shard has a wrong MAC: its writer did not have the key of this tier.
    #[error("block {key:?} in the {tier} tier is not authentic: the MAC of shard {shard} is wrong")]
    Forged {
        /// The tier that holds the block.
        tier: TierName,
        /// The block.
        key: BlockHash,
        /// The shard that failed.
        shard: u32,
    },
    /// No block can be evicted.
    #[error("{tier} tier is full: all {capacity_blocks} blocks are in use")]
    Full {
        /// The tier.
        tier: TierName,
        /// Capacity of the tier in blocks.
        capacity_blocks: u64,
    },
    /// The block is pinned, so it cannot be removed.
    #[error("block {key:?} in the {tier} tier is in use by {pins} readers")]
    InUse {
        /// The tier.
        tier: TierName,
        /// The block.
        key: BlockHash,
        /// Number of readers that pin the block.
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
    /// The requested shard does not exist, because blocks have fewer shards.
    #[error("shard {shard} of blocks that have {shards}")]
    NoSuchShard {
        /// The requested shard.
        shard: u32,
        /// Number of shards of a block.
        shards: u32,
    },
    /// The tier holds blocks of another size or model.
    #[error(
        "{tier} tier holds blocks of another kind: {}; give these a place of their own, or empty that one",
        differences(found, expected)
    )]
    Mismatch {
        /// The tier.
        tier: TierName,
        /// Contents of the tier, as its storage states them.
        found: Box<str>,
        /// Requested contents.
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
    /// A bucket, or another container of blocks, is missing. Tiers do not create containers.
    #[error("{tier} tier: there is no bucket {bucket:?}")]
    NoBucket {
        /// The tier.
        tier: TierName,
        /// Name of the bucket.
        bucket: Box<str>,
    },
    /// The directory, which only one tier may use at a time, is in use.
    #[error("{tier} tier in {} is already open, by this or another process", path.display())]
    Locked {
        /// The tier.
        tier: TierName,
        /// Directory of the tier.
        path: PathBuf,
    },
    /// The capacity of the tier exceeds the size of the file system, used and free space together.
    #[error(
        "{tier} tier of {capacity_bytes} bytes in {}, whose file system has {total_bytes}", path.display()
    )]
    TooLarge {
        /// The tier.
        tier: TierName,
        /// Directory of the tier.
        path: PathBuf,
        /// Capacity of the tier in bytes.
        capacity_bytes: u64,
        /// Size of the file system in bytes.
        total_bytes: u64,
    },
    /// The file system has too little free space for the blocks of a pool.
    #[error(
        "{tier} tier: {} has {free_bytes} bytes free, blocks beyond the host need {needed_bytes}", path.display()
    )]
    NoRoom {
        /// The tier.
        tier: TierName,
        /// Directory of the tier.
        path: PathBuf,
        /// Number of bytes of the blocks.
        needed_bytes: u64,
        /// Number of free bytes of the file system.
        free_bytes: u64,
    },
    /// The tier failed recently and is not queried again yet.
    #[error("{tier} tier is down and will be asked again in {retry_in:?}")]
    Down {
        /// The tier.
        tier: TierName,
        /// Time until the next request is sent.
        retry_in: Duration,
    },
    /// A tier panicked while it served a block; the panic was caught, so that no caller waits forever.
    #[error("a tier panicked while it served block {key:?}")]
    Panicked {
        /// The block.
        key: BlockHash,
    },
    /// Written blocks are not safe from a crash of the machine. Those whose bytes could not be synced are
    /// dropped; the others are synced again with the next write.
    #[error("{tier} tier: {blocks} written blocks would not survive a crash")]
    NotDurable {
        /// The tier.
        tier: TierName,
        /// Number of the affected blocks.
        blocks: usize,
        /// Why.
        #[source]
        source: Box<Self>,
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

/// A fault that a tier has repaired or can work with, to be reported to the user.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TierWarning {
    /// The index of a disk tier was damaged, and was rebuilt from the readable records.
    #[error("{tier} tier: the index {reason}; it is kept as {}, a new one names {blocks} blocks", kept.display())]
    IndexRebuilt {
        /// The tier.
        tier: TierName,
        /// The fault.
        reason: &'static str,
        /// The damaged index.
        kept: PathBuf,
        /// Number of blocks of the new index.
        blocks: usize,
    },
    /// Some records of the index are damaged. Their blocks are lost.
    #[error("{tier} tier: {records} records of the index are damaged, their blocks are lost")]
    DamagedRecords {
        /// The tier.
        tier: TierName,
        /// Number of records.
        records: usize,
    },
    /// The file system has too little space for an index of the whole capacity.
    #[error("{tier} tier: there is room for an index of {blocks} blocks, not of {capacity_blocks}")]
    NoRoomForIndex {
        /// The tier.
        tier: TierName,
        /// Number of blocks that the tier will hold at most.
        blocks: u32,
        /// Number of blocks of its capacity.
        capacity_blocks: u32,
    },
    /// The directory cannot be written. Its blocks are served, and none is added.
    #[error("{tier} tier: {} is read-only, so blocks are read there and none is saved", path.display())]
    ReadOnly {
        /// The tier.
        tier: TierName,
        /// The directory.
        path: PathBuf,
    },
}

/// Differences between two descriptions, which are comma-separated lists: item by item if the lists have the same
/// length.
fn differences(found: &str, expected: &str) -> String {
    let [there, here] = [found, expected].map(|list| list.split(", ").collect::<Vec<_>>());
    if there.len() == here.len() {
        let pairs = there.iter().zip(&here).filter(|(there, here)| there != here);
        let pairs: Vec<_> = pairs.map(|(there, here)| format!("{there} there, {here} here")).collect();
        return pairs.join("; ");
    }
    let only = |one: &[&str], other: &[&str], place| {
        let parts: Vec<_> = one.iter().copied().filter(|part| !other.contains(part)).collect();
        (!parts.is_empty()).then(|| format!("{} {place}", parts.join(", ")))
    };
    let sides = [only(&there, &here, "there alone"), only(&here, &there, "here alone")];
    sides.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_tells_what_differs_and_nothing_else() {
        let of = |found: &str, expected: &str| {
            let (found, expected) = (found.into(), expected.into());
            TierError::Mismatch { tier: TierName::DISK, found, expected }.to_string()
        };
        let long = "format 2, 30 shards of 9 bytes, model 0a, F16, K [head, dim] then V, blocks of 16 tokens";
        insta::assert_snapshot!(of(long, &long.replace("0a", "0b").replace("F16", "Int8")), @"disk tier holds blocks of another kind: model 0a there, model 0b here; F16 there, Int8 here; give these a place of their own, or empty that one");
        insta::assert_snapshot!(of(&format!("{long}, short rotation"), long), @"disk tier holds blocks of another kind: short rotation there alone; give these a place of their own, or empty that one");
        insta::assert_snapshot!(of("format 1 (index.redb)", long), @"disk tier holds blocks of another kind: format 1 (index.redb) there alone; format 2, 30 shards of 9 bytes, model 0a, F16, K [head, dim] then V, blocks of 16 tokens here alone; give these a place of their own, or empty that one");
    }
}
