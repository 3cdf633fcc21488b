//! Preemption: taking the blocks of a running group away.

use super::{BlockMove, BlockSpaceError, BlockSpaceManager, SeqState, Sequence, SequenceGroup};

/// Way in which a preempted group gives up its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PreemptionMode {
    /// The blocks are freed; prompt and output are prefilled again later. Needs no host memory and no
    /// transfer.
    Recompute,
    /// The blocks move to the CPU. Groups of several sequences need this: their outputs differ, but waiting sequences
    /// of a group have one table for all, so recomputation could not make them share blocks again.
    Swap,
}

impl PreemptionMode {
    /// Recomputation for a group with one unfinished sequence, swapping for any other.
    #[must_use]
    pub fn of(group: &SequenceGroup) -> Self {
        if group.num_unfinished() == 1 { Self::Recompute } else { Self::Swap }
    }
}

/// Effect of preempting a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preemption {
    /// The blocks of the group are free, and its sequence waits: put the group before the other waiting groups.
    Recompute,
    /// The sequences of the group are swapped out: execute these copies, from GPU block to CPU block, before the GPU blocks
    /// are written again.
    Swap(Vec<BlockMove>),
}

/// Takes the blocks of the running sequences of `group` away and moves the sequences to their next state.
///
/// # Errors
/// [`BlockSpaceError::NoneInState`] when no sequence of the group runs, [`BlockSpaceError::OutOfMemory`] when
/// the CPU has no room for a group that must be swapped. Nothing changes then.
pub fn preempt(
    space: &mut BlockSpaceManager,
    group: &mut SequenceGroup,
) -> Result<Preemption, BlockSpaceError> {
    match PreemptionMode::of(group) {
        PreemptionMode::Recompute => {
            let running = group.in_state(SeqState::Running).next().map(Sequence::id);
            let seq = running.ok_or(BlockSpaceError::NoneInState { state: SeqState::Running })?;
            space.free(seq);
            group.transition(SeqState::Running, SeqState::Waiting)?;
            Ok(Preemption::Recompute)
        }
        PreemptionMode::Swap => {
            let moves = space.swap_out(group)?;
            group.transition(SeqState::Running, SeqState::Swapped)?;
            Ok(Preemption::Swap(moves))
        }
    }
}
