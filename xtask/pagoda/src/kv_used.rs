//! KV blocks in use, by cache group.

use std::collections::HashSet;

use kvblock::{AttentionKind, BlockId, GroupId, KvCache, KvCacheConfig, SeqId};
use scheduler::Scheduler;

/// Largest number of blocks that each group had in use at one time.
#[derive(Debug)]
pub(crate) struct KvUsed {
    kinds: Vec<AttentionKind>,
    /// Largest number of blocks of each group, `[groups]`.
    pub(crate) most: Vec<u32>,
}

impl KvUsed {
    /// A record for groups that have used no blocks so far.
    #[must_use]
    pub(crate) fn new(config: &KvCacheConfig) -> Self {
        let kinds: Vec<_> = config.groups.iter().map(|group| group.spec.kind).collect();
        Self { most: vec![0; kinds.len()], kinds }
    }

    /// Records what is in use now. O(blocks of the counted groups): a single group of full attention is not
    /// counted, because it has all blocks that the others do not use.
    pub(crate) fn look(&mut self, cache: &KvCache) {
        let mut left = cache.pool().num_used();
        let full = self.kinds.iter().filter(|kind| kind.is_full()).count();
        let mut now = vec![0; self.kinds.len()];
        let counted = |kind: &AttentionKind| full != 1 || !kind.is_full();
        for (group, _) in self.kinds.iter().enumerate().filter(|(_, kind)| counted(kind)) {
            now[group] = in_group(cache, group_id(group));
            left -= now[group];
        }
        if let (1, Some(group)) = (full, self.kinds.iter().position(|kind| kind.is_full())) {
            now[group] = left;
        }
        for (most, now) in self.most.iter_mut().zip(now) {
            *most = (*most).max(now);
        }
    }
}

/// Number of distinct blocks in the tables of a group. In a group with a window, only the blocks after the last null
/// block of a table count.
fn in_group(cache: &KvCache, group: GroupId) -> u32 {
    let held = |blocks: &[BlockId]| {
        blocks.iter().rev().copied().take_while(|b| *b != BlockId::NULL).collect::<Vec<_>>()
    };
    let blocks: HashSet<BlockId> = cache.tables(group).flat_map(|(_, table)| held(table.blocks())).collect();
    u32::try_from(blocks.len()).expect("a pool has under 2^32 blocks")
}

/// Group number `index`.
#[must_use]
pub(crate) fn group_id(index: usize) -> GroupId {
    GroupId::new(u32::try_from(index).expect("a model has few groups"))
}

/// Block tables of a sequence, `[groups]`.
pub(crate) fn tables(scheduler: &Scheduler, seq: SeqId, num_groups: usize) -> Vec<&[BlockId]> {
    (0..num_groups).map(|group| scheduler.block_table(seq, group_id(group))).collect()
}
