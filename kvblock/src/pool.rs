//! The pool of physical blocks, shared by all cache groups.

mod cache_map;
mod find;
mod options;

pub use options::PoolOptions;

use core::ops::Range;

use cache_map::CacheMap;

use crate::content::SeqContent;
use crate::error::AllocError;
use crate::event::{CacheEvent, Medium, StoredBlocks};
use crate::free_queue::FreeQueue;
use crate::hash::{BlockHash, CacheKey, block_hash};
use crate::id::{BlockId, BlockSize, GroupId, TokenId};

#[derive(Clone, Debug)]
pub(crate) struct Block {
    ref_count: u32,
    pub(crate) key: Option<CacheKey>,
    /// The next block with the same key; null for none.
    pub(crate) next_duplicate: BlockId,
}

const EMPTY: Block = Block { ref_count: 0, key: None, next_duplicate: BlockId::NULL };

/// Host memory of a pool, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolMemory {
    /// State and free-queue link of every block: a constant per block.
    pub block_bytes: usize,
    /// The map from content to blocks; grows with the number of cached blocks.
    pub map_bytes: usize,
    /// Size of the kept tokens, with [`PoolOptions::verify_tokens`].
    pub token_bytes: usize,
}

/// Reference-counted blocks with content lookup and eviction in free order (vLLM v1 `BlockPool`).
///
/// Invariants: a block is in the free queue exactly when its reference count is 0, except the null block (id
/// 0), which is never queued and not counted; a free block keeps its content, and can be hit, until it is
/// allocated again.
///
/// ```
/// use kvblock::{BlockPool, BlockSize, PoolOptions};
///
/// // Four blocks; block 0 is the null block.
/// let mut pool = BlockPool::new(4, BlockSize::new(16).unwrap(), PoolOptions::CACHING);
/// let blocks = pool.allocate(2)?;
/// pool.touch(&blocks[..1])?; // A second sequence shares the first block.
/// pool.free(&blocks)?; // The first sequence ends.
/// assert_eq!(pool.ref_count(blocks[0]), 1);
/// assert!(pool.is_free(blocks[1]));
/// assert_eq!(pool.free(&blocks).unwrap_err().to_string(), "double free of b2");
/// # Ok::<(), kvblock::AllocError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: FreeQueue,
    cached: CacheMap,
    /// Tokens of each block, `[num_blocks]`, with [`PoolOptions::verify_tokens`]; otherwise empty.
    tokens: Vec<Box<[TokenId]>>,
    hash_block_size: BlockSize,
    options: PoolOptions,
    events: Vec<CacheEvent>,
}

impl BlockPool {
    /// Creates a pool of `num_blocks` blocks, one of which is the null block. O(`num_blocks`).
    ///
    /// # Panics
    /// When `num_blocks` is 0.
    #[must_use]
    pub fn new(num_blocks: u32, hash_block_size: BlockSize, options: PoolOptions) -> Self {
        assert!(num_blocks > 0, "a pool of {num_blocks} blocks has no null block");
        let mut free = FreeQueue::full(num_blocks);
        assert_eq!(free.pop_front(), Some(BlockId::NULL));
        let blocks = vec![EMPTY; num_blocks as usize];
        let tokens = vec![Box::default(); if options.verify_tokens { num_blocks as usize } else { 0 }];
        let cached = CacheMap::default();
        Self { blocks, free, cached, tokens, hash_block_size, options, events: Vec::new() }
    }

    /// Allocates `count` blocks, least recently freed first, and evicts what they cached; all or nothing.
    /// O(`count`).
    ///
    /// # Errors
    /// [`AllocError::OutOfBlocks`] when fewer are free, which leaves the pool unchanged.
    pub fn allocate(&mut self, count: u32) -> Result<Vec<BlockId>, AllocError> {
        if count > self.free.len() {
            return Err(AllocError::OutOfBlocks { needed: count, free: self.free.len() });
        }
        let mut taken = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let id = self.free.pop_front().expect("the queue holds at least `count` blocks");
            self.evict(id);
            let block = &mut self.blocks[id.index()];
            assert_eq!(block.ref_count, 0, "{id:?} was free with {} references", block.ref_count);
            block.ref_count = 1;
            taken.push(id);
        }
        Ok(taken)
    }

    /// Adds a reference to each block; a free one leaves the queue and keeps its content. Null blocks are
    /// skipped.
    ///
    /// # Errors
    /// [`AllocError::UnknownBlock`], which leaves the pool unchanged.
    pub fn touch(&mut self, blocks: &[BlockId]) -> Result<(), AllocError> {
        self.check_known(blocks)?;
        for &id in blocks.iter().filter(|id| !id.is_null()) {
            let block = &mut self.blocks[id.index()];
            if block.ref_count == 0 {
                self.free.remove(id);
            }
            block.ref_count += 1;
        }
        Ok(())
    }

    /// Drops a reference to each block. Blocks without references left are queued in the given order: pass
    /// the blocks of a sequence in reverse, so that its tail is evicted before the prefix that others may
    /// share. Null blocks are skipped.
    ///
    /// # Errors
    /// [`AllocError::UnknownBlock`], or [`AllocError::DoubleFree`] for a block listed more often than it is
    /// referenced. Both leave the pool unchanged.
    pub fn free(&mut self, blocks: &[BlockId]) -> Result<(), AllocError> {
        for (done, &id) in blocks.iter().enumerate() {
            if let Err(error) = self.release(id) {
                for id in blocks[..done].iter().filter(|id| !id.is_null()) {
                    self.blocks[id.index()].ref_count += 1;
                }
                return Err(error);
            }
        }
        for &id in blocks.iter().filter(|id| !id.is_null()) {
            let block = &self.blocks[id.index()];
            // A block named twice was queued at its first place.
            if block.ref_count > 0 || self.free.contains(id) {
                continue;
            }
            if self.options.reuse_unhashed_first && block.key.is_none() {
                self.free.prepend(id);
            } else {
                self.free.append(id);
            }
        }
        Ok(())
    }

    fn release(&mut self, id: BlockId) -> Result<(), AllocError> {
        let num_blocks = self.num_blocks();
        let block = self.blocks.get_mut(id.index());
        let block = block.ok_or(AllocError::UnknownBlock { block: id, num_blocks })?;
        if !id.is_null() {
            block.ref_count = block.ref_count.checked_sub(1).ok_or(AllocError::DoubleFree { block: id })?;
        }
        Ok(())
    }

    pub(crate) fn check_known(&self, blocks: &[BlockId]) -> Result<(), AllocError> {
        let unknown = blocks.iter().find(|id| id.index() >= self.blocks.len());
        let num_blocks = self.num_blocks();
        unknown.map_or(Ok(()), |&block| Err(AllocError::UnknownBlock { block, num_blocks }))
    }

    /// Enters the full blocks at `positions` of a sequence's table into the prefix cache. Null blocks and blocks
    /// that are already cached are skipped. O(`positions.len()`).
    ///
    /// # Panics
    /// When `content` has no hash or no tokens for one of the blocks.
    pub fn cache_full_blocks(
        &mut self,
        content: SeqContent<'_>,
        table: &[BlockId],
        positions: Range<usize>,
        block_size: BlockSize,
        group: GroupId,
    ) {
        if !self.options.caching {
            return;
        }
        let size = block_size.get() as usize;
        let hash_of = |index: usize| block_hash(content.hashes, index, block_size, self.hash_block_size);
        let mut stored = Vec::new();
        for (index, &id) in table.iter().enumerate().take(positions.end).skip(positions.start) {
            let hash = hash_of(index);
            let block = &mut self.blocks[id.index()];
            if id.is_null() || block.key.is_some() {
                continue;
            }
            let key = CacheKey { hash, group };
            block.key = Some(key);
            if self.options.verify_tokens {
                self.tokens[id.index()] = content.tokens[index * size..(index + 1) * size].into();
            }
            if self.cached.insert(id, &mut self.blocks) {
                stored.push(index);
            }
        }
        if self.options.events {
            // One event for each run without gaps: `parent` must be the block just before.
            for run in stored.chunk_by(|a, b| a + 1 == *b) {
                let positions = run[0]..run[run.len() - 1] + 1;
                let blocks = StoredBlocks::new(content, positions, block_size, self.hash_block_size, group);
                self.events.push(CacheEvent::Stored(blocks));
            }
        }
    }

    /// Removes blocks from the prefix cache, for example after a failed load. References stay.
    ///
    /// # Errors
    /// [`AllocError::UnknownBlock`], which leaves the pool unchanged.
    pub fn evict_blocks(&mut self, blocks: &[BlockId]) -> Result<(), AllocError> {
        self.check_known(blocks)?;
        blocks.iter().for_each(|&id| self.evict(id));
        Ok(())
    }

    fn evict(&mut self, id: BlockId) {
        let removed = self.cached.remove(id, &mut self.blocks);
        if self.options.verify_tokens {
            self.tokens[id.index()] = Box::default();
        }
        if self.options.events {
            self.events.extend(removed.map(|key| CacheEvent::removed(key, Medium::Gpu)));
        }
    }

    /// Empties the prefix cache. Only an unused pool can be reset: returns false and changes nothing while a
    /// block other than the null block is in use.
    pub fn reset(&mut self) -> bool {
        if self.num_used() > 0 {
            return false;
        }
        self.cached.clear();
        self.blocks.fill(EMPTY);
        self.tokens.fill(Box::default());
        if self.options.events {
            self.events.push(CacheEvent::AllCleared);
        }
        true
    }

    /// The events since the last call, oldest first.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        core::mem::take(&mut self.events)
    }

    /// Number of references to a block; always 0 for the null block.
    ///
    /// # Panics
    /// Like all methods about one block, when the pool has no such block.
    #[must_use]
    pub fn ref_count(&self, id: BlockId) -> u32 {
        self.blocks[id.index()].ref_count
    }

    /// The content hash under which lookups find a block.
    #[must_use]
    pub fn hash(&self, id: BlockId) -> Option<BlockHash> {
        self.blocks[id.index()].key.map(|key| key.hash)
    }

    /// Whether a block is in the free queue.
    #[must_use]
    pub fn is_free(&self, id: BlockId) -> bool {
        self.free.contains(id)
    }

    /// The free blocks, in the order in which they will be allocated.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter()
    }

    /// Number of blocks that can be taken.
    #[must_use]
    pub const fn num_free(&self) -> u32 {
        self.free.len()
    }

    /// Number of blocks that can ever be taken: all but the null block.
    #[must_use]
    pub fn num_usable(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("block ids are u32") - 1
    }

    /// All blocks, the null block included.
    fn num_blocks(&self) -> u32 {
        self.num_usable() + 1
    }

    /// Number of blocks in use, without the null block.
    #[must_use]
    pub fn num_used(&self) -> u32 {
        self.num_usable() - self.num_free()
    }

    /// Share of the usable blocks in use, in `[0, 1]`; 0 for a pool of one block.
    #[must_use]
    pub fn usage(&self) -> f64 {
        if self.num_usable() == 0 { 0.0 } else { f64::from(self.num_used()) / f64::from(self.num_usable()) }
    }

    /// Number of distinct contents that a lookup can find.
    #[must_use]
    pub fn num_cached(&self) -> usize {
        self.cached.num_keys()
    }

    /// Host memory of the pool, in bytes. O(`num_blocks`) with [`PoolOptions::verify_tokens`], else O(1).
    #[must_use]
    pub fn memory(&self) -> PoolMemory {
        let per_block = size_of::<Block>() + FreeQueue::BYTES_PER_BLOCK;
        let token_bytes: usize = self.tokens.iter().map(|tokens| size_of_val(&**tokens)).sum();
        PoolMemory {
            block_bytes: self.blocks.len() * per_block,
            map_bytes: self.cached.bytes(),
            token_bytes: token_bytes + size_of_val(&*self.tokens),
        }
    }

    /// Number of tokens that one hash covers.
    #[must_use]
    pub const fn hash_block_size(&self) -> BlockSize {
        self.hash_block_size
    }

    /// The options the pool was made with.
    #[must_use]
    pub const fn options(&self) -> PoolOptions {
        self.options
    }
}
