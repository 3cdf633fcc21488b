//! Errors of the v1 block management.

use thiserror::Error;

use crate::id::{BlockId, BlockIdx, GroupId, SeqId};
use crate::spec::KvDtype;

/// Why blocks could not be allocated, shared or freed. The call changed nothing, except that
/// [`allocate_slots`](crate::KvCache::allocate_slots) has already freed the blocks out of reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The pool has too few free blocks. An expected outcome: preempt a sequence, or try again in a later step.
    #[error("{needed} blocks needed, {free} free")]
    OutOfBlocks {
        /// Number of blocks to take from the free queue.
        needed: u32,
        /// Number of blocks in the free queue.
        free: u32,
    },
    /// The request is for neither new nor external tokens.
    #[error("neither new nor external tokens requested")]
    NoTokens,
    /// A block was freed more often than it is referenced.
    #[error("double free of {block:?}")]
    DoubleFree {
        /// The block.
        block: BlockId,
    },
    /// The pool has no such block.
    #[error("no block {block:?}: the pool has {num_blocks}")]
    UnknownBlock {
        /// The block.
        block: BlockId,
        /// Number of blocks of the pool, the null block included.
        num_blocks: u32,
    },
    /// The sequence to fork has no block table.
    #[error("sequence {seq:?} has no block table")]
    NotAllocated {
        /// The sequence.
        seq: SeqId,
    },
    /// The sequence to fork does not hold a block that the fork would read.
    #[error(
        "sequence {seq:?} does not hold block {block:?} of {group:?}, which a fork after {num_tokens} tokens reads"
    )]
    NotHeld {
        /// The sequence.
        seq: SeqId,
        /// The group.
        group: GroupId,
        /// Position of the block in the sequence.
        block: BlockIdx,
        /// Number of tokens of the fork.
        num_tokens: u32,
    },
    /// The sequence already has a block table: only a sequence without a table can adopt a hit, be forked into, or be
    /// restored.
    #[error("sequence {seq:?} has a block table already")]
    AlreadyAllocated {
        /// The sequence.
        seq: SeqId,
    },
    /// A full block has no hash, so that it could never be found again.
    #[error("{hashes} block hashes for {num_tokens} tokens of sequence {seq:?}, {needed} needed")]
    MissingHashes {
        /// The sequence.
        seq: SeqId,
        /// Number of hashes given.
        hashes: usize,
        /// Number of tokens whose full blocks enter the prefix cache.
        num_tokens: u32,
        /// Number of hash blocks that these tokens fill.
        needed: u32,
    },
    /// The number of lists of blocks, or of hits, differs from the number of groups.
    #[error("lists for {found} groups, the cache has {num_groups}")]
    GroupCount {
        /// Number of lists given.
        found: usize,
        /// Number of groups of the cache.
        num_groups: usize,
    },
    /// A hit does not list one block for each block of tokens that it covers.
    #[error("hit of {num_tokens} tokens lists {found} blocks in {group:?}, {expected} expected")]
    HitLength {
        /// The group.
        group: GroupId,
        /// Number of tokens of the hit.
        num_tokens: u32,
        /// Number of blocks listed.
        found: usize,
        /// Number of blocks that its tokens fill.
        expected: usize,
    },
    /// The cache changed since the lookup, or the hit is of other tokens: [look up](crate::KvCache::lookup) again.
    #[error(
        "stale hit of {num_tokens} tokens: block {block:?} does not hold block {index:?} of the sequence in {group:?}"
    )]
    StaleHit {
        /// The group.
        group: GroupId,
        /// Number of tokens of the hit.
        num_tokens: u32,
        /// Position of the first block that no longer holds the tokens of the hit.
        index: BlockIdx,
        /// The block that the hit has at this position.
        block: BlockId,
    },
}

/// Why a cache cannot be built from a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A pool needs the null block and one more.
    #[error("{num_blocks} blocks, at least 2 needed")]
    TooFewBlocks {
        /// Number of blocks configured.
        num_blocks: u32,
    },
    /// A slot index must fit in a `u32`.
    #[error("{num_blocks} blocks of {block_size} tokens: more slots than a u32 can index")]
    TooManySlots {
        /// Number of blocks configured.
        num_blocks: u32,
        /// Number of tokens per block of the group.
        block_size: u32,
    },
    /// There is no cache group.
    #[error("no cache group")]
    NoGroups,
    /// The maximum model length is 0.
    #[error("the maximum model length is 0 tokens")]
    NoModelLength,
    /// A window or chunk of 0 tokens attends to nothing.
    #[error("group {group}: a window or chunk of 0 tokens")]
    EmptyWindow {
        /// Index of the group.
        group: usize,
    },
    /// A block must hold whole compressed entries.
    #[error(
        "group {group}: block size {block_size} is not a multiple of the compress ratio {compress_ratio}"
    )]
    CompressRatio {
        /// Index of the group.
        group: usize,
        /// Number of tokens per block of the group.
        block_size: u32,
        /// Number of tokens per stored entry.
        compress_ratio: u32,
    },
    /// Chunked local attention finds hits at block granularity only.
    #[error(
        "group {group}: chunked local attention with blocks of {block_size} tokens, hits are multiples of {alignment}"
    )]
    ChunkedAlignment {
        /// Index of the group.
        group: usize,
        /// Number of tokens per block of the group.
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

/// Why layers cannot be grouped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There are no layers to group.
    #[error("no layers")]
    NoLayers,
    /// All layers of a group must have the same block size.
    #[error("layer {layer}: block size {found}, the layers before it have {expected}")]
    BlockSizes {
        /// Index of the layer.
        layer: usize,
        /// Block size of the layer.
        found: u32,
        /// Block size of the earlier layers.
        expected: u32,
    },
    /// All latents of a group must have the same element type.
    #[error("layer {layer}: latents of {found:?}, the layers before it have {expected:?}")]
    LatentTypes {
        /// Index of the layer.
        layer: usize,
        /// Element type of the layer.
        found: KvDtype,
        /// Element type of the earlier layers.
        expected: KvDtype,
    },
    /// All layers of a group must have the same attention kind.
    #[error("layer {layer}: its attention kind differs from that of the layers before it")]
    Kinds {
        /// Index of the layer.
        layer: usize,
    },
    /// A group has one mask: a window or a chunk, not both.
    #[error("a sliding window of {window} and a chunk of {chunk} tokens in one group")]
    WindowAndChunk {
        /// Sliding window of some layers, in tokens.
        window: u32,
        /// Chunk of other layers, in tokens.
        chunk: u32,
    },
    /// Pages cannot be made equal.
    #[error("layer {layer}: a page of {page_bytes} bytes cannot grow to {largest} bytes")]
    PageSizes {
        /// Index of the layer.
        layer: usize,
        /// Bytes of a page of the layer.
        page_bytes: u64,
        /// Bytes of the largest page, which the others are to be made equal to.
        largest: u64,
    },
    /// A group with several page sizes needs equally many layers of each.
    #[error("layer {layer}: {found} layers with pages of its size, {expected} with another")]
    UnevenPages {
        /// Index of the first layer whose page size has a different number of layers than the smallest page size.
        layer: usize,
        /// Number of layers of that page size.
        found: usize,
        /// Number of layers of the group's smallest page size.
        expected: usize,
    },
    /// The list of tuple counts is empty, or contains 0.
    #[error("no tuples of layers to group")]
    NoTuples,
}

/// Why a memory budget is too small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// Not even a sequence of one token fits.
    #[error("{needed_bytes} bytes of kv cache needed for one token, {available_bytes} available")]
    NothingFits {
        /// Bytes of the smallest cache.
        needed_bytes: u64,
        /// Bytes given.
        available_bytes: u64,
    },
    /// A sequence of the longest length does not fit.
    #[error(
        "{needed_bytes} bytes of kv cache needed for {max_model_len} tokens, {available_bytes} available; \
         they hold {fitting_len} tokens"
    )]
    TooLong {
        /// Maximum sequence length that was requested, in tokens.
        max_model_len: u32,
        /// Bytes that a sequence of this length needs.
        needed_bytes: u64,
        /// Bytes given.
        available_bytes: u64,
        /// Maximum sequence length that fits, in tokens.
        fitting_len: u32,
    },
}
