//! Taking the blocks of a running group away.

use super::{BlockMove, BlockSpaceError, BlockSpaceManager, SeqState, Sequence, SequenceGroup};

/// How a group gives its blocks back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PreemptionMode {
    /// The blocks are dropped; prompt and output are prefilled again later. It takes no
    /// host memory and no transfer.
    Recompute,
    /// The blocks move to the CPU. Sequences that share blocks cannot be recomputed into sharing them: their
    /// outputs differ, and the waiting state has one table for all.
    Swap,
}

impl PreemptionMode {
    /// Recomputation for a group with one unfinished sequence, swapping for any other.
    #[must_use]
    pub fn of(group: &SequenceGroup) -> Self {
        if group.num_unfinished() == 1 { Self::Recompute } else { Self::Swap }
    }
}

/// What preempting a group did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preemption {
    /// Its blocks are free, its sequence waits: put the group in front of the waiting ones.
    Recompute,
    /// Its sequences are swapped: execute these copies from GPU block to CPU block before the blocks are
    /// written again.
    Swap(Vec<BlockMove>),
}

/// Takes the blocks of the running sequences of `group` and moves these to their next state.
///
/// # Errors
/// [`BlockSpaceError::NoneInState`] when nothing of the group runs, [`BlockSpaceError::OutOfMemory`] when the
/// CPU has no room for a group that must be swapped. Nothing changes then.
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
