//! Requests for slots.

use derive_setters::Setters;

use crate::content::SeqContent;
use crate::coordinator::PrefixHit;
use crate::id::SeqId;

/// Request of one sequence to [`KvCache::allocate_slots`](super::KvCache::allocate_slots).
#[derive(Clone, Copy, Debug, Setters)]
#[non_exhaustive]
pub struct SlotRequest<'a> {
    /// The sequence.
    #[setters(skip)]
    pub seq: SeqId,
    /// Confirmed tokens of the sequence, and their hashes.
    #[setters(skip)]
    pub content: SeqContent<'a>,
    /// Number of tokens computed before this step, without the hit.
    #[setters(skip)]
    pub num_computed: u32,
    /// Prefix hit to adopt; only for a sequence without a table.
    #[setters(into)]
    pub hit: Option<&'a PrefixHit>,
    /// Number of tokens after the prefix hit whose KV comes from outside (a connector).
    pub num_external: u32,
    /// Number of tokens computed in this step.
    #[setters(skip)]
    pub num_new: u32,
    /// Number of further slots, for draft tokens.
    pub num_lookahead: u32,
    /// Whether blocks stay out of the prefix cache until [`KvCache::cache_blocks`](super::KvCache::cache_blocks),
    /// because their KV arrives later.
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
}
