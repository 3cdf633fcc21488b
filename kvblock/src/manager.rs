//! Block tables of one group: allocation, adoption of hits, recycling.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::content::SeqContent;
use crate::id::{BlockId, BlockIdx, BlockSize, GroupId, SeqId};
use crate::pool::BlockPool;
use crate::spec::{AttentionKind, KvCacheSpec, LengthLimits};
use crate::table::BlockTable;

/// Message of a panic that cannot happen, because `num_blocks_to_allocate` counted the free blocks before any change.
const COUNTED: &str = "the free blocks were counted before";

/// Message of a panic that cannot happen, because blocks of tables come from the pool, with a reference for each table.
const HELD: &str = "a table holds its blocks";

/// Manager of the block tables of one cache group. The attention kind decides which blocks are freed early and how
/// hits are found ([`lookup`](crate::lookup)); everything else is common to all kinds.
#[derive(Clone, Debug)]
pub(crate) struct GroupManager {
    pub(crate) kind: AttentionKind,
    pub(crate) block_size: BlockSize,
    group: GroupId,
    admission_cap: Option<u32>,
    seqs: HashMap<SeqId, SeqBlocks, FxBuildHasher>,
}

#[derive(Clone, Debug)]
struct SeqBlocks {
    table: BlockTable,
    /// Number of leading blocks that are in the prefix cache, or null.
    num_cached: usize,
}

/// Demand of a sequence on a group in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'a> {
    /// Number of tokens that need a slot after this step.
    pub(crate) num_tokens: u32,
    /// Number of tokens that are computed before this step, hits included.
    pub(crate) total_computed: u32,
    /// Blocks found by a lookup; empty unless the sequence is new.
    pub(crate) hits: &'a [BlockId],
    /// Whether the count is limited to the blocks that the sequence can hold at one time.
    pub(crate) capped: bool,
}

impl GroupManager {
    pub(crate) fn new(spec: &KvCacheSpec, group: GroupId, limits: LengthLimits) -> Self {
        let admission_cap = spec.admission_cap(limits);
        Self { kind: spec.kind, block_size: spec.block_size, group, admission_cap, seqs: HashMap::default() }
    }

    pub(crate) const fn group(&self) -> GroupId {
        self.group
    }

    pub(crate) fn table(&self, seq: SeqId) -> Option<&BlockTable> {
        self.seqs.get(&seq).map(|blocks| &blocks.table)
    }

    pub(crate) fn seqs(&self) -> impl Iterator<Item = (SeqId, &BlockTable)> {
        self.seqs.iter().map(|(&seq, blocks)| (seq, &blocks.table))
    }

    /// Number of free blocks that `demand` consumes: new blocks, hit blocks that leave the free queue, and copies on
    /// write.
    pub(crate) fn num_blocks_to_allocate(&self, seq: SeqId, demand: Demand<'_>, pool: &BlockPool) -> u32 {
        let mut required = self.block_size.blocks_for(demand.num_tokens);
        if let (true, Some(cap)) = (demand.capped, self.admission_cap) {
            required = required.min(cap);
        }
        if let Some(blocks) = self.seqs.get(&seq) {
            let have = count(blocks.table.len());
            return required.saturating_sub(have) + u32::from(self.frozen_block(seq, demand, pool).is_some());
        }
        let skipped = self.kind.num_skipped_tokens(demand.total_computed) / self.block_size.get();
        let kept = demand.hits.get(skipped as usize..).unwrap_or(&[]);
        let revived = kept.iter().filter(|&&id| pool.is_free(id)).count();
        required.saturating_sub(skipped.max(count(demand.hits.len()))) + count(revived)
    }

    /// The first block that this step writes, if its content must stay: after a fork, other sequences refer to
    /// it, or lookups find it by the tokens that the parent had there.
    fn frozen_block(&self, seq: SeqId, demand: Demand<'_>, pool: &BlockPool) -> Option<(usize, BlockId)> {
        let index = (demand.total_computed / self.block_size.get()) as usize;
        let id = *self.seqs.get(&seq)?.table.blocks().get(index)?;
        (pool.ref_count(id) > 1 || pool.hash(id).is_some()).then_some((index, id))
    }

    /// Starts the table of a new sequence with the blocks of a hit. Must come before any
    /// [`allocate`](Self::allocate) of the step, which could take hit blocks that are still free.
    pub(crate) fn adopt(&mut self, seq: SeqId, demand: Demand<'_>, pool: &mut BlockPool) {
        if self.seqs.contains_key(&seq) {
            assert!(demand.hits.is_empty(), "{seq:?} has a table and {} hit blocks", demand.hits.len());
            return;
        }
        let skipped = (self.kind.num_skipped_tokens(demand.total_computed) / self.block_size.get()) as usize;
        let kept = demand.hits.get(skipped..).unwrap_or(&[]);
        let mut table = BlockTable::new(self.block_size);
        table.extend(core::iter::repeat_n(BlockId::NULL, skipped));
        pool.touch(kept).expect("hits were checked before");
        table.extend(kept.iter().copied());
        let num_cached = table.len();
        self.seqs.insert(seq, SeqBlocks { table, num_cached });
    }

    /// Number of blocks that the table of a sequence lacks for `num_tokens` tokens; `None` without a table.
    pub(crate) fn num_missing(&self, seq: SeqId, num_tokens: u32) -> Option<u32> {
        let have = count(self.seqs.get(&seq)?.table.len());
        Some(self.block_size.blocks_for(num_tokens).saturating_sub(have))
    }

    /// Extends the table to `num_tokens` tokens. Returns the new blocks.
    pub(crate) fn allocate(&mut self, seq: SeqId, num_tokens: u32, pool: &mut BlockPool) -> Vec<BlockId> {
        let blocks = self
            .seqs
            .entry(seq)
            .or_insert_with(|| SeqBlocks { table: BlockTable::new(self.block_size), num_cached: 0 });
        let missing = self.block_size.blocks_for(num_tokens).saturating_sub(count(blocks.table.len()));
        let new = pool.allocate(missing).expect(COUNTED);
        blocks.table.extend(new.iter().copied());
        new
    }

    /// Gives the sequence a private copy of the block it is about to write. Returns (source, destination).
    pub(crate) fn copy_on_write(
        &mut self,
        seq: SeqId,
        demand: Demand<'_>,
        pool: &mut BlockPool,
    ) -> Option<(BlockId, BlockId)> {
        let (index, source) = self.frozen_block(seq, demand, pool)?;
        let copy = pool.allocate(1).expect(COUNTED)[0];
        pool.free(&[source]).expect(HELD);
        let blocks = self.seqs.get_mut(&seq).expect("a sequence with a frozen block has a table");
        blocks.table.blocks_mut()[index] = copy;
        blocks.num_cached = blocks.num_cached.min(index);
        Some((source, copy))
    }

    /// Enters the full blocks of the first `num_tokens` tokens into the prefix cache.
    pub(crate) fn cache_blocks(
        &mut self,
        seq: SeqId,
        content: SeqContent<'_>,
        num_tokens: u32,
        pool: &mut BlockPool,
    ) {
        let Some(blocks) = self.seqs.get_mut(&seq) else { return };
        let num_full = (num_tokens / self.block_size.get()) as usize;
        let new = blocks.num_cached..num_full;
        pool.cache_full_blocks(content, blocks.table.blocks(), new, self.block_size, self.group);
        blocks.num_cached = blocks.num_cached.max(num_full);
    }

    /// Removes the blocks that hold tokens from `num_computed` on from the prefix cache, because these tokens were
    /// not computed after all.
    pub(crate) fn uncache_from(&mut self, seq: SeqId, num_computed: u32, pool: &mut BlockPool) {
        let Some(blocks) = self.seqs.get_mut(&seq) else { return };
        let valid = (num_computed / self.block_size.get()) as usize;
        if let Some(stale) = blocks.table.blocks().get(valid..blocks.num_cached) {
            pool.evict_blocks(stale).expect(HELD);
            blocks.num_cached = valid;
        }
    }

    /// Frees the blocks that no query at position `computed` or later can reach, the rightmost first.
    pub(crate) fn remove_skipped(&mut self, seq: SeqId, computed: u32, pool: &mut BlockPool) {
        let Some(blocks) = self.seqs.get_mut(&seq) else { return };
        let table = blocks.table.blocks_mut();
        let skipped = (self.kind.num_skipped_tokens(computed) / self.block_size.get()) as usize;
        let mut removed = Vec::new();
        let within = skipped.min(table.len());
        for entry in table[..within].iter_mut().rev() {
            if entry.is_null() {
                break; // Everything further to the left was freed before.
            }
            removed.push(core::mem::replace(entry, BlockId::NULL));
        }
        pool.free(&removed).expect(HELD);
    }

    /// Ends a sequence. Its tail is queued first and therefore evicted before its prefix. Unknown sequences
    /// are ignored.
    pub(crate) fn free(&mut self, seq: SeqId, pool: &mut BlockPool) {
        if let Some(blocks) = self.seqs.remove(&seq) {
            let tail_first: Vec<BlockId> = blocks.table.blocks().iter().rev().copied().collect();
            pool.free(&tail_first).expect(HELD);
        }
    }

    /// The first block that `parent` does not hold, among the blocks that a sequence of its first `num_tokens` tokens
    /// reaches.
    pub(crate) fn first_unheld(&self, parent: SeqId, num_tokens: u32) -> Option<BlockIdx> {
        let table = self.seqs.get(&parent).map_or(&[][..], |blocks| blocks.table.blocks());
        let first = self.kind.num_skipped_tokens(num_tokens) / self.block_size.get();
        let held = |index: u32| table.get(index as usize).is_some_and(|id| !id.is_null());
        (first..self.block_size.blocks_for(num_tokens)).find(|&index| !held(index)).map(BlockIdx::new)
    }

    /// Shares the blocks of `parent`'s first `num_tokens` tokens with `child`.
    pub(crate) fn fork(&mut self, parent: SeqId, child: SeqId, num_tokens: u32, pool: &mut BlockPool) {
        assert!(!self.seqs.contains_key(&child), "{child:?} has a table already");
        let Some(blocks) = self.seqs.get(&parent) else { return };
        let mut fork = blocks.clone();
        fork.table.blocks_mut().truncate(self.block_size.blocks_for(num_tokens) as usize);
        fork.num_cached = fork.num_cached.min((num_tokens / self.block_size.get()) as usize);
        pool.touch(fork.table.blocks()).expect(HELD);
        self.seqs.insert(child, fork);
    }

    /// Number of blocks needed to restore a table with `occupancy` and to extend it to `num_tokens` tokens.
    pub(crate) fn num_blocks_to_restore(&self, occupancy: &[bool], num_tokens: u32) -> u32 {
        let held = occupancy.iter().filter(|&&held| held).count();
        count(held) + self.block_size.blocks_for(num_tokens).saturating_sub(count(occupancy.len()))
    }

    /// Starts a table with new blocks where `occupancy` is set and null blocks elsewhere.
    pub(crate) fn restore(&mut self, seq: SeqId, occupancy: &[bool], pool: &mut BlockPool) {
        assert!(!self.seqs.contains_key(&seq), "{seq:?} has a table already");
        let held = occupancy.iter().filter(|&&held| held).count();
        let mut fresh = pool.allocate(count(held)).expect(COUNTED).into_iter();
        let mut table = BlockTable::new(self.block_size);
        let entry = |&held: &bool| {
            if held { fresh.next().expect("one block was taken for each") } else { BlockId::NULL }
        };
        table.extend(occupancy.iter().map(entry));
        self.seqs.insert(seq, SeqBlocks { table, num_cached: 0 });
    }
}

/// A block count as u32. Tables are bounded by the pool and the model length, which are u32.
fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).expect("block counts fit in u32")
}
