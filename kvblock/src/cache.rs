//! The cache of all groups: lookup, the three stages of `allocate_slots`, free, fork.

mod check;
mod request;

pub use request::SlotRequest;

use crate::config::KvCacheConfig;
use crate::content::SeqContent;
use crate::coordinator::{Coordinator, PrefixHit};
use crate::error::{AllocError, ConfigError};
use crate::event::CacheEvent;
use crate::hash::{BlockHash, BlockHasher};
use crate::id::{BlockId, GroupId, SeqId, TokenId};
use crate::manager::{Demand, GroupManager};
use crate::pool::{BlockPool, PoolOptions};
use crate::spec::LengthLimits;
use crate::table::BlockTable;

/// Copy of a block in all layers of its group, to be executed before any write of the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockCopy {
    /// The group whose layers are copied.
    pub group: GroupId,
    /// Block to read.
    pub source: BlockId,
    /// Block to write.
    pub destination: BlockId,
}

/// Changes made by [`KvCache::allocate_slots`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Allocation {
    /// Blocks appended to the tables, one list per group.
    pub new_blocks: Vec<Vec<BlockId>>,
    /// Copies on write, after a [`fork`](KvCache::fork). A source may be free already: run them before any
    /// write of the step.
    pub copies: Vec<BlockCopy>,
}

/// Block tables of all sequences in all groups, over one pool (vLLM v1 `KVCacheManager`).
#[derive(Clone, Debug)]
pub struct KvCache {
    pool: BlockPool,
    coordinator: Coordinator,
    groups: Vec<GroupManager>,
    hasher: BlockHasher,
    limits: LengthLimits,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`ConfigError`] names what is wrong in `config`.
    pub fn new(config: &KvCacheConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let hash_block_size = config.hash_block_size()?;
        let options = PoolOptions {
            caching: config.caching,
            events: config.events,
            verify_tokens: config.verify_tokens,
            reuse_unhashed_first: config.reuse_unhashed_first,
        };
        let manager = |(index, group): (u32, &crate::config::KvCacheGroup)| {
            GroupManager::new(&group.spec, GroupId::new(index), config.limits)
        };
        Ok(Self {
            pool: BlockPool::new(config.num_blocks, hash_block_size, options),
            coordinator: Coordinator::new(&config.groups)?,
            groups: (0..).zip(&config.groups).map(manager).collect(),
            hasher: BlockHasher::new(config.hash_algorithm, &config.hash_seed, hash_block_size),
            limits: config.limits,
        })
    }

    /// The hasher that must produce [`SeqContent::hashes`].
    #[must_use]
    pub const fn hasher(&self) -> BlockHasher {
        self.hasher
    }

    /// The longest cached prefix of a sequence. It never includes the last token, which must be computed
    /// because its logits are needed. Changes nothing: [`allocate_slots`](Self::allocate_slots) adopts the
    /// hit, or refuses it if a block of it has been evicted in the meantime.
    ///
    /// ```
    /// use kvblock::*;
    ///
    /// let spec = KvCacheSpec::new(AttentionKind::FULL, BlockSize::new(4).unwrap(), 8, 128, KvDtype::F16);
    /// let mut cache = KvCache::new(&KvCacheConfig::uniform(4, spec, 1, LengthLimits::new(64)))?;
    /// let hashes = |tokens: &[TokenId]| {
    ///     let mut chain = HashChain::new(cache.hasher(), ExtraKeys::default());
    ///     chain.extend(tokens);
    ///     chain
    /// };
    /// let (text, other) = ([1, 2, 3, 4, 5], [9; 12]);
    /// let (chain, other_chain) = (hashes(&text), hashes(&other));
    /// let (content, other) = (SeqContent::new(&text, chain.hashes()), SeqContent::new(&other, other_chain.hashes()));
    ///
    /// cache.allocate_slots(SlotRequest::new(SeqId::new(0), content, 0, 5))?;
    /// cache.free(SeqId::new(0));
    /// let hit = cache.lookup(content);
    /// assert_eq!(hit.num_tokens, 4);
    ///
    /// // Another sequence takes all blocks before the hit is adopted.
    /// cache.allocate_slots(SlotRequest::new(SeqId::new(1), other, 0, 12))?;
    /// let late = SlotRequest::new(SeqId::new(2), content, 0, 1).hit(&hit);
    /// assert!(matches!(cache.allocate_slots(late), Err(AllocError::StaleHit { .. })));
    /// assert_eq!(cache.lookup(content).num_tokens, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lookup(&self, content: SeqContent<'_>) -> PrefixHit {
        match count(content.tokens).checked_sub(1) {
            Some(max_length) if self.pool.options().caching => {
                self.coordinator.longest_hit(content, max_length, &self.pool)
            }
            _ => PrefixHit::default(),
        }
    }

    /// Provides the slots for one step of one sequence, in three stages: free the blocks that no query can
    /// reach any more; adopt the prefix hit; allocate new blocks and enter the full ones into the prefix
    /// cache.
    ///
    /// Blocks can be hit before the step has written them. A sequence that hits them in the same step must
    /// therefore be computed later in that step, or together with it, layer by layer.
    ///
    /// # Errors
    /// [`AllocError::OutOfBlocks`]: tables and reference counts are as before, except that blocks out of
    /// reach were freed. [`AllocError::NoTokens`] for a request of no token, [`AllocError::AlreadyAllocated`]
    /// for a hit of a sequence with a table, [`AllocError::GroupCount`], [`AllocError::HitLength`] and
    /// [`AllocError::UnknownBlock`] for a hit that is not from this cache, [`AllocError::StaleHit`] for one whose
    /// blocks hold other tokens by now, [`AllocError::MissingHashes`].
    ///
    /// # Complexity
    /// O(blocks of the hit + new blocks) for each group.
    pub fn allocate_slots(&mut self, request: SlotRequest<'_>) -> Result<Allocation, AllocError> {
        if request.num_new == 0 && request.num_external == 0 {
            return Err(AllocError::NoTokens);
        }
        let max_len = self.limits.max_model_len;
        let num_hit = request.hit.map_or(0, |hit| hit.num_tokens);
        let add = u32::saturating_add;
        let local_computed = add(request.num_computed, num_hit);
        let total_computed = add(local_computed, request.num_external).min(max_len);
        let num_slots = add(add(total_computed, request.num_new), request.num_lookahead).min(max_len);
        self.check_input(&request, total_computed)?;
        if request.full_sequence_must_fit {
            let num_tokens = count(request.content.tokens).max(num_slots);
            self.check_free(&request, num_tokens, total_computed, true)?;
        }

        for group in &mut self.groups {
            group.remove_skipped(request.seq, total_computed, &mut self.pool);
        }
        self.check_free(&request, num_slots, total_computed, false)?;

        let mut allocation = Allocation::default();
        for (index, group) in self.groups.iter_mut().enumerate() {
            group.adopt(
                request.seq,
                demand(&request, index, num_slots, total_computed, false),
                &mut self.pool,
            );
        }
        for (index, group) in self.groups.iter_mut().enumerate() {
            let demand = demand(&request, index, num_slots, total_computed, false);
            if let Some((source, destination)) = group.copy_on_write(request.seq, demand, &mut self.pool) {
                allocation.copies.push(BlockCopy { group: group.group(), source, destination });
            }
            allocation.new_blocks.push(group.allocate(request.seq, num_slots, &mut self.pool));
        }
        if !request.delay_cache {
            self.cache_confirmed(request.seq, request.content, add(total_computed, request.num_new));
        }
        Ok(allocation)
    }

    /// Extends the tables of a sequence to `num_tokens` tokens before they are computed. Frees, caches and copies no
    /// block. For engines that send a step before the previous one is complete.
    ///
    /// # Errors
    /// [`AllocError::OutOfBlocks`], after which all tables are as before, and [`AllocError::NotAllocated`].
    ///
    /// # Complexity
    /// O(new blocks) for each group.
    pub fn extend(&mut self, seq: SeqId, num_tokens: u32) -> Result<(), AllocError> {
        let num_tokens = num_tokens.min(self.limits.max_model_len);
        let missing = |group: &GroupManager| group.num_missing(seq, num_tokens);
        let needed: Option<u32> = self.groups.iter().map(missing).sum();
        self.check_num_free(needed.ok_or(AllocError::NotAllocated { seq })?)?;
        self.groups.iter_mut().for_each(|group| drop(group.allocate(seq, num_tokens, &mut self.pool)));
        Ok(())
    }

    /// Enters the full blocks of the first `num_tokens` tokens into the prefix cache, never beyond the
    /// confirmed tokens. Only needed after a [delayed](SlotRequest::delay_cache) allocation. Unknown
    /// sequences are ignored.
    ///
    /// # Errors
    /// [`AllocError::MissingHashes`].
    pub fn cache_blocks(
        &mut self,
        seq: SeqId,
        content: SeqContent<'_>,
        num_tokens: u32,
    ) -> Result<(), AllocError> {
        self.check_hashes(seq, content, num_tokens)?;
        self.cache_confirmed(seq, content, num_tokens);
        Ok(())
    }

    fn cache_confirmed(&mut self, seq: SeqId, content: SeqContent<'_>, num_tokens: u32) {
        if !self.pool.options().caching {
            return;
        }
        let confirmed = num_tokens.min(count(content.tokens));
        for group in &mut self.groups {
            group.cache_blocks(seq, content, confirmed, &mut self.pool);
        }
    }

    /// Removes the sequence's blocks from the prefix cache, starting with the one that holds token
    /// `num_computed`: for a step that was allocated but not run.
    pub fn uncache_from(&mut self, seq: SeqId, num_computed: u32) {
        for group in &mut self.groups {
            group.uncache_from(seq, num_computed, &mut self.pool);
        }
    }

    /// Frees the blocks that no query at position `num_computed` or later can reach. `allocate_slots` calls it; call it
    /// directly for a sequence whose blocks are saved or transferred.
    pub fn remove_skipped(&mut self, seq: SeqId, num_computed: u32) {
        for group in &mut self.groups {
            group.remove_skipped(seq, num_computed, &mut self.pool);
        }
    }

    /// Ends a sequence. Its cached blocks can still be hit until they are reused, the tail first. Unknown
    /// sequences are ignored.
    pub fn free(&mut self, seq: SeqId) {
        for group in &mut self.groups {
            group.free(seq, &mut self.pool);
        }
    }

    /// Starts `child` with the blocks that hold the first `num_tokens` tokens of `parent`, which may have computed
    /// more. Allocates nothing: whichever of the two first writes to a shared block gets a copy of it. `child` also
    /// gets a copy of a block that it writes to if lookups find the block by the tokens of `parent`.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`] for the parent, [`AllocError::AlreadyAllocated`] for the child,
    /// [`AllocError::NotHeld`] if the parent does not hold a block that the child reaches, because a window
    /// has passed it.
    pub fn fork(&mut self, parent: SeqId, child: SeqId, num_tokens: u32) -> Result<(), AllocError> {
        self.check_new(child)?;
        if self.groups.iter().any(|group| group.table(parent).is_none()) {
            return Err(AllocError::NotAllocated { seq: parent });
        }
        for group in &self.groups {
            if let Some(block) = group.first_unheld(parent, num_tokens) {
                return Err(AllocError::NotHeld { seq: parent, group: group.group(), block, num_tokens });
            }
        }
        for group in &mut self.groups {
            group.fork(parent, child, num_tokens, &mut self.pool);
        }
        Ok(())
    }

    /// Starts a sequence's tables with new blocks where `occupancy` (`[groups][blocks]`) is set and null
    /// blocks elsewhere, for content that comes back from another tier. Succeeds only if the free blocks also
    /// suffice to extend the tables to `num_tokens` tokens.
    ///
    /// # Errors
    /// [`AllocError::OutOfBlocks`], [`AllocError::AlreadyAllocated`] and [`AllocError::GroupCount`], which
    /// change nothing.
    pub fn restore(
        &mut self,
        seq: SeqId,
        occupancy: &[Vec<bool>],
        num_tokens: u32,
    ) -> Result<(), AllocError> {
        self.check_new(seq)?;
        self.check_group_count(occupancy.len())?;
        let in_group =
            |(group, held): (&GroupManager, &Vec<bool>)| group.num_blocks_to_restore(held, num_tokens);
        self.check_num_free(self.groups.iter().zip(occupancy).map(in_group).sum())?;
        for (group, held) in self.groups.iter_mut().zip(occupancy) {
            group.restore(seq, held, &mut self.pool);
        }
        Ok(())
    }

    /// The block table of a sequence in a group; `None` while nothing is allocated, or if the cache has no
    /// such group.
    #[must_use]
    pub fn table(&self, seq: SeqId, group: GroupId) -> Option<&BlockTable> {
        self.groups.get(group.index())?.table(seq)
    }

    /// All tables of a group, in no particular order.
    pub fn tables(&self, group: GroupId) -> impl Iterator<Item = (SeqId, &BlockTable)> {
        self.groups.get(group.index()).into_iter().flat_map(GroupManager::seqs)
    }

    /// Number of groups.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.groups.len()
    }

    /// Removes blocks from the prefix cache, for example after a failed load.
    ///
    /// # Errors
    /// [`AllocError::UnknownBlock`], which changes nothing.
    pub fn evict_blocks(&mut self, blocks: &[BlockId]) -> Result<(), AllocError> {
        self.pool.evict_blocks(blocks)
    }

    /// Removes contents from the prefix cache in every group, whoever holds their blocks: for contents that turned
    /// out to be wrong.
    pub fn evict_contents(&mut self, hashes: &[BlockHash]) {
        for group in self.groups.iter().map(GroupManager::group) {
            for hash in hashes {
                while let Some(blocks) = self.pool.cached(*hash, &[group]) {
                    self.pool.evict_blocks(&blocks).expect("the pool found them");
                }
            }
        }
    }

    /// Empties the prefix cache. Returns false and changes nothing while a sequence holds blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// The cache events since the last call, oldest first.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.pool.take_events()
    }

    /// Read access to the pool.
    #[must_use]
    pub const fn pool(&self) -> &BlockPool {
        &self.pool
    }
}

fn demand<'a>(
    request: &SlotRequest<'a>,
    group: usize,
    num_tokens: u32,
    total_computed: u32,
    capped: bool,
) -> Demand<'a> {
    let hits = request.hit.and_then(|hit| hit.blocks.get(group)).map_or(&[][..], Vec::as_slice);
    Demand { num_tokens, total_computed, hits, capped }
}

/// A token count as u32: positions are u32 everywhere.
fn count(tokens: &[TokenId]) -> u32 {
    u32::try_from(tokens.len()).expect("a sequence has at most u32::MAX tokens")
}
