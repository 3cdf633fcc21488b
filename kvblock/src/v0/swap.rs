//! Moving the blocks of a group between devices.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AllocStatus, BlockMove, BlockSpaceError, BlockSpaceManager, Device, SeqState, Sequence, SequenceGroup,
};
use crate::{BlockId, SeqId};

impl BlockSpaceManager {
    /// Whether the swapped sequences of `group` fit on the GPU again while the watermark stays free, with one
    /// more block for the next token of each.
    #[must_use]
    pub fn can_swap_in(&self, group: &SequenceGroup) -> AllocStatus {
        let required =
            u64::from(self.num_group_blocks(group)) + u64::from(group.num_in_state(SeqState::Swapped));
        if required > u64::from(self.gpu.num_total_blocks()) {
            AllocStatus::Never
        } else if required.saturating_add(self.watermark_blocks()) <= u64::from(self.gpu.num_free_blocks()) {
            AllocStatus::Ok
        } else {
            AllocStatus::Later
        }
    }

    /// Whether the CPU has room for the blocks of `group`.
    #[must_use]
    pub fn can_swap_out(&self, group: &SequenceGroup) -> bool {
        self.num_group_blocks(group) <= self.cpu.num_free_blocks()
    }

    /// Number of physical blocks of the unfinished sequences of `group`; shared ones count once.
    fn num_group_blocks(&self, group: &SequenceGroup) -> u32 {
        let tables = group.unfinished().filter_map(|seq| self.tables.get(&seq.id()));
        let blocks: BTreeSet<(Device, BlockId)> =
            tables.flat_map(|table| table.distinct().iter().map(|&block| (table.device(), block))).collect();
        u32::try_from(blocks.len()).expect("both devices together hold fewer than 2^32 blocks")
    }

    /// Moves the tables of the swapped sequences of `group` to the GPU. Returns the copies to execute, from
    /// CPU block to GPU block; blocks that were shared stay shared.
    ///
    /// # Errors
    /// [`BlockSpaceError::NoneInState`] without a swapped sequence, [`BlockSpaceError::NotAllocated`],
    /// [`BlockSpaceError::WrongDevice`], [`BlockSpaceError::OutOfMemory`].
    pub fn swap_in(&mut self, group: &SequenceGroup) -> Result<Vec<BlockMove>, BlockSpaceError> {
        self.relocate(group, SeqState::Swapped, Device::Cpu, Device::Gpu)
    }

    /// Moves the tables of the running sequences of `group` to the CPU. Returns the copies to execute, from
    /// GPU block to CPU block; blocks that were shared stay shared.
    ///
    /// # Errors
    /// [`BlockSpaceError::NoneInState`] without a running sequence, [`BlockSpaceError::NotAllocated`],
    /// [`BlockSpaceError::WrongDevice`], [`BlockSpaceError::OutOfMemory`].
    pub fn swap_out(&mut self, group: &SequenceGroup) -> Result<Vec<BlockMove>, BlockSpaceError> {
        self.relocate(group, SeqState::Running, Device::Gpu, Device::Cpu)
    }

    /// Moves the sequences in `state` to the device `to`: each of their distinct blocks gets one block there, in the
    /// order of first use.
    fn relocate(
        &mut self,
        group: &SequenceGroup,
        state: SeqState,
        from: Device,
        to: Device,
    ) -> Result<Vec<BlockMove>, BlockSpaceError> {
        let movers: Vec<SeqId> = group.in_state(state).map(Sequence::id).collect();
        if movers.is_empty() {
            return Err(BlockSpaceError::NoneInState { state });
        }
        let mut distinct = BTreeSet::new();
        for &seq in &movers {
            let table = self.tables.get(&seq).ok_or(BlockSpaceError::NotAllocated { seq })?;
            if table.device() != from {
                return Err(BlockSpaceError::WrongDevice { seq, found: table.device(), expected: from });
            }
            distinct.extend(table.distinct().iter().copied());
        }
        self.allocator(to)
            .require(u32::try_from(distinct.len()).expect("no more than the blocks of a device"))?;

        let mut moves = Vec::with_capacity(distinct.len());
        let mut moved: BTreeMap<BlockId, BlockId> = BTreeMap::new();
        for seq in movers {
            let table = self.tables.remove(&seq).expect("the table was just looked at");
            let relocated = table.relocated(to, |src| {
                let target = self.allocator_mut(to);
                let dst = if let Some(&dst) = moved.get(&src) {
                    target.retain(dst).expect("the block was allocated for an earlier sequence");
                    dst
                } else {
                    let dst = target.allocate().expect("enough free blocks were required");
                    moved.insert(src, dst);
                    moves.push(BlockMove { src, dst });
                    dst
                };
                self.allocator_mut(from).free(src).expect("a block of a table is in use");
                dst
            });
            self.tables.insert(seq, relocated);
        }
        Ok(moves)
    }
}
