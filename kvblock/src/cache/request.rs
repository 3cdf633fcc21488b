//! Requests for slots.

use crate::content::SeqContent;
use crate::coordinator::PrefixHit;
use crate::id::SeqId;

/// Request of one sequence to [`KvCache::allocate_slots`](super::KvCache::allocate_slots).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SlotRequest<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Confirmed tokens of the sequence, and their hashes.
    pub content: SeqContent<'a>,
    /// Tokens computed before this step, without the hit.
    pub num_computed: u32,
    /// Prefix hit to adopt; only for a sequence without a table.
    pub hit: Option<&'a PrefixHit>,
    /// Tokens after the prefix hit whose KV comes from outside (a connector).
    pub num_external: u32,
    /// Tokens computed in this step.
    pub num_new: u32,
    /// Further slots, for draft tokens.
    pub num_lookahead: u32,
    /// Do not enter blocks into the prefix cache yet: their KV arrives later.
    pub delay_cache: bool,
    /// Fail unless the free blocks suffice for all of `content`, not only for this step.
    pub full_sequence_must_fit: bool,
}

impl<'a> SlotRequest<'a> {
    /// A step that computes `num_new` tokens after `num_computed` earlier ones; everything optional is off.
    #[must_use]
    pub const fn new(seq: SeqId, content: SeqContent<'a>, num_computed: u32, num_new: u32) -> Self {
        Self {
            seq,
            content,
            num_computed,
            hit: None,
            num_external: 0,
            num_new,
            num_lookahead: 0,
            delay_cache: false,
            full_sequence_must_fit: false,
        }
    }

    /// Sets the prefix hit to adopt, if any.
    #[must_use]
    pub fn hit(self, hit: impl Into<Option<&'a PrefixHit>>) -> Self {
        Self { hit: hit.into(), ..self }
    }

    /// Sets the number of tokens after the prefix hit whose KV comes from outside.
    #[must_use]
    pub const fn num_external(self, tokens: u32) -> Self {
        Self { num_external: tokens, ..self }
    }

    /// Sets the number of further slots, for draft tokens.
    #[must_use]
    pub const fn num_lookahead(self, slots: u32) -> Self {
        Self { num_lookahead: slots, ..self }
    }

    /// Keeps blocks out of the prefix cache until [`KvCache::cache_blocks`](super::KvCache::cache_blocks), or not.
    #[must_use]
    pub const fn delay_cache(self, on: bool) -> Self {
        Self { delay_cache: on, ..self }
    }

    /// Fails unless the free blocks suffice for all of the content, or only for this step.
    #[must_use]
    pub const fn full_sequence_must_fit(self, on: bool) -> Self {
        Self { full_sequence_must_fit: on, ..self }
    }
}
