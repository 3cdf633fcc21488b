//! Random calls of a session, and the groups it runs over.

use kvblock::{AttentionKind, TokenId};
use proptest::prelude::*;
use proptest::sample::Index;

use super::{LIMITS, LOOKAHEAD};

#[derive(Clone, Debug)]
pub(super) enum Op {
    Start {
        family: u32,
        len: u32,
        new: u32,
        lookup: bool,
    },
    Grow {
        seq: Index,
        new: u32,
        token: TokenId,
        lookahead: u32,
        /// Whether the next token is written before it is allocated.
        early: bool,
    },
    /// A lookup whose hit is adopted later, if ever.
    Look {
        family: u32,
        len: u32,
    },
    /// A start with one of those hits, however old.
    Adopt {
        hit: Index,
        new: u32,
    },
    /// A step that is planned and then not run; its sequence ends.
    Fail {
        seq: Index,
        new: u32,
    },
    /// A fork after so many of the tokens that are computed.
    Fork(Index, Index),
    Free(Index),
    Evict(Index),
    Reset,
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    prop_oneof![
        5 => (0_u32..2, 1_u32..LIMITS.max_model_len, 1..=LIMITS.max_batched_tokens, prop::bool::weighted(0.9))
            .prop_map(|(family, len, new, lookup)| Op::Start { family, len, new, lookup }),
        2 => (0_u32..2, 1_u32..LIMITS.max_model_len).prop_map(|(family, len)| Op::Look { family, len }),
        3 => (index(), 1..=LIMITS.max_batched_tokens).prop_map(|(hit, new)| Op::Adopt { hit, new }),
        12 => (index(), 1..=LIMITS.max_batched_tokens, 0_u32..3, 0..=LOOKAHEAD, any::<bool>())
            .prop_map(|(seq, new, token, lookahead, early)| Op::Grow { seq, new, token, lookahead, early }),
        1 => (index(), 1..=LIMITS.max_batched_tokens).prop_map(|(seq, new)| Op::Fail { seq, new }),
        2 => (index(), index()).prop_map(|(seq, tokens)| Op::Fork(seq, tokens)),
        4 => index().prop_map(Op::Free),
        1 => index().prop_map(Op::Evict),
        1 => Just(Op::Reset),
    ]
}

fn kind() -> impl Strategy<Value = AttentionKind> {
    prop_oneof![
        2 => Just(AttentionKind::FULL),
        2 => (1_u32..12).prop_map(|window| AttentionKind::SlidingWindow { window }),
        1 => (1_u32..12).prop_map(|chunk| AttentionKind::ChunkedLocal { chunk }),
    ]
}

/// One block size for all groups, which chunked local attention needs, or sizes that divide each other.
pub(super) fn groups() -> impl Strategy<Value = Vec<(AttentionKind, u32)>> {
    let equal = (prop::collection::vec(kind(), 1..4), 1_u32..5)
        .prop_map(|(kinds, size)| kinds.into_iter().map(|kind| (kind, size)).collect::<Vec<_>>());
    let mixed = (1_u32..12, 1_u32..12).prop_map(|(a, b)| {
        let window = |window| AttentionKind::SlidingWindow { window };
        vec![(window(a), 2), (AttentionKind::FULL, 4), (window(b), 2)]
    });
    prop_oneof![3 => equal, 1 => mixed]
}
