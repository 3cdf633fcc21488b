//! Executes the block operations of a step plan: copies on the device, and swaps to host memory and back.

use kvblock::BlockId;
use models::{ModelError, Pipeline};
use scheduler::BlockOp;

/// Copies in host memory of the blocks of preempted sequences.
#[derive(Debug, Default)]
pub(crate) struct HostBlocks {
    blocks: Vec<Option<Vec<u32>>>,
}

impl HostBlocks {
    /// Runs `ops` in order; consecutive ones of one kind are submitted together.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn run(&mut self, decoder: &mut Pipeline, ops: &[BlockOp]) -> Result<(), ModelError> {
        let same_kind = |a: &BlockOp, b: &BlockOp| std::mem::discriminant(a) == std::mem::discriminant(b);
        for run in ops.chunk_by(same_kind) {
            let copies: Vec<(BlockId, BlockId)> = run.iter().filter_map(copy).collect();
            decoder.copy_blocks(&copies)?;
            self.swap_out(decoder, run)?;
            self.swap_in(decoder, run)?;
        }
        Ok(())
    }

    fn swap_out(&mut self, decoder: &Pipeline, run: &[BlockOp]) -> Result<(), ModelError> {
        let pairs: Vec<(BlockId, usize)> = run
            .iter()
            .filter_map(|op| match op {
                BlockOp::SwapOut { device, host, .. } => Some((*device, host.get() as usize)),
                _ => None,
            })
            .collect();
        let devices: Vec<BlockId> = pairs.iter().map(|(device, _)| *device).collect();
        for ((_, host), data) in pairs.iter().zip(decoder.read_blocks(&devices)?) {
            if self.blocks.len() <= *host {
                self.blocks.resize(host + 1, None);
            }
            self.blocks[*host] = Some(data);
        }
        Ok(())
    }

    fn swap_in(&mut self, decoder: &mut Pipeline, run: &[BlockOp]) -> Result<(), ModelError> {
        for op in run {
            if let BlockOp::SwapIn { host, device, .. } = op {
                let data = self.blocks.get_mut(host.get() as usize).and_then(Option::take);
                decoder
                    .write_block(*device, &data.expect("a block is swapped in once it was swapped out"))?;
            }
        }
        Ok(())
    }
}

fn copy(op: &BlockOp) -> Option<(BlockId, BlockId)> {
    match op {
        BlockOp::Copy(copy) => Some((copy.source, copy.destination)),
        _ => None,
    }
}
