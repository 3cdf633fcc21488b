//! Queues of sequence groups, in an order in which preemption starves no group.

use std::collections::VecDeque;

use super::preempt::preempt;
use super::{
    AllocStatus, BlockMove, BlockSpaceError, BlockSpaceManager, CopyList, Ending, Preemption, PreemptionMode,
    RequestId, SeqState, SequenceGroup,
};

/// Work of one step. Order of execution: `swap_out`, `swap_in`, `copies`, then the tokens of `prefill` or
/// of `decode` (never both).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOps {
    /// Groups that left the queues with every sequence finished; a group that can never fit ends as
    /// [`Ending::Failed`].
    pub done: Vec<SequenceGroup>,
    /// Groups to prefill: all tokens, once for all waiting sequences of a group.
    pub prefill: Vec<RequestId>,
    /// Groups to decode: the newest token of each running sequence.
    pub decode: Vec<RequestId>,
    /// Groups that lost their GPU blocks.
    pub preempted: Vec<(RequestId, PreemptionMode)>,
    /// Groups swapped in; they are in `decode` too.
    pub resumed: Vec<RequestId>,
    /// Copies from GPU block to CPU block.
    pub swap_out: Vec<BlockMove>,
    /// Copies from CPU block to GPU block.
    pub swap_in: Vec<BlockMove>,
    /// Copies from GPU block to GPU block.
    pub copies: CopyList,
}

/// The groups of an engine: waiting, running, and swapped out.
///
/// First come, first served: when blocks run out, the group that arrived last is preempted. A group to be
/// recomputed goes to the front of the waiting ones; a swapped group is served before any waiting one, and no
/// prompt is admitted while a group is swapped out.
#[derive(Clone, Debug, Default)]
pub struct GroupQueues {
    waiting: VecDeque<SequenceGroup>,
    running: Vec<SequenceGroup>,
    swapped: VecDeque<SequenceGroup>,
}

impl GroupQueues {
    /// Empty queues.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiting: VecDeque::new(), running: Vec::new(), swapped: VecDeque::new() }
    }

    /// Adds a group of waiting sequences after the others.
    pub fn submit(&mut self, group: SequenceGroup) {
        self.waiting.push_back(group);
    }

    /// Plans one step and writes it to `ops`: a prefill of all prompts that fit, or else a decode step.
    ///
    /// # Errors
    /// Whatever the operations of `space` return; [`BlockSpaceError::OutOfMemory`] on the CPU when a group
    /// must be swapped out but does not fit. `ops` then holds what was done up to that point, which must
    /// still be executed, and every group is still in its queue.
    pub fn step(&mut self, space: &mut BlockSpaceManager, ops: &mut StepOps) -> Result<(), BlockSpaceError> {
        *ops = StepOps::default();
        self.retire(space, ops);
        if self.swapped.is_empty() {
            let gone = ops.done.len();
            self.admit(space, ops)?;
            if !ops.prefill.is_empty() || ops.done.len() > gone {
                return Ok(());
            }
        }
        self.grow(space, ops)?;
        if ops.preempted.is_empty() { self.resume(space, ops) } else { Ok(()) }
    }

    /// Frees the blocks of finished sequences and removes finished groups.
    fn retire(&mut self, space: &mut BlockSpaceManager, ops: &mut StepOps) {
        let groups = || self.waiting.iter().chain(&self.running).chain(&self.swapped);
        for sequence in groups().flat_map(SequenceGroup::sequences).filter(|s| s.state().is_finished()) {
            space.free(sequence.id());
        }
        ops.done.extend(self.running.extract_if(.., |group| group.is_finished()));
        for queue in [&mut self.swapped, &mut self.waiting] {
            let (done, kept): (Vec<_>, _) = queue.drain(..).partition(SequenceGroup::is_finished);
            ops.done.extend(done);
            *queue = VecDeque::from_iter::<Vec<_>>(kept);
        }
    }

    fn admit(&mut self, space: &mut BlockSpaceManager, ops: &mut StepOps) -> Result<(), BlockSpaceError> {
        while let Some(group) = self.waiting.front_mut() {
            match space.can_allocate(group) {
                AllocStatus::Later => break,
                AllocStatus::Never => group.finish(Ending::Failed),
                AllocStatus::Ok => {
                    space.allocate(group)?;
                    group.transition(SeqState::Waiting, SeqState::Running)?;
                }
            }
            let group = self.waiting.pop_front().expect("there is a front");
            if group.is_finished() {
                ops.done.push(group);
            } else {
                ops.prefill.push(group.id());
                self.running.push(group);
            }
        }
        Ok(())
    }

    /// Makes room for the newest tokens of the running groups, earliest arrival first; the latest arrivals
    /// are preempted.
    fn grow(&mut self, space: &mut BlockSpaceManager, ops: &mut StepOps) -> Result<(), BlockSpaceError> {
        self.running.sort_by_key(SequenceGroup::arrival);
        let mut served = 0;
        while served < self.running.len() {
            if space.can_append_slot(&self.running[served]) {
                append_slots(space, &self.running[served], ops)?;
                served += 1;
            } else {
                self.preempt_last(space, ops)?;
            }
        }
        Ok(())
    }

    fn preempt_last(
        &mut self,
        space: &mut BlockSpaceManager,
        ops: &mut StepOps,
    ) -> Result<(), BlockSpaceError> {
        let victim = self.running.last_mut().expect("a running group lacks blocks");
        let preemption = preempt(space, victim)?;
        let victim = self.running.pop().expect("there is a last");
        match preemption {
            Preemption::Recompute => {
                ops.preempted.push((victim.id(), PreemptionMode::Recompute));
                self.waiting.push_front(victim);
            }
            Preemption::Swap(moves) => {
                ops.preempted.push((victim.id(), PreemptionMode::Swap));
                ops.swap_out.extend(moves);
                self.swapped.push_back(victim);
            }
        }
        Ok(())
    }

    fn resume(&mut self, space: &mut BlockSpaceManager, ops: &mut StepOps) -> Result<(), BlockSpaceError> {
        while let Some(group) = self.swapped.front_mut() {
            let status = space.can_swap_in(group);
            // With nothing running, no block will ever be freed: a group the watermark keeps out would wait forever.
            let stuck = status == AllocStatus::Later && self.running.is_empty();
            if status == AllocStatus::Never || stuck {
                let mut group = self.swapped.pop_front().expect("there is a front");
                group.sequences().iter().for_each(|sequence| space.free(sequence.id()));
                group.finish(Ending::Failed);
                ops.done.push(group);
                continue;
            }
            if status == AllocStatus::Later {
                break;
            }
            ops.swap_in.extend(space.swap_in(group)?);
            group.transition(SeqState::Swapped, SeqState::Running)?;
            let group = self.swapped.pop_front().expect("there is a front");
            self.running.push(group);
            let group = self.running.last().expect("a group was just pushed");
            ops.resumed.push(group.id());
            append_slots(space, group, ops)?;
        }
        Ok(())
    }

    /// The running groups; between steps, the caller extends, forks and finishes their sequences.
    pub fn running_mut(&mut self) -> &mut [SequenceGroup] {
        &mut self.running
    }

    /// The groups without blocks, in the order in which they will be admitted.
    pub fn waiting(&self) -> impl Iterator<Item = &SequenceGroup> {
        self.waiting.iter()
    }

    /// The groups on the GPU.
    #[must_use]
    pub fn running(&self) -> &[SequenceGroup] {
        &self.running
    }

    /// The groups on the CPU, in the order in which they will be resumed.
    pub fn swapped(&self) -> impl Iterator<Item = &SequenceGroup> {
        self.swapped.iter()
    }

    /// Whether no group is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.swapped.is_empty()
    }
}

fn append_slots(
    space: &mut BlockSpaceManager,
    group: &SequenceGroup,
    ops: &mut StepOps,
) -> Result<(), BlockSpaceError> {
    ops.decode.push(group.id());
    for sequence in group.in_state(SeqState::Running) {
        ops.copies.extend(space.append_slot(sequence)?);
    }
    Ok(())
}
