//! Saving: blocks that a step filled, from the device to the tiers.

use std::sync::Arc;

use kvblock::{BlockHash, BlockId};
use models::{BlockRead, Decoder, ModelError};
use prefetch::store::{StoreError, Task};

use super::Tiers;
use crate::{Note, error_chain};

/// Maximum number of blocks per read and write task.
pub(super) const MAX_BLOCKS: usize = BlockRead::MAX_BLOCKS;

/// Blocks being saved.
pub(super) enum Saving {
    /// From the device to the host.
    Reading(Vec<BlockHash>, BlockRead),
    /// From the host to the tiers.
    Writing(Task),
}

impl Tiers {
    /// Saves the current contents of blocks. The copies are queued on the device before later steps, so the
    /// blocks may be reused at once.
    ///
    /// # Errors
    /// Errors of the device. Failures of tiers are only told and counted; blocks that
    /// they lack are computed again.
    pub(crate) fn save(
        &mut self,
        decoder: &Decoder,
        blocks: &[(BlockHash, BlockId)],
    ) -> Result<(), ModelError> {
        self.advance(decoder)?;
        for some in blocks.chunks(MAX_BLOCKS) {
            let (hashes, ids): (Vec<BlockHash>, Vec<BlockId>) = some.iter().copied().unzip();
            self.saves.push_back(Saving::Reading(hashes, decoder.begin_read(&ids)?));
        }
        Ok(())
    }

    /// Advances every save as far as possible without waiting for a tier. A step lies between the start of a
    /// read and this call, so the read has ended.
    fn advance(&mut self, decoder: &Decoder) -> Result<(), ModelError> {
        for saving in std::mem::take(&mut self.saves) {
            match saving {
                Saving::Reading(hashes, read) => {
                    let task = self.write(hashes, decoder.finish_read(read)?);
                    self.saves.extend(task.map(Saving::Writing));
                }
                Saving::Writing(task) if self.store.check(&task) => self.end(task),
                saving @ Saving::Writing(_) => self.saves.push_back(saving),
            }
        }
        Ok(())
    }

    /// Waits until everything is written or has failed.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn settle(&mut self, decoder: &Decoder) -> Result<(), ModelError> {
        self.advance(decoder)?;
        for saving in std::mem::take(&mut self.saves) {
            if let Saving::Writing(task) = saving {
                self.end(task);
            }
        }
        if let Err(error) = self.stack.flush() {
            self.tell("flushing the tiers", &error);
        }
        Ok(())
    }

    /// Removes blocks that turned out to be wrong from the tiers, whoever saved them.
    ///
    /// # Errors
    /// Errors of the device. Failures of tiers are told.
    pub(crate) fn forget(&mut self, decoder: &Decoder, hashes: &[BlockHash]) -> Result<(), ModelError> {
        // Writes that are under way would come after the removal.
        self.settle(decoder)?;
        for hash in hashes {
            if let Some(bytes) = self.loader.take(*hash) {
                self.loader.give_back(bytes);
            }
            if let Err(error) = self.stack.remove(*hash) {
                self.tell("removing blocks", &error);
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, hashes: Vec<BlockHash>, contents: Vec<Vec<u32>>) -> Option<Task> {
        let bytes = |block: &Vec<u32>| Arc::from(bytemuck::cast_slice::<u32, u8>(block));
        let blocks: Vec<(BlockHash, Arc<[u8]>)> =
            hashes.into_iter().zip(contents.iter().map(bytes)).collect();
        loop {
            match self.store.dump_blocks(blocks.clone()) {
                Ok(task) => return Some(task),
                // The tiers are slower than the device, so the step waits for the oldest write.
                Err(StoreError::QueueFull { .. }) if self.end_oldest() => {}
                Err(error) => {
                    self.tell("saving blocks", &error);
                    return None;
                }
            }
        }
    }

    /// Waits for the oldest write; false if there is none.
    fn end_oldest(&mut self) -> bool {
        let writing = |saving: &Saving| matches!(saving, Saving::Writing(_));
        let oldest = self.saves.iter().position(writing).and_then(|at| self.saves.remove(at));
        let Some(Saving::Writing(task)) = oldest else { return false };
        self.end(task);
        true
    }

    fn end(&mut self, task: Task) {
        self.saved += 1;
        if let Err(error) = self.store.wait(task) {
            self.tell("saving blocks", &error);
        }
    }

    /// Tells the first failure.
    fn tell(&mut self, action: &'static str, error: &dyn std::error::Error) {
        if !std::mem::replace(&mut self.told, true) {
            self.notes.tell(&Note::TierFailed { action, reason: error_chain::joined(error) });
        }
    }
}
