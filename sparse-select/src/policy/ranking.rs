//! What kernels need to order the blocks of a decode step as a policy does, without a readback.

use super::kvcomp::Projection;

/// An order of blocks: forced blocks first, then by score, equal scores by index.
#[derive(Clone, PartialEq, Debug)]
pub enum Ranking {
    /// By a digest of the keys of each block.
    Digests(ByDigests),
    /// By the nearest token's binary hash.
    Hashes(ByHashes),
    /// By attention to compressed keys.
    Compressed(ByCompressed),
}

/// Scores from digests of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByDigests {
    /// What is kept of a block's keys.
    pub digest: DigestKind,
    /// One order for all heads, by the sum of their scores; else one for each KV head, by the largest of its query
    /// heads'.
    pub one_set: bool,
    /// First blocks, always kept.
    pub sink_blocks: u32,
    /// Last blocks, always kept; the block of the last token always is.
    pub recent_blocks: u32,
    /// Whether only full blocks count as recent.
    pub recent_full: bool,
}

/// What is kept of the keys of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestKind {
    /// Channelwise minimum and maximum.
    MinMax,
    /// Channelwise mean.
    Mean,
}

/// Scores from Hamming distances, one order for all heads: minus the distance of the mean query of a KV head from the
/// nearest token of a block, over all KV heads.
#[derive(Clone, PartialEq, Debug)]
pub struct ByHashes {
    /// Bits of the hash of each part, a multiple of 32.
    pub bits: u32,
    /// Channels hashed apart, each a multiple of 8; empty hashes all together.
    pub parts: Vec<usize>,
    /// Seed of the projection.
    pub seed: u64,
    /// First tokens, at distance 0.
    pub sink_tokens: u32,
    /// Last tokens, at distance 0; the last block's are among them.
    pub recent_tokens: u32,
    /// Blocks always selected, at most four; negative ones count from the end.
    pub must_select: Vec<i32>,
}

impl ByHashes {
    /// The matrices that keys and queries of `head_dim` channels are hashed with.
    #[must_use]
    pub fn projection(&self, head_dim: usize) -> Projection {
        Projection::seeded(head_dim, &self.parts, self.bits, self.seed)
    }
}

/// Scores from the probabilities of mean keys that overlap a block, one order for each KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByCompressed {
    /// Tokens of a compressed key, a multiple of the stride.
    pub kernel_size: u32,
    /// Tokens from one compressed key to the next; a block is a multiple of it.
    pub kernel_stride: u32,
    /// First blocks, always kept.
    pub init_blocks: u32,
    /// Last blocks, always kept, the last one's among them.
    pub local_blocks: u32,
}
