//! Descriptions by which kernels rank the blocks of a decode step like a policy does, without a readback.

use derive_setters::Setters;

use super::kvcomp::Projection;

/// A ranking of blocks: forced blocks first, then by score, ties by index.
///
/// Exhaustive: whoever ranks by it must know every kind, so a new one is a breaking change.
#[derive(Clone, PartialEq, Debug)]
pub enum Ranking {
    /// Ranks a block by a digest of its keys.
    Digests(ByDigests),
    /// Ranks a block by the binary hash of its nearest token.
    Hashes(ByHashes),
    /// Ranks a block by attention to compressed keys.
    Compressed(ByCompressed),
}

/// Scores from digests of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Setters)]
#[non_exhaustive]
pub struct ByDigests {
    /// Summary of a block's keys that is kept.
    #[setters(skip)]
    pub digest: DigestKind,
    /// Whether there is one ranking for all heads, by the sum of their scores. Otherwise there is one per KV
    /// head, by the largest score of its query heads.
    pub one_set: bool,
    /// Number of first blocks that are always kept.
    pub sink_blocks: u32,
    /// Number of last blocks that are always kept. The block of the last token is kept in any case.
    pub recent_blocks: u32,
    /// Whether only full blocks count as recent.
    pub recent_full: bool,
}

impl ByDigests {
    /// One ranking per KV head, without blocks that are always kept.
    #[must_use]
    pub const fn new(digest: DigestKind) -> Self {
        Self { digest, one_set: false, sink_blocks: 0, recent_blocks: 0, recent_full: false }
    }
}

/// Summary of the keys of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestKind {
    /// Channelwise minimum and maximum.
    MinMax,
    /// Channelwise mean.
    Mean,
}

/// Scores from Hamming distances, one ranking for all heads: minus the smallest distance between the mean
/// query of a KV head and a token of the block, over all KV heads.
#[derive(Clone, PartialEq, Debug, Setters)]
#[non_exhaustive]
pub struct ByHashes {
    /// Number of bits per hash of each part, a multiple of 32.
    #[setters(skip)]
    pub bits: u32,
    /// Channels of each part that is hashed separately, multiples of 8; if empty, all channels are hashed
    /// together.
    #[setters(skip)]
    pub parts: Vec<usize>,
    /// Seed of the projection.
    #[setters(skip)]
    pub seed: u64,
    /// Number of first tokens, which get distance 0.
    pub sink_tokens: u32,
    /// Number of last tokens, which get distance 0; includes the last block.
    pub recent_tokens: u32,
    /// Blocks that are always selected, at most four; negative ones count from the end.
    pub must_select: Vec<i32>,
}

impl ByHashes {
    /// Hashes of `bits` bits of each part, without blocks that are always kept.
    #[must_use]
    pub const fn new(bits: u32, parts: Vec<usize>, seed: u64) -> Self {
        Self { bits, parts, seed, sink_tokens: 0, recent_tokens: 0, must_select: Vec::new() }
    }

    /// The projection that hashes keys and queries of `head_dim` channels.
    #[must_use]
    pub fn projection(&self, head_dim: usize) -> Projection {
        Projection::seeded(head_dim, &self.parts, self.bits, self.seed)
    }
}

/// Scores from the attention probabilities of the mean keys that overlap a block, one ranking per KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Setters)]
#[non_exhaustive]
pub struct ByCompressed {
    /// Number of tokens per compressed key, a multiple of the stride.
    #[setters(skip)]
    pub kernel_size: u32,
    /// Number of tokens from one compressed key to the next; divides the block size.
    #[setters(skip)]
    pub kernel_stride: u32,
    /// Number of first blocks that are always kept.
    pub init_blocks: u32,
    /// Number of last blocks that are always kept; at least 1.
    pub local_blocks: u32,
}

impl ByCompressed {
    /// Mean keys of `kernel_size` tokens, one every `kernel_stride` tokens; the last block is always kept.
    #[must_use]
    pub const fn new(kernel_size: u32, kernel_stride: u32) -> Self {
        Self { kernel_size, kernel_stride, init_blocks: 0, local_blocks: 1 }
    }
}
