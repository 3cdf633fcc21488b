//! Checks of a caller's input, made before anything changes.

use super::{KvCache, SlotRequest, count, demand};
use crate::content::SeqContent;
use crate::coordinator::PrefixHit;
use crate::error::AllocError;
use crate::id::{BlockIdx, SeqId};
use crate::manager::GroupManager;

impl KvCache {
    /// Checks the input that the three stages of `allocate_slots` rely on.
    pub(super) fn check_input(
        &self,
        request: &SlotRequest<'_>,
        total_computed: u32,
    ) -> Result<(), AllocError> {
        if let Some(hit) = request.hit {
            self.check_hit(request.seq, hit)?;
            self.check_current(request, hit, total_computed)?;
        }
        if request.delay_cache {
            Ok(())
        } else {
            let num_tokens = total_computed.saturating_add(request.num_new);
            self.check_hashes(request.seq, request.content, num_tokens)
        }
    }

    fn check_hit(&self, seq: SeqId, hit: &PrefixHit) -> Result<(), AllocError> {
        if hit.num_tokens == 0 && hit.blocks.iter().all(Vec::is_empty) {
            return Ok(());
        }
        self.check_group_count(hit.blocks.len())?;
        self.check_new(seq)?;
        for (group, blocks) in self.groups.iter().zip(&hit.blocks) {
            let (num_tokens, found) = (hit.num_tokens, blocks.len());
            let expected = (num_tokens / group.block_size.get()) as usize;
            if found != expected {
                return Err(AllocError::HitLength { group: group.group(), num_tokens, found, expected });
            }
            self.pool.check_known(blocks)?;
        }
        Ok(())
    }

    /// Checks that the blocks that the sequence will read of a hit still hold its tokens. Since the lookup, a block
    /// may have been evicted, and may hold tokens of another sequence. O(blocks of the hit).
    fn check_current(
        &self,
        request: &SlotRequest<'_>,
        hit: &PrefixHit,
        total_computed: u32,
    ) -> Result<(), AllocError> {
        let (seq, content, num_tokens) = (request.seq, request.content, hit.num_tokens);
        let (hashes, needed) = (content.hashes.len(), num_tokens / self.hasher.block_size().get());
        if hashes < needed as usize {
            return Err(AllocError::MissingHashes { seq, hashes, num_tokens, needed });
        }
        for (group, blocks) in self.groups.iter().zip(&hit.blocks) {
            let (id, size) = (group.group(), group.block_size);
            let skipped = group.kind.num_skipped_tokens(total_computed) / size.get();
            for (index, &block) in (0..).zip(blocks).skip(skipped as usize) {
                if !self.pool.holds(block, content, index as usize, size, id) {
                    let index = BlockIdx::new(index);
                    return Err(AllocError::StaleHit { group: id, num_tokens, index, block });
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_group_count(&self, found: usize) -> Result<(), AllocError> {
        let num_groups = self.groups.len();
        if found == num_groups { Ok(()) } else { Err(AllocError::GroupCount { found, num_groups }) }
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
        self.check_num_free(self.groups.iter().enumerate().map(in_group).sum())
    }

    /// Fails unless `needed` blocks are free.
    pub(super) fn check_num_free(&self, needed: u32) -> Result<(), AllocError> {
        let free = self.pool.num_free();
        if needed > free { Err(AllocError::OutOfBlocks { needed, free }) } else { Ok(()) }
    }

    pub(super) fn check_new(&self, seq: SeqId) -> Result<(), AllocError> {
        let known = self.groups.iter().any(|group| group.table(seq).is_some());
        if known { Err(AllocError::AlreadyAllocated { seq }) } else { Ok(()) }
    }
}
