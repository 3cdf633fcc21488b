//! Options of a pool.

use derive_setters::Setters;

/// Options of a [`BlockPool`](super::BlockPool).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Prefix caching: freed blocks keep their content, and lookups find it.
    pub caching: bool,
    /// Record [`CacheEvent`](crate::CacheEvent)s.
    pub events: bool,
    /// Keep the tokens of cached blocks and compare them on a hit, so that a hash collision is a miss instead
    /// of a wrong answer. Costs 4 bytes per cached token.
    pub verify_tokens: bool,
    /// Freed blocks without cached content go to the *front* of the free queue: they are reused first, and
    /// cached content lives longer (vLLM 0.33). Off: all freed blocks go to the tail (vLLM 0.21).
    pub reuse_unhashed_first: bool,
}

impl PoolOptions {
    /// Prefix caching; everything optional is off.
    pub const CACHING: Self =
        Self { caching: true, events: false, verify_tokens: false, reuse_unhashed_first: false };
}
