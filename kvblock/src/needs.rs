//! Blocks of all groups that a prefix needs, for stores below the pool that keep the blocks of each group.

use core::ops::Range;

use crate::config::KvCacheGroup;
use crate::hash::{BlockHash, block_hash};
use crate::id::{BlockSize, GroupId};
use crate::spec::AttentionKind;

/// Block of a sequence in one group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupBlock {
    /// The group.
    pub group: GroupId,
    /// Position of the block in the sequence, in blocks of the group.
    pub index: u32,
}

/// Rule that says which blocks of each group are needed to resume a prefix: groups with full attention need all
/// blocks of the prefix, other groups only the blocks that the next token reaches.
/// [`KvCache::lookup`](crate::KvCache::lookup) follows the same rule on the device.
///
/// A group of a draft model counts like any other.
///
/// ```
/// use kvblock::{AttentionKind, BlockSize, GroupId, KvCacheGroup, KvCacheSpec, KvDtype, PrefixNeeds};
///
/// let size = BlockSize::new(16).unwrap();
/// let group = |kind| KvCacheGroup::new(KvCacheSpec::new(kind, size, 4, 64, KvDtype::F16), vec![0]);
/// let needs = PrefixNeeds::new(&[group(AttentionKind::FULL), group(AttentionKind::SlidingWindow { window: 20 })]);
/// // Block 4 of the window is lost: the next token after 80 or 96 would reach it.
/// let held = |group: GroupId, blocks: std::ops::Range<u32>| {
///     blocks.clone().take_while(|block| group == GroupId::new(0) || *block != 4).count() as u32
/// };
/// assert_eq!(needs.longest(0, 100, held), 64);
/// assert_eq!(needs.longest(0, 120, held), 112);
/// ```
#[derive(Clone, Debug)]
pub struct PrefixNeeds {
    groups: Vec<(AttentionKind, BlockSize)>,
    hash_block: BlockSize,
    alignment: BlockSize,
}

impl PrefixNeeds {
    /// The rule for these groups.
    ///
    /// # Panics
    /// When there is no group.
    #[must_use]
    pub fn new(groups: &[KvCacheGroup]) -> Self {
        let groups: Vec<_> = groups.iter().map(|group| (group.spec.kind, group.spec.block_size)).collect();
        let sizes = || groups.iter().map(|(_, size)| *size);
        let hash_block = sizes().reduce(BlockSize::greatest_common_divisor).expect("a cache has groups");
        let alignment = sizes().reduce(BlockSize::least_common_multiple).expect("a cache has groups");
        Self { groups, hash_block, alignment }
    }

    /// Number of tokens that one hash of a sequence covers.
    #[must_use]
    pub const fn hash_block_size(&self) -> BlockSize {
        self.hash_block
    }

    /// Number of groups.
    #[must_use]
    pub const fn num_groups(&self) -> usize {
        self.groups.len()
    }

    /// The chained hash of a block, found in `hashes`, the hashes of its sequence.
    ///
    /// # Panics
    /// When the sequence has no hash of it, or the group is unknown.
    #[must_use]
    pub fn hash(&self, hashes: &[BlockHash], block: GroupBlock) -> BlockHash {
        block_hash(hashes, block.index as usize, self.size(block.group), self.hash_block)
    }

    /// Positions of the tokens of a block.
    #[must_use]
    pub fn tokens(&self, block: GroupBlock) -> Range<u32> {
        let size = self.size(block.group).get();
        block.index * size..(block.index + 1) * size
    }

    /// Length of the longest prefix within `tokens` tokens that can be resumed: blocks of all groups end where the
    /// prefix ends.
    #[must_use]
    pub const fn aligned(&self, tokens: u32) -> u32 {
        tokens - tokens % self.alignment.get()
    }

    /// Blocks that the tokens at `positions` fill, group by group, without blocks that no prefix needs. A prefix ends
    /// at a position where a block of every group ends, so small blocks that are soon out of reach matter only before
    /// such positions. If all groups have one block size, all blocks are listed, since a pool that keeps the blocks
    /// of windows and chunks may read the store too.
    pub fn filled(&self, positions: Range<u32>) -> impl Iterator<Item = GroupBlock> + '_ {
        self.ids().flat_map(move |group| {
            let size = self.size(group).get();
            let blocks = positions.start / size..positions.end / size;
            let needed = move |index: &u32| {
                if self.alignment == self.hash_block {
                    return true;
                }
                // Prefixes that end later reach no further back.
                let end = ((index + 1) * size).next_multiple_of(self.alignment.get());
                self.reached(group, end).contains(index)
            };
            blocks.filter(needed).map(move |index| GroupBlock { group, index })
        })
    }

    /// Blocks that a prefix of `end` tokens needs in addition to the blocks of its first `start` tokens, in the order
    /// of their last tokens.
    #[must_use]
    pub fn beyond(&self, start: u32, end: u32) -> Vec<GroupBlock> {
        let of_group = |group| self.behind(group, start, end).map(move |index| GroupBlock { group, index });
        let mut blocks: Vec<GroupBlock> = self.ids().flat_map(of_group).collect();
        blocks.sort_by_key(|block| self.tokens(*block).end);
        blocks
    }

    /// Length of the longest prefix, of at most `most` tokens, for which all needed blocks after the first `start`
    /// tokens are held; `start` if there is no longer one. `held` takes a group and a range of blocks, and returns
    /// how many blocks at the start of the range are held.
    ///
    /// # Complexity
    /// `held` is asked once for each group of full attention, and for others about once in the tokens that one reaches.
    pub fn longest(&self, start: u32, most: u32, mut held: impl FnMut(GroupId, Range<u32>) -> u32) -> u32 {
        let mut end = self.aligned(most).max(start);
        let (full, others): (Vec<GroupId>, Vec<GroupId>) =
            self.ids().partition(|group| self.groups[group.index()].0.is_full());
        let mut missing = |group: GroupId, end: u32| {
            let wanted = self.behind(group, start, end);
            let run = held(group, wanted.clone());
            let missing = wanted.start + run;
            (missing < wanted.end).then(|| self.aligned(missing * self.size(group).get()))
        };
        for group in full {
            end = missing(group, end).unwrap_or(end).max(start);
        }
        // Every prefix between a block that is missing and the one that needs it needs it too.
        while end > start
            && let Some(shorter) = others.iter().find_map(|group| missing(*group, end))
        {
            end = shorter.max(start);
        }
        end
    }

    /// Blocks of a group before position `end` that the token at `end` attends to.
    fn reached(&self, group: GroupId, end: u32) -> Range<u32> {
        let (kind, size) = self.groups[group.index()];
        kind.num_skipped_tokens(end) / size.get()..end / size.get()
    }

    /// Blocks of a group that the token after `end` attends to, without those of the first `start` tokens.
    fn behind(&self, group: GroupId, start: u32, end: u32) -> Range<u32> {
        let Range { start: first, end } = self.reached(group, end);
        first.max(start / self.size(group).get())..end
    }

    fn size(&self, group: GroupId) -> BlockSize {
        self.groups[group.index()].1
    }

    fn ids(&self) -> impl Iterator<Item = GroupId> {
        (0..self.groups.len())
            .map(|index| GroupId::new(u32::try_from(index).expect("group counts are small")))
    }
}
