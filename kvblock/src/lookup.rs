//! Search for the longest cached prefix, in the direction that suits each attention kind.

use smallvec::SmallVec;

use crate::content::SeqContent;
use crate::hash::{BlockHash, block_hash};
use crate::id::{BlockId, BlockSize, GroupId};
use crate::pool::BlockPool;
use crate::spec::AttentionKind;

/// Groups with one attention kind and block size, which are looked up together: a block is a hit only if all these
/// groups have it.
#[derive(Clone, Debug)]
pub(crate) struct LookupType {
    pub(crate) kind: AttentionKind,
    pub(crate) block_size: BlockSize,
    pub(crate) groups: Vec<GroupId>,
    /// Whether a draft model runs on these groups. It reads the last hidden state before its first token, so its
    /// groups recompute one more block.
    pub(crate) eagle: bool,
}

/// Bounds of one search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of tokens of a hit.
    pub(crate) max_length: u32,
    /// The hit is a multiple of this many tokens.
    pub(crate) alignment: u32,
    /// Drop the last block of the hit.
    pub(crate) drop_last: bool,
}

/// Blocks of a hit: `[groups][hit blocks]`, null where a block is not needed.
pub(crate) type HitBlocks = Vec<Vec<BlockId>>;

impl LookupType {
    /// The longest hit within `bounds`. O(`max_length / block_size`).
    pub(crate) fn longest_hit(&self, content: SeqContent<'_>, bounds: Bounds, pool: &BlockPool) -> HitBlocks {
        let search = Search { of: self, content, pool, bounds };
        match self.kind {
            AttentionKind::Full { .. } => search.left_to_right(0),
            AttentionKind::SlidingWindow { window } => search.right_to_left(window),
            AttentionKind::ChunkedLocal { chunk } => search.within_chunk(chunk),
        }
    }
}

struct Search<'a> {
    of: &'a LookupType,
    content: SeqContent<'a>,
    pool: &'a BlockPool,
    bounds: Bounds,
}

impl Search<'_> {
    /// Searches from left to right: blocks `[0, start)` are not needed, all blocks from `start` to the first miss are
    /// part of the hit.
    fn left_to_right(&self, start: u32) -> HitBlocks {
        let mut found = vec![vec![BlockId::NULL; start as usize]; self.of.groups.len()];
        for index in start as usize..self.max_blocks() {
            let Some(blocks) = self.cached(index) else { break };
            for (list, block) in found.iter_mut().zip(blocks) {
                list.push(block);
            }
        }
        if self.bounds.drop_last {
            drop_last(&mut found);
        }
        self.align(&mut found);
        found
    }

    /// Searches for the hit of chunked local attention, which needs only the tokens of the chunk in which it ends.
    fn within_chunk(mut self, chunk: u32) -> HitBlocks {
        let size = self.of.block_size.get();
        loop {
            let chunk_start = self.bounds.max_length / chunk * chunk;
            let start = chunk_start / size;
            let found = self.left_to_right(start);
            // A chunk may start inside a block. A hit that ends before it belongs to the chunk before, whose
            // blocks were not searched.
            if found[0].len() > start as usize || start * size == chunk_start {
                return found;
            }
            self.bounds.max_length = start * size;
        }
    }

    /// Searches from right to left for the rightmost run of enough blocks: only the last `window - 1` tokens before
    /// the hit's end are needed. A shorter run is also a hit if it starts at block 0.
    fn right_to_left(&self, window: u32) -> HitBlocks {
        let needed = self.of.block_size.blocks_for(window - 1) as usize + usize::from(self.bounds.drop_last);
        let mut found = vec![vec![BlockId::NULL; self.max_blocks()]; self.of.groups.len()];
        let (mut run, mut end) = (0, None);
        for index in (0..self.max_blocks()).rev() {
            let Some(blocks) = self.cached(index) else {
                run = 0;
                continue;
            };
            let end_after_drop = if self.bounds.drop_last { index } else { index + 1 };
            if run == 0 && !self.is_aligned(end_after_drop) {
                continue;
            }
            for (list, block) in found.iter_mut().zip(blocks) {
                list[index] = block;
            }
            run += 1;
            if run >= needed {
                end = Some(index + run);
                break;
            }
        }
        found.iter_mut().for_each(|list| list.truncate(end.unwrap_or(run)));
        if self.bounds.drop_last {
            drop_last(&mut found);
        }
        self.align(&mut found);
        found
    }

    fn max_blocks(&self) -> usize {
        let known = self.content.hashes.len() as u64 * u64::from(self.pool.hash_block_size().get());
        let tokens = known.min(u64::from(self.bounds.max_length));
        usize::try_from(tokens / u64::from(self.of.block_size.get())).expect("block counts fit in usize")
    }

    fn cached(&self, index: usize) -> Option<SmallVec<[BlockId; 4]>> {
        let size = self.of.block_size.get() as usize;
        let hash: BlockHash =
            block_hash(self.content.hashes, index, self.of.block_size, self.pool.hash_block_size());
        let tokens = &self.content.tokens[index * size..(index + 1) * size];
        self.of.groups.iter().map(|&group| self.pool.cached_verified(hash, group, tokens)).collect()
    }

    fn align(&self, found: &mut HitBlocks) {
        for list in found {
            while !self.is_aligned(list.len()) {
                list.pop();
            }
        }
    }

    fn is_aligned(&self, blocks: usize) -> bool {
        (blocks as u64 * u64::from(self.of.block_size.get())).is_multiple_of(u64::from(self.bounds.alignment))
    }
}

fn drop_last(found: &mut HitBlocks) {
    for list in found {
        list.pop();
    }
}
