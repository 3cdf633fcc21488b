//! One list of blocks out of many, by vote: the last step of XAttention-BSA.

use crate::declare::one;
use crate::{Level, Variant, slot};

kernel! {
    /// The kernel; [`VoteBlocksBuffers`] lists its bindings.
    "vote_blocks"(VoteBlocksParams, VoteBlocksBuffers): Selection,
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4` per entry of the lists, `4 * copies` per block kept",
    cases: crate::self_test::lists::vote_blocks,
}

params! {
    /// Uniform parameters.
    #[derive(PartialEq, Eq)]
    pub struct VoteBlocksParams {
        /// Lists that vote.
        pub voters: u32,
        /// u32 from one input list to the next.
        pub in_stride: u32,
        /// Lists that must name a block.
        pub votes: u32,
        /// Blocks of the history; the first and the last are always kept.
        pub blocks: u32,
        /// Blocks from the history's end to here, the chunk's own, are kept too.
        pub end: u32,
        /// Equal lists written, one for each KV head.
        pub copies: u32,
        /// u32 from one list written to the next.
        pub out_stride: u32,
        /// The first list written.
        pub first_list: u32,
    }
}

bindings! {
    /// Buffers of `vote_blocks`.
    pub struct VoteBlocksBuffers(VoteBlocksParams) {
        /// Lists, `[voters]` of in_stride u32: count, ascending blocks below `blocks`.
        read lists: u32,
        /// Writes `copies` equal lists of out_stride u32 from list first_list on. A list has the blocks that at least `votes`
        /// voters list, the first and the last block of the history, and the chunk's own blocks from `blocks` to `end`.
        write out: u32,
    }
}

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).set(slot::SCAN, Level::Baseline)
}

/// One workgroup.
#[must_use]
pub const fn grid() -> [u32; 3] {
    [1, 1, 1]
}
