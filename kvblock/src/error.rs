//! Errors of the v1 block management.

use thiserror::Error;

/// Why slots could not be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// An expected outcome: preempt a sequence, or try again in a later step.
    #[error("{needed} blocks needed, {free} free")]
    OutOfBlocks {
        /// Blocks to take from the free queue.
        needed: u32,
        /// Blocks in the free queue.
        free: u32,
    },
    /// Neither new nor external tokens were asked for.
    #[error("slots for no token requested")]
    NoTokens,
}

/// Why a cache cannot be built from a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A pool needs the null block and one more.
    #[error("{num_blocks} blocks, at least 2 needed")]
    TooFewBlocks {
        /// Blocks configured.
        num_blocks: u32,
    },
    /// No layer needs a cache.
    #[error("no cache group")]
    NoGroups,
    /// The model length is 0.
    #[error("maximum model length is 0 tokens")]
    NoModelLength,
    /// A group's blocks must hold whole hash blocks.
    #[error("group {group}: block size {block_size} is no multiple of the hash block size {hash_block_size}")]
    HashBlockSize {
        /// Index of the group.
        group: usize,
        /// Tokens a block of that group.
        block_size: u32,
        /// Tokens a hash covers.
        hash_block_size: u32,
    },
    /// A window or chunk of 0 tokens attends to nothing.
    #[error("group {group}: a window or chunk of 0 tokens")]
    EmptyWindow {
        /// Index of the group.
        group: usize,
    },
    /// Chunked local attention finds hits at block granularity only.
    #[error(
        "group {group}: chunked local attention with block size {block_size}, alignment of the hybrid is {alignment}"
    )]
    ChunkedAlignment {
        /// Index of the group.
        group: usize,
        /// Tokens a block of that group.
        block_size: u32,
        /// Least common multiple of all block sizes.
        alignment: u32,
    },
    /// Chunked local attention cannot drop a block for a draft model.
    #[error("group {group}: chunked local attention cannot serve an eagle draft")]
    ChunkedEagle {
        /// Index of the group.
        group: usize,
    },
}
