//! What callers may get wrong, found before anything changes.

use super::{KvCache, SlotRequest, count, demand};
use crate::error::AllocError;
use crate::id::SeqId;
use crate::manager::GroupManager;
use crate::pool::SeqContent;

impl KvCache {
    /// What the three stages rely on.
    pub(super) fn check_input(&self, request: &SlotRequest<'_>, num_computed: u32) -> Result<(), AllocError> {
        if let Some(hit) = request.hit.filter(|hit| hit.num_tokens > 0) {
            let (seq, found, num_groups) = (request.seq, hit.blocks.len(), self.groups.len());
            if found != num_groups {
                return Err(AllocError::GroupCount { found, num_groups });
            }
            self.check_new(seq)?;
            hit.blocks.iter().try_for_each(|blocks| self.pool.check_known(blocks))?;
        }
        if request.delay_cache {
            Ok(())
        } else {
            self.check_hashes(request.seq, request.content, num_computed)
        }
    }

    /// Checks that every block which `num_tokens` tokens fill has a hash.
    pub(super) fn check_hashes(
        &self,
        seq: SeqId,
        content: SeqContent<'_>,
        num_tokens: u32,
    ) -> Result<(), AllocError> {
        let num_tokens = num_tokens.min(count(content.tokens));
        let (hashes, needed) = (content.hashes.len(), num_tokens / self.hasher.block_size().get());
        if self.pool.options().caching && hashes < needed as usize {
            return Err(AllocError::MissingHashes { seq, hashes, num_tokens, needed });
        }
        Ok(())
    }

    pub(super) fn check_free(
        &self,
        request: &SlotRequest<'_>,
        num_tokens: u32,
        total_computed: u32,
        capped: bool,
    ) -> Result<(), AllocError> {
        let demand = |index| demand(request, index, num_tokens, total_computed, capped);
        let in_group = |(index, group): (usize, &GroupManager)| {
            group.num_blocks_to_allocate(request.seq, demand(index), &self.pool)
        };
        let (needed, free) = (self.groups.iter().enumerate().map(in_group).sum(), self.pool.num_free());
        if needed > free { Err(AllocError::OutOfBlocks { needed, free }) } else { Ok(()) }
    }

    pub(super) fn check_new(&self, seq: SeqId) -> Result<(), AllocError> {
        let known = self.groups.iter().any(|group| group.table(seq).is_some());
        if known { Err(AllocError::AlreadyAllocated { seq }) } else { Ok(()) }
    }
}
