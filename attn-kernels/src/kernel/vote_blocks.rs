//! Combines many lists of blocks into one by vote: the last step of XAttention-BSA.

use crate::declare::one;
use crate::{Level, Variant, slot};

kernel! {
    /// The kernel; [`VoteBlocksBuffers`] lists its bindings.
    "vote_blocks"(VoteBlocksParams, VoteBlocksBuffers): Selection,
    grid: |_, _| [1, 1, 1],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4` per entry of the lists, `4 * copies` per block kept",
    cases: crate::self_test::lists::vote_blocks,
}

params! {
    /// Uniform parameters.
    #[derive(PartialEq, Eq)]
    pub struct VoteBlocksParams {
        /// Number of lists that vote.
        pub voters: u32,
        /// Number of u32 from one input list to the next.
        pub in_stride: u32,
        /// Number of lists that must contain a block for it to be kept.
        pub votes: u32,
        /// Number of blocks of the history. The first and the last are always kept.
        pub blocks: u32,
        /// End of the chunk's own blocks, which follow the history and are kept too.
        pub end: u32,
        /// Number of equal lists that are written, one for each KV head.
        pub copies: u32,
        /// Number of u32 from one output list to the next.
        pub out_stride: u32,
        /// Index of the first list that is written.
        pub first_list: u32,
    }
}

bindings! {
    /// Buffers of `vote_blocks`.
    pub struct VoteBlocksBuffers(VoteBlocksParams) {
        /// Lists, `[voters]` of in_stride u32: count, ascending blocks below `blocks`.
        read lists: u32,
        /// Output: `copies` equal lists of `out_stride` u32 from list `first_list` on. A list has the blocks that at
        /// least `votes` voters list, the first and the last block of the history, and the chunk's own blocks from
        /// `blocks` to `end`.
        index out: u32,
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).set(slot::SCAN, Level::Baseline)
}
