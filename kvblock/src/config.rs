//! Configuration of a cache.

use derive_setters::Setters;

use crate::error::ConfigError;
use crate::hash::HashAlgorithm;
use crate::id::BlockSize;
use crate::spec::{AttentionKind, KvCacheSpec, LengthLimits, PageLayout};

/// Layers that share block tables: a block id of the group names one page in each of them.
#[derive(Clone, PartialEq, Eq, Debug, Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct KvCacheGroup {
    /// Merged spec of all layers of the group.
    #[setters(skip)]
    pub spec: KvCacheSpec,
    /// Indices of the group's layers in the list that the groups were planned from.
    #[setters(skip)]
    pub layers: Vec<usize>,
    /// Whether a draft model (EAGLE, MTP) runs on this group. The group then recomputes one block of every hit.
    /// Library only: the engine runs no draft model.
    pub eagle: bool,
}

impl KvCacheGroup {
    /// A group of these layers, on which no draft model runs.
    #[must_use]
    pub const fn new(spec: KvCacheSpec, layers: Vec<usize>) -> Self {
        Self { spec, layers, eagle: false }
    }
}

/// Configuration of a [`KvCache`](crate::KvCache).
#[derive(Clone, PartialEq, Eq, Debug, Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct KvCacheConfig {
    /// Number of blocks of the pool, the null block included.
    pub num_blocks: u32,
    /// Cache groups; all draw from the one pool.
    pub groups: Vec<KvCacheGroup>,
    /// Maximum length of a sequence, and maximum number of tokens of one step.
    #[setters(skip)]
    pub limits: LengthLimits,
    /// Prefix caching: keep the content of full blocks and find it again.
    pub caching: bool,
    /// Hash function of the block hashes.
    pub hash_algorithm: HashAlgorithm,
    /// Seed of the hash chains; with random bytes, someone who sees only hashes cannot tell what is cached.
    #[setters(into)]
    pub hash_seed: Vec<u8>,
    /// Record [`CacheEvent`](crate::CacheEvent)s, for [`KvCache::take_events`](crate::KvCache::take_events).
    pub events: bool,
    /// Compare tokens on a hit, so that a hash collision counts as a miss.
    pub verify_tokens: bool,
    /// Reuse blocks without cached content before cached ones (vLLM 0.33). Off: least recently freed first
    /// (vLLM 0.21).
    pub reuse_unhashed_first: bool,
}

impl KvCacheConfig {
    /// Prefix caching with SHA-256 and an empty seed; everything optional is off. `groups` come from a
    /// [`CacheLayout`](crate::CacheLayout).
    #[must_use]
    pub fn new(num_blocks: u32, groups: Vec<KvCacheGroup>, limits: LengthLimits) -> Self {
        Self {
            num_blocks,
            groups,
            limits,
            caching: true,
            hash_algorithm: HashAlgorithm::default(),
            hash_seed: Vec::new(),
            events: false,
            verify_tokens: false,
            reuse_unhashed_first: false,
        }
    }

    /// [`new`](Self::new) with one group of `num_layers` identical layers, numbered from 0.
    #[must_use]
    pub fn uniform(num_blocks: u32, spec: KvCacheSpec, num_layers: usize, limits: LengthLimits) -> Self {
        let group = KvCacheGroup::new(spec, (0..num_layers).collect());
        Self::new(num_blocks, vec![group], limits)
    }

    /// The largest block size that divides every group's: hashes are computed at this granularity.
    ///
    /// # Errors
    /// [`ConfigError::NoGroups`].
    pub fn hash_block_size(&self) -> Result<BlockSize, ConfigError> {
        let sizes = self.groups.iter().map(|group| group.spec.block_size);
        sizes.reduce(BlockSize::greatest_common_divisor).ok_or(ConfigError::NoGroups)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.num_blocks < 2 {
            return Err(ConfigError::TooFewBlocks { num_blocks: self.num_blocks });
        }
        if self.limits.max_model_len == 0 {
            return Err(ConfigError::NoModelLength);
        }
        for (index, group) in self.groups.iter().enumerate() {
            let empty = match group.spec.kind {
                AttentionKind::Full { .. } => false,
                AttentionKind::SlidingWindow { window } => window == 0,
                AttentionKind::ChunkedLocal { chunk } => chunk == 0,
            };
            if empty {
                return Err(ConfigError::EmptyWindow { group: index });
            }
            let block_size = group.spec.block_size.get();
            if self.num_blocks.checked_mul(block_size).is_none() {
                return Err(ConfigError::TooManySlots { num_blocks: self.num_blocks, block_size });
            }
            if let PageLayout::Latent { compress_ratio, .. } = group.spec.layout
                && !block_size.is_multiple_of(compress_ratio)
            {
                return Err(ConfigError::CompressRatio { group: index, block_size, compress_ratio });
            }
        }
        Ok(())
    }
}
