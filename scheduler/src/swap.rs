//! Preemption by swap: saves the blocks of preempted sequences on the host, and brings them back.

use kvblock::{AllocError, BlockId, GroupId, SeqId};

use crate::host::SavedTables;
use crate::plan::BlockOp;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Saves the blocks of the tokens that `seq` has computed. `None`, and nothing is saved, when the host
    /// has too few free blocks or there is nothing to save.
    pub(crate) fn swap_out(&mut self, seq: SeqId, computed: u32) -> Option<(SavedTables, Vec<BlockOp>)> {
        // Otherwise blocks out of reach would be saved, and would need room when they come back.
        self.cache.remove_skipped(seq, computed);
        let groups = (0..).zip(&self.specs).map(|(index, spec)| (GroupId::new(index), spec.block_size));
        let tables: Vec<(GroupId, &[BlockId])> = groups
            .map(|(group, size)| (group, &self.block_table(seq, group)[..size.blocks_for(computed) as usize]))
            .collect();
        let held = tables.iter().flat_map(|(_, blocks)| *blocks).filter(|block| !block.is_null()).count();
        if held == 0 || held > self.host.num_free() {
            return None;
        }
        let mut taken = self.host.next(held);
        let mut ops = Vec::with_capacity(held);
        let mut saved = Vec::with_capacity(tables.len());
        for (group, blocks) in tables {
            let save = |&device: &BlockId| {
                let host = (!device.is_null()).then(|| taken.next()).flatten()?;
                ops.push(BlockOp::SwapOut { group, device, host });
                Some(host)
            };
            saved.push(blocks.iter().map(save).collect());
        }
        drop(taken);
        self.host.take(held);
        Some((saved, ops))
    }

    /// Marks a preempted sequence to be recomputed instead of swapped in.
    pub(crate) fn forget_saved(&mut self, seq: SeqId) {
        let Some(found) = self.seqs.get_mut(&seq) else { return };
        if let Some(saved) = found.saved.take() {
            found.restart();
            self.host.release(&saved);
        }
    }

    /// Gives `seq` new device blocks for its saved ones, if it can then be extended to `num_tokens` tokens.
    pub(crate) fn swap_in(&mut self, seq: SeqId, num_tokens: u32) -> Result<Vec<BlockOp>, AllocError> {
        let Some(saved) = self.sequence_mut(seq).saved.take() else { return Ok(Vec::new()) };
        let occupancy: Vec<Vec<bool>> =
            saved.iter().map(|g| g.iter().map(Option::is_some).collect()).collect();
        if let Err(error) = self.cache.restore(seq, &occupancy, num_tokens) {
            self.sequence_mut(seq).saved = Some(saved);
            return Err(error);
        }
        let mut ops = Vec::new();
        for (group, hosts) in (0..).map(GroupId::new).zip(&saved) {
            let pairs = hosts.iter().zip(self.block_table(seq, group));
            ops.extend(
                pairs.filter_map(|(host, &device)| Some(BlockOp::SwapIn { group, host: (*host)?, device })),
            );
        }
        self.host.release(&saved);
        Ok(ops)
    }
}
