use super::{Device, SeqState};
use crate::{BlockId, SeqId};

/// Why an operation of the v0 block manager was refused. The manager is unchanged afterwards.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockSpaceError {
    /// The device has fewer free blocks than the operation takes.
    #[error("out of memory on {device}: {needed} blocks needed, {free} free")]
    OutOfMemory {
        /// The device that ran out.
        device: Device,
        /// Number of blocks the operation needs.
        needed: u32,
        /// Number of blocks that are free.
        free: u32,
    },
    /// The block is free already.
    #[error("double free of {block:?} on {device}")]
    DoubleFree {
        /// The device of the block.
        device: Device,
        /// The block.
        block: BlockId,
    },
    /// A reference was added to a free block.
    #[error("reference to free block {block:?} on {device}")]
    UseAfterFree {
        /// The device of the block.
        device: Device,
        /// The block.
        block: BlockId,
    },
    /// The device has no such block.
    #[error("no block {block:?} on {device}: it has {num_blocks} blocks")]
    UnknownBlock {
        /// The device.
        device: Device,
        /// The requested block.
        block: BlockId,
        /// Number of blocks of the device.
        num_blocks: u32,
    },
    /// The sequence has no block table.
    #[error("sequence {seq:?} has no block table")]
    NotAllocated {
        /// The sequence.
        seq: SeqId,
    },
    /// The sequence has a block table already.
    #[error("sequence {seq:?} has a block table already")]
    AlreadyAllocated {
        /// The sequence.
        seq: SeqId,
    },
    /// The blocks of the sequence are on the other device.
    #[error("blocks of sequence {seq:?} are on {found}, not on {expected}")]
    WrongDevice {
        /// The sequence.
        seq: SeqId,
        /// The device its blocks are on.
        found: Device,
        /// The device on which the operation needs the blocks.
        expected: Device,
    },
    /// The block table does not match the tokens: an append places exactly one new token.
    #[error(
        "sequence {seq:?} has {logical_blocks} logical blocks, {table_blocks} in its table: not one new token"
    )]
    OutOfStep {
        /// The sequence.
        seq: SeqId,
        /// Number of logical blocks of the sequence.
        logical_blocks: u32,
        /// Number of entries of its block table.
        table_blocks: u32,
    },
    /// The waiting sequences of a group share the blocks of their prompt, so their tokens must be equal.
    #[error("waiting sequences {first:?} and {other:?} of one group hold different tokens")]
    PromptsDiffer {
        /// The first waiting sequence, for which the blocks are counted.
        first: SeqId,
        /// The sequence that differs from the first.
        other: SeqId,
    },
    /// The block size of the sequence is not the manager's.
    #[error("sequence {seq:?} has blocks of {found} tokens, the manager of {expected}")]
    BlockSizeMismatch {
        /// The sequence.
        seq: SeqId,
        /// Number of tokens per block of the sequence.
        found: u32,
        /// Number of tokens per block of the manager.
        expected: u32,
    },
    /// The group has no sequence in the state that the operation acts on.
    #[error("no sequence of the group is {state:?}")]
    NoneInState {
        /// The state.
        state: SeqState,
    },
    /// The group already has a sequence with this id.
    #[error("sequence {seq:?} is in the group already")]
    DuplicateSeq {
        /// The sequence.
        seq: SeqId,
    },
    /// The state machine of a sequence has no such transition.
    #[error("sequence {seq:?} cannot go from {from:?} to {to:?}")]
    IllegalTransition {
        /// The sequence.
        seq: SeqId,
        /// State before the transition.
        from: SeqState,
        /// State after the transition.
        to: SeqState,
    },
    /// The watermark is negative or not a number.
    #[error("watermark {watermark} is not a fraction of at least 0")]
    InvalidWatermark {
        /// The watermark.
        watermark: f64,
    },
    /// The sliding window holds no token.
    #[error("sliding window of 0 tokens")]
    EmptyWindow,
}
