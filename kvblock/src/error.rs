//! Errors of the v1 block management.

use thiserror::Error;

use crate::id::{BlockId, SeqId};
use crate::spec::KvDtype;

/// Why blocks could not be taken, shared or given back. Nothing has changed, except that
/// [`allocate_slots`](crate::KvCache::allocate_slots) gives back what is out of reach first.
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
    /// A block is given back more often than it was taken.
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
        /// Blocks of the pool, the null block included.
        num_blocks: u32,
    },
    /// The sequence has no block table to share.
    #[error("sequence {seq:?} has no block table")]
    NotAllocated {
        /// The sequence.
        seq: SeqId,
    },
    /// A hit, a fork or a restored table can only start a sequence.
    #[error("sequence {seq:?} has a block table already")]
    AlreadyAllocated {
        /// The sequence.
        seq: SeqId,
    },
    /// Blocks that become full need hashes, or they could not be found.
    #[error("{hashes} block hashes for {num_tokens} tokens of sequence {seq:?}, {needed} needed")]
    MissingHashes {
        /// The sequence.
        seq: SeqId,
        /// Hashes given.
        hashes: usize,
        /// Tokens whose full blocks are to be made findable.
        num_tokens: u32,
        /// Hash blocks that these tokens fill.
        needed: u32,
    },
    /// A list for each group is expected, of blocks or of hits.
    #[error("lists for {found} groups, the cache has {num_groups}")]
    GroupCount {
        /// Lists given.
        found: usize,
        /// Groups of the cache.
        num_groups: usize,
    },
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
    /// Slots are u32.
    #[error("{num_blocks} blocks of {block_size} tokens, more slots than 32 bits count")]
    TooManySlots {
        /// Blocks configured.
        num_blocks: u32,
        /// Tokens a block of some group.
        block_size: u32,
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
    /// A block must hold whole compressed entries.
    #[error("group {group}: blocks of {block_size} tokens, one stored entry for each {compress_ratio}")]
    CompressRatio {
        /// Index of the group.
        group: usize,
        /// Tokens a block of that group.
        block_size: u32,
        /// Tokens behind one entry.
        compress_ratio: u32,
    },
    /// Chunked local attention finds hits at block granularity only.
    #[error(
        "group {group}: chunked local attention with blocks of {block_size} tokens, hits are multiples of {alignment}"
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

/// Why layers cannot be grouped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There is nothing to merge.
    #[error("no layers")]
    NoLayers,
    /// Layers of one group need one block size.
    #[error("layer {layer}: block size {found}, the layers before it have {expected}")]
    BlockSizes {
        /// Index of the layer.
        layer: usize,
        /// Its block size.
        found: u32,
        /// Block size of the layers before it.
        expected: u32,
    },
    /// Latents of one group need one element type.
    #[error("layer {layer}: latents of {found:?}, the layers before it have {expected:?}")]
    LatentTypes {
        /// Index of the layer.
        layer: usize,
        /// Its type.
        found: KvDtype,
        /// Type of the layers before it.
        expected: KvDtype,
    },
    /// Layers of one group need one attention kind.
    #[error("layer {layer}: its attention kind differs from that of the layers before it")]
    Kinds {
        /// Index of the layer.
        layer: usize,
    },
    /// A group has one mask.
    #[error("a sliding window of {window} and a chunk of {chunk} tokens in one group")]
    WindowAndChunk {
        /// Window of some layers.
        window: u32,
        /// Chunk of others.
        chunk: u32,
    },
    /// Pages cannot be made equal.
    #[error("layer {layer}: a page of {page_bytes} bytes cannot grow to {largest} bytes")]
    PageSizes {
        /// Index of the layer.
        layer: usize,
        /// Its page.
        page_bytes: u64,
        /// The largest page to agree with.
        largest: u64,
    },
    /// Layers of a group with several page sizes come in equal numbers.
    #[error("layer {layer}: {found} layers with pages of its size, {expected} with another")]
    UnevenPages {
        /// First layer of that page size.
        layer: usize,
        /// Number of its kind.
        found: usize,
        /// Number of the first kind.
        expected: usize,
    },
    /// There is no group, or an empty one, to choose a size for.
    #[error("no tuples of layers to group")]
    NoTuples,
}

/// Why a memory is too small.
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
        /// Longest length asked for.
        max_model_len: u32,
        /// Bytes that it needs.
        needed_bytes: u64,
        /// Bytes given.
        available_bytes: u64,
        /// Longest length that fits.
        fitting_len: u32,
    },
}
