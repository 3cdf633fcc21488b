//! Options of a pool.

/// Options of a [`BlockPool`](super::BlockPool).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    /// Turns prefix caching on or off.
    #[must_use]
    pub const fn caching(self, on: bool) -> Self {
        Self { caching: on, ..self }
    }

    /// Turns the record of [`CacheEvent`](crate::CacheEvent)s on or off.
    #[must_use]
    pub const fn events(self, on: bool) -> Self {
        Self { events: on, ..self }
    }

    /// Turns the comparison of tokens on a hit on or off.
    #[must_use]
    pub const fn verify_tokens(self, on: bool) -> Self {
        Self { verify_tokens: on, ..self }
    }

    /// Turns the early reuse of blocks without cached content on or off.
    #[must_use]
    pub const fn reuse_unhashed_first(self, on: bool) -> Self {
        Self { reuse_unhashed_first: on, ..self }
    }
}
