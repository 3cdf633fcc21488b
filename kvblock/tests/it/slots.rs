//! `allocate_slots`, stage by stage.

use kvblock::{
    AllocError, AttentionKind, BlockCopy, BlockId, BlockIdx, BlockSize, CacheEvent, ExtraKeys, GroupId,
    HashChain, KvCache, KvCacheConfig, KvCacheGroup, KvCacheSpec, KvDtype, LengthLimits, SeqContent, SeqId,
    SlotId, SlotRequest, TokenId, TokenIdx,
};

const A: SeqId = SeqId::new(0);
const B: SeqId = SeqId::new(1);
const G0: GroupId = GroupId::new(0);

struct Text {
    tokens: Vec<TokenId>,
    chain: HashChain,
}

impl Text {
    fn new(cache: &KvCache, tokens: impl IntoIterator<Item = TokenId>) -> Self {
        let tokens: Vec<TokenId> = tokens.into_iter().collect();
        let mut chain = HashChain::new(cache.hasher(), ExtraKeys::default());
        chain.extend(&tokens);
        Self { tokens, chain }
    }

    fn content(&self) -> SeqContent<'_> {
        SeqContent::new(&self.tokens, self.chain.hashes())
    }
}

fn config(num_blocks: u32, kinds: &[AttentionKind]) -> KvCacheConfig {
    let spec = |kind| KvCacheSpec::new(kind, BlockSize::new(4).unwrap(), 1, 4, KvDtype::F16);
    let limits = LengthLimits::new(64).max_batched_tokens(8);
    let group = |&kind| KvCacheGroup::new(spec(kind), vec![0]);
    let groups = kinds.iter().map(group).collect();
    KvCacheConfig::uniform(num_blocks, spec(kinds[0]), 1, limits).groups(groups)
}

fn cache(num_blocks: u32, kinds: &[AttentionKind]) -> KvCache {
    KvCache::new(&config(num_blocks, kinds)).unwrap()
}

fn blocks(cache: &KvCache, seq: SeqId) -> Vec<u32> {
    cache.table(seq, G0).unwrap().blocks().iter().map(|block| block.get()).collect()
}

#[test]
fn tables_grow_by_whole_blocks() {
    let mut cache = cache(10, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..9);
    let first = cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 5)).unwrap();
    assert_eq!(first.new_blocks, [[BlockId::new(1), BlockId::new(2)]]);
    let next = cache.allocate_slots(SlotRequest::new(A, text.content(), 5, 3)).unwrap();
    assert_eq!(next.new_blocks, [[]]);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 8, 1)).unwrap();
    assert_eq!(blocks(&cache, A), [1, 2, 3]);
    let table = cache.table(A, G0).unwrap();
    assert_eq!(table.physical(BlockIdx::new(2)), BlockId::new(3));
    assert_eq!(table.slot(TokenIdx::new(6)), SlotId::new(2 * 4 + 2));
    assert_eq!(cache.pool().num_used(), 3);
    assert_eq!(cache.allocate_slots(SlotRequest::new(A, text.content(), 9, 0)), Err(AllocError::NoTokens));
}

#[test]
fn a_failed_allocation_changes_nothing() {
    let mut cache = cache(4, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..16);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 8)).unwrap();
    cache.free(A);
    let hit = cache.lookup(text.content());
    assert_eq!(hit.num_tokens, 8);
    // Two hit blocks leave the free queue, and two more are needed, of three.
    let request = SlotRequest::new(B, text.content(), 0, 8).hit(&hit);
    let before: Vec<BlockId> = cache.pool().free_blocks().collect();
    assert_eq!(cache.allocate_slots(request), Err(AllocError::OutOfBlocks { needed: 4, free: 3 }));
    assert!(cache.pool().free_blocks().eq(before));
    assert!(cache.table(B, G0).is_none());
    assert_eq!(cache.lookup(text.content()), hit);
}

/// Without the refusal, B would read the blocks of A as the prefix of another text.
#[test]
fn a_hit_whose_blocks_were_taken_is_refused() {
    let mut cache = cache(4, &[AttentionKind::FULL]);
    let (old, new) = (Text::new(&cache, 0..9), Text::new(&cache, 50..62));
    cache.allocate_slots(SlotRequest::new(A, old.content(), 0, 8)).unwrap();
    cache.free(A);
    let hit = cache.lookup(old.content());
    assert_eq!((hit.num_tokens, &hit.blocks[0][..]), (8, &[BlockId::new(1), BlockId::new(2)][..]));
    cache.allocate_slots(SlotRequest::new(A, new.content(), 0, 12)).unwrap();

    let request = SlotRequest::new(B, old.content(), 0, 1).hit(&hit);
    let error = cache.allocate_slots(request).unwrap_err();
    let (index, block) = (BlockIdx::new(0), BlockId::new(1));
    assert_eq!(error, AllocError::StaleHit { group: G0, num_tokens: 8, index, block });
    let text = "stale hit of 8 tokens: block b1 does not hold block i0 of the sequence in g0";
    assert_eq!(error.to_string(), text);
    assert!(cache.table(B, G0).is_none());

    // Blocks that hold the tokens again are a hit again, whoever computed them.
    cache.free(A);
    cache.allocate_slots(SlotRequest::new(A, old.content(), 0, 9)).unwrap();
    let fresh = cache.lookup(old.content());
    let request = SlotRequest::new(B, old.content(), 0, 1).hit(&fresh);
    assert_eq!(cache.allocate_slots(request), Err(AllocError::OutOfBlocks { needed: 1, free: 0 }));
}

#[test]
fn the_tail_is_evicted_before_the_prefix() {
    let mut cache = cache(5, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..16);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 16)).unwrap();
    cache.free(A);
    let other = Text::new(&cache, 100..108);
    cache.allocate_slots(SlotRequest::new(B, other.content(), 0, 8)).unwrap();
    assert_eq!(blocks(&cache, B), [4, 3]);
    assert_eq!(cache.lookup(text.content()).num_tokens, 8);
}

#[test]
fn draft_tokens_get_slots_but_are_not_findable() {
    let mut cache = cache(10, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..7);
    let request = SlotRequest::new(A, text.content(), 0, 9).num_lookahead(2);
    cache.allocate_slots(request).unwrap();
    assert_eq!(blocks(&cache, A).len(), 3);
    assert_eq!(cache.pool().num_cached(), 1, "7 confirmed tokens fill one block");
}

/// A full block that was just cached, or that another sequence shares, stays as it is: nothing is written to it.
#[test]
fn an_extended_table_keeps_what_it_has() {
    let mut cache = cache(5, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..8);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 8)).unwrap();
    let before = blocks(&cache, A);
    cache.extend(A, 9).unwrap();
    cache.extend(A, 9).unwrap();
    let after = blocks(&cache, A);
    assert_eq!((&after[..2], after.len(), cache.pool().num_cached()), (&before[..], 3, 2));
    cache.extend(A, 3).unwrap();
    assert_eq!(blocks(&cache, A), after);
    // One block of four is left.
    let refused = cache.extend(A, 17).unwrap_err();
    assert!(matches!(refused, AllocError::OutOfBlocks { needed: 2, free: 1 }), "{refused:?}");
    assert_eq!(blocks(&cache, A), after);
    assert!(matches!(cache.extend(B, 1), Err(AllocError::NotAllocated { seq: B })));
}

#[test]
fn external_tokens_are_findable_once_they_arrived() {
    let mut cache = cache(10, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..12);
    let request = SlotRequest::new(A, text.content(), 0, 0).num_external(8).delay_cache(true);
    cache.allocate_slots(request).unwrap();
    assert_eq!(blocks(&cache, A).len(), 2);
    assert_eq!(cache.lookup(text.content()).num_tokens, 0);
    cache.cache_blocks(A, text.content(), 8).unwrap();
    assert_eq!(cache.lookup(text.content()).num_tokens, 8);
}

#[test]
fn external_tokens_do_not_take_the_hit_blocks_of_another_group() {
    let window = AttentionKind::SlidingWindow { window: 64 };
    let mut cache = cache(9, &[AttentionKind::FULL, window]);
    let text = Text::new(&cache, 0..16);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 8)).unwrap();
    cache.free(A);
    let hit = cache.lookup(text.content());
    // Free: four blocks without content, then the four hit blocks. Eight are needed.
    let request = SlotRequest::new(B, text.content(), 0, 1).hit(&hit).num_external(7);
    cache.allocate_slots(request).unwrap();
    for group in [0, 1] {
        let table = cache.table(B, GroupId::new(group)).unwrap();
        assert_eq!(table.blocks()[..2], hit.blocks[group as usize][..]);
        assert!(table.blocks().iter().all(|&block| cache.pool().ref_count(block) == 1));
    }
}

#[test]
fn a_window_gives_blocks_back_from_the_right_to_the_left() {
    let mut cache = cache(12, &[AttentionKind::SlidingWindow { window: 6 }]);
    let text = Text::new(&cache, 0..40);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 16)).unwrap();
    // Query 16 reaches back to token 11, in block 2.
    cache.allocate_slots(SlotRequest::new(A, text.content(), 16, 1)).unwrap();
    assert_eq!(blocks(&cache, A), [0, 0, 3, 4, 5]);
    let tail: Vec<u32> = cache.pool().free_blocks().map(BlockId::get).collect();
    assert_eq!(tail, [6, 7, 8, 9, 10, 11, 2, 1], "block 1 before block 0: the prefix lives longest");
    assert!(std::panic::catch_unwind(|| cache.table(A, G0).unwrap().slot(TokenIdx::new(3))).is_err());
}

#[test]
fn a_window_gives_blocks_back_even_when_the_allocation_fails() {
    let mut cache = cache(6, &[AttentionKind::SlidingWindow { window: 4 }]);
    let text = Text::new(&cache, 0..60);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 16)).unwrap();
    let failed = cache.allocate_slots(SlotRequest::new(A, text.content(), 16, 40));
    assert_eq!(failed, Err(AllocError::OutOfBlocks { needed: 10, free: 4 }));
    assert_eq!(blocks(&cache, A), [0, 0, 0, 4]);
}

#[test]
fn admission_counts_no_more_than_a_window_ever_holds() {
    // 40 tokens are 10 blocks; a window of 6 with steps of 8 never holds more than cdiv(5 + 8, 4) + 1 = 5.
    for (num_blocks, fits) in [(6, true), (5, false)] {
        let mut cache = cache(num_blocks, &[AttentionKind::SlidingWindow { window: 6 }]);
        let text = Text::new(&cache, 0..40);
        let request = SlotRequest::new(A, text.content(), 0, 8).full_sequence_must_fit(true);
        assert_eq!(cache.allocate_slots(request).is_ok(), fits);
        cache.free(A);
        let request = SlotRequest::new(A, text.content(), 0, 8);
        assert!(cache.allocate_slots(request).is_ok(), "an ordinary step needs two blocks");
    }
}

#[test]
fn a_fork_shares_blocks_until_it_writes() {
    let mut cache = cache(10, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..6);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 6)).unwrap();
    cache.fork(A, B, 6).unwrap();
    assert_eq!(blocks(&cache, B), [1, 2]);
    let (left, right) = (Text::new(&cache, 0..7), Text::new(&cache, (0..6).chain([9])));
    let copied = cache.allocate_slots(SlotRequest::new(B, right.content(), 6, 1)).unwrap();
    let expected = BlockCopy { group: G0, source: BlockId::new(2), destination: BlockId::new(3) };
    assert_eq!(copied.copies, [expected]);
    let kept = cache.allocate_slots(SlotRequest::new(A, left.content(), 6, 1)).unwrap();
    assert_eq!(kept.copies, [], "the last one to share writes in place");
    assert_eq!((blocks(&cache, A), blocks(&cache, B)), (vec![1, 2], vec![1, 3]));
}

#[test]
fn a_fork_on_a_block_boundary_copies_nothing() {
    let mut cache = cache(10, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..8);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 8)).unwrap();
    cache.fork(A, B, 8).unwrap();
    let longer = Text::new(&cache, 0..9);
    let step = cache.allocate_slots(SlotRequest::new(B, longer.content(), 8, 1)).unwrap();
    assert_eq!((step.copies.len(), blocks(&cache, B)), (0, vec![1, 2, 3]));
}

#[test]
fn a_fork_may_start_before_the_end_of_its_parent() {
    let mut cache = cache(12, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..12);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 12)).unwrap();
    cache.fork(A, B, 6).unwrap();
    let other = Text::new(&cache, (0..6).chain(50..56));
    let step = cache.allocate_slots(SlotRequest::new(B, other.content(), 6, 6)).unwrap();
    assert_eq!(step.copies.len(), 1, "the parent's second block is full, and not the child's");
    assert_eq!(cache.lookup(Text::new(&cache, (0..6).chain(50..57)).content()).num_tokens, 12);
    assert_eq!(cache.lookup(Text::new(&cache, 0..13).content()).num_tokens, 12);
    let c = SeqId::new(2);
    cache.fork(A, c, 4).unwrap();
    let third = Text::new(&cache, (0..4).chain(70..79));
    cache.allocate_slots(SlotRequest::new(c, third.content(), 4, 9)).unwrap();
    assert_eq!(cache.lookup(third.content()).num_tokens, 12);
}

#[test]
fn a_fork_that_outlives_its_parent_leaves_the_parents_blocks_to_lookups() {
    let mut cache = cache(12, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..12);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 12)).unwrap();
    cache.fork(A, B, 6).unwrap();
    cache.free(A);
    // Block 2 is the child's alone, and lookups find it by the parent's tokens 4 to 7.
    let other = Text::new(&cache, (0..6).chain(50..56));
    let step = cache.allocate_slots(SlotRequest::new(B, other.content(), 6, 6)).unwrap();
    let expected = BlockCopy { group: G0, source: BlockId::new(2), destination: BlockId::new(4) };
    assert_eq!((step.copies, blocks(&cache, B)), (vec![expected], vec![1, 4, 5]));
    let hit = cache.lookup(Text::new(&cache, 0..13).content());
    assert_eq!(hit.blocks[0], [1, 2, 3].map(BlockId::new));
}

#[test]
fn a_fork_behind_a_window_is_refused() {
    let mut cache = cache(12, &[AttentionKind::FULL, AttentionKind::SlidingWindow { window: 4 }]);
    let text = Text::new(&cache, 0..20);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 12)).unwrap();
    cache.allocate_slots(SlotRequest::new(A, text.content(), 12, 4)).unwrap();
    let refused = cache.fork(A, B, 10).unwrap_err();
    let text = "sequence q0 does not hold block i1 of g1, which a fork after 10 tokens reads";
    assert_eq!(refused.to_string(), text);
    assert!(cache.table(B, G0).is_none());
    cache.fork(A, B, 12).unwrap();
    let beyond = cache.fork(A, SeqId::new(2), 40).unwrap_err();
    assert!(matches!(beyond, AllocError::NotHeld { block, .. } if block == BlockIdx::new(4)), "{beyond}");
}

#[test]
fn a_step_that_did_not_run_leaves_nothing_findable() {
    let mut cache = cache(10, &[AttentionKind::FULL]);
    let text = Text::new(&cache, 0..12);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 5)).unwrap();
    cache.allocate_slots(SlotRequest::new(A, text.content(), 5, 7)).unwrap();
    cache.uncache_from(A, 5);
    assert_eq!(cache.lookup(text.content()).num_tokens, 4);
}

/// Contents that turned out to be wrong: also those that a window has passed, and those that two blocks have.
#[test]
fn evicted_contents_are_found_nowhere() {
    let mut cache = cache(16, &[AttentionKind::FULL, AttentionKind::SlidingWindow { window: 4 }]);
    let text = Text::new(&cache, 0..16);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 8)).unwrap();
    cache.allocate_slots(SlotRequest::new(A, text.content(), 8, 8)).unwrap();
    cache.allocate_slots(SlotRequest::new(B, text.content(), 0, 8)).unwrap();
    assert!(cache.table(A, GroupId::new(1)).unwrap().blocks()[0].is_null());
    cache.uncache_from(A, 0);
    cache.evict_contents(text.chain.hashes());
    cache.free(A);
    cache.free(B);
    let groups = [G0, GroupId::new(1)];
    for (hash, group) in text.chain.hashes().iter().flat_map(|hash| groups.map(|group| (*hash, group))) {
        assert_eq!(cache.pool().cached(hash, &[group]), None);
    }
    assert_eq!((cache.lookup(text.content()).num_tokens, cache.pool().num_used()), (0, 0));
}

#[test]
fn events_tell_what_a_lookup_can_find() {
    let mut cache = KvCache::new(&config(4, &[AttentionKind::FULL]).events(true)).unwrap();
    let text = Text::new(&cache, 0..12);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 4)).unwrap();
    cache.allocate_slots(SlotRequest::new(A, text.content(), 4, 8)).unwrap();
    let events = cache.take_events();
    let [h0, h1, h2] = *text.chain.hashes() else { panic!("three blocks") };
    let stored = |event: &CacheEvent| match event {
        CacheEvent::Stored(blocks) => (blocks.hashes.clone(), blocks.parent, blocks.tokens.len()),
        other => panic!("{other:?}"),
    };
    let stored: Vec<_> = events.iter().map(stored).collect();
    assert_eq!(stored, [(vec![h0], None, 4), (vec![h1, h2], Some(h0), 8)]);
    cache.free(A);
    let other = Text::new(&cache, 50..54);
    cache.allocate_slots(SlotRequest::new(B, other.content(), 0, 1)).unwrap();
    let key = kvblock::CacheKey { hash: h2, group: G0 };
    assert_eq!(cache.take_events(), [CacheEvent::removed(key, kvblock::Medium::Gpu)]);
    assert!(!cache.reset_prefix_cache(), "a sequence holds a block");
    cache.free(B);
    assert!(cache.reset_prefix_cache());
    assert_eq!(cache.take_events(), [CacheEvent::AllCleared]);
}
