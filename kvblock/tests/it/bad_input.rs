//! Wrong calls: an error that names the object and the limit, and no change.

use kvblock::{
    AllocError, AttentionKind, BlockHash, BlockId, BlockPool, BlockSize, CapacityError, ConfigError,
    ExtraKeys, GroupId, HashChain, KvCache, KvCacheConfig, KvCacheGroup, KvCacheSpec, KvDtype, LengthLimits,
    PoolOptions, PrefixHit, SeqContent, SeqId, SlotRequest, TokenId,
};

const A: SeqId = SeqId::new(7);
const B: SeqId = SeqId::new(8);
const SIZE: BlockSize = BlockSize::new(4).unwrap();
const LIMITS: LengthLimits = LengthLimits::new(64);

fn spec(kind: AttentionKind) -> KvCacheSpec {
    KvCacheSpec::new(kind, SIZE, 1, 4, KvDtype::F16)
}

fn pool() -> BlockPool {
    let options = PoolOptions::CACHING.events(true);
    BlockPool::new(6, SIZE, options)
}

/// Runs `call` on a copy of the pool and checks its error, its text, and that nothing changed.
#[track_caller]
fn refused(
    pool: &mut BlockPool,
    call: impl FnOnce(&mut BlockPool) -> Result<(), AllocError>,
    expected: AllocError,
    text: &str,
) {
    let before = format!("{pool:?}");
    assert_eq!(call(pool), Err(expected));
    assert_eq!(expected.to_string(), text);
    assert_eq!(format!("{pool:?}"), before);
}

#[test]
fn the_pool_refuses_what_it_does_not_hold() {
    let mut pool = pool();
    let taken = pool.allocate(2).unwrap();
    let [first, second] = taken[..] else { panic!("two blocks") };
    let (free, foreign) = (BlockId::new(5), BlockId::new(6));
    let twice = AllocError::DoubleFree { block: first };
    refused(&mut pool, |p| p.free(&[first, second, first]), twice, "double free of b1");
    let never = AllocError::DoubleFree { block: free };
    refused(&mut pool, |p| p.free(&[second, free]), never, "double free of b5");
    let unknown = AllocError::UnknownBlock { block: foreign, num_blocks: 6 };
    let text = "no block b6: the pool has 6";
    refused(&mut pool, |p| p.free(&[first, foreign]), unknown, text);
    refused(&mut pool, |p| p.touch(&[free, foreign]), unknown, text);
    refused(&mut pool, |p| p.evict_blocks(&[first, foreign]), unknown, text);
    let short = AllocError::OutOfBlocks { needed: 4, free: 3 };
    refused(&mut pool, |p| p.allocate(4).map(|_| ()), short, "4 blocks needed, 3 free");
    pool.free(&taken).unwrap();
    assert_eq!(pool.num_used(), 0);
}

#[test]
fn a_block_named_as_often_as_it_is_held_is_given_back_once() {
    let mut pool = pool();
    let taken = pool.allocate(1).unwrap();
    pool.touch(&taken).unwrap();
    pool.free(&[taken[0], taken[0]]).unwrap();
    assert_eq!(pool.free_blocks().filter(|id| *id == taken[0]).count(), 1);
}

struct Text {
    tokens: Vec<TokenId>,
    chain: HashChain,
}

impl Text {
    fn new(cache: &KvCache, len: u32) -> Self {
        let mut chain = HashChain::new(cache.hasher(), ExtraKeys::default());
        let tokens: Vec<TokenId> = (0..len).collect();
        chain.extend(&tokens);
        Self { tokens, chain }
    }

    fn content(&self) -> SeqContent<'_> {
        SeqContent::new(&self.tokens, self.chain.hashes())
    }
}

#[test]
fn the_cache_refuses_what_does_not_belong_to_it() {
    let mut cache = KvCache::new(&KvCacheConfig::uniform(10, spec(AttentionKind::FULL), 1, LIMITS)).unwrap();
    let text = Text::new(&cache, 12);
    let content = text.content();
    cache.allocate_slots(SlotRequest::new(A, content, 0, 9)).unwrap();
    let before = format!("{cache:?}");
    let mut refused = |call: &dyn Fn(&mut KvCache) -> Result<(), AllocError>, expected, text: &str| {
        assert_eq!(call(&mut cache), Err(expected));
        assert_eq!(expected.to_string(), text);
        assert_eq!(format!("{cache:?}"), before);
    };

    let known = AllocError::AlreadyAllocated { seq: A };
    let text = "sequence q7 has a block table already";
    refused(&|c| c.fork(A, A, 4), known, text);
    refused(&|c| c.restore(A, &[vec![true]], 4), known, text);
    let hit = |blocks: Vec<Vec<BlockId>>| PrefixHit { num_tokens: 4, blocks };
    let slots = |c: &mut KvCache, seq, hit: PrefixHit| {
        let request = SlotRequest::new(seq, content, 0, 1).hit(&hit);
        c.allocate_slots(request).map(|_| ())
    };
    refused(&|c| slots(c, A, hit(vec![vec![BlockId::new(1)]])), known, text);
    refused(
        &|c| c.fork(B, SeqId::new(9), 4),
        AllocError::NotAllocated { seq: B },
        "sequence q8 has no block table",
    );
    let groups = AllocError::GroupCount { found: 2, num_groups: 1 };
    let text = "lists for 2 groups, the cache has 1";
    refused(&|c| c.restore(B, &[vec![true], vec![true]], 4), groups, text);
    refused(&|c| slots(c, B, hit(vec![vec![BlockId::new(1)]; 2])), groups, text);
    let length = |found| AllocError::HitLength { group: GroupId::new(0), found, num_tokens: 4, expected: 1 };
    let text = "hit of 4 tokens lists 2 blocks in g0, 1 expected";
    refused(&|c| slots(c, B, hit(vec![vec![BlockId::new(1); 2]])), length(2), text);
    let text = "hit of 4 tokens lists 0 blocks in g0, 1 expected";
    refused(&|c| slots(c, B, hit(vec![vec![]])), length(0), text);
    let foreign = AllocError::UnknownBlock { block: BlockId::new(10), num_blocks: 10 };
    refused(&|c| slots(c, B, hit(vec![vec![BlockId::new(10)]])), foreign, "no block b10: the pool has 10");
    refused(&|c| c.evict_blocks(&[BlockId::new(10)]), foreign, "no block b10: the pool has 10");

    let cut = SeqContent::new(content.tokens, &content.hashes[..2]);
    let missing = AllocError::MissingHashes { seq: A, hashes: 2, num_tokens: 12, needed: 3 };
    let text = "2 block hashes for 12 tokens of sequence q7, 3 needed";
    let more = SlotRequest::new(A, cut, 9, 3);
    refused(&|c| c.allocate_slots(more).map(|_| ()), missing, text);
    refused(&|c| c.cache_blocks(A, cut, 12), missing, text);
    let huge = SlotRequest::new(B, content, u32::MAX, u32::MAX);
    let out = AllocError::OutOfBlocks { needed: 16, free: 6 };
    refused(&|c| c.allocate_slots(huge).map(|_| ()), out, "16 blocks needed, 6 free");

    cache.free(B);
    assert_eq!(format!("{cache:?}"), before, "an unknown sequence has nothing to free");
    assert!(cache.table(B, GroupId::new(0)).is_none());
    assert!(cache.table(A, GroupId::new(1)).is_none());
    assert_eq!(cache.tables(GroupId::new(1)).count(), 0);
}

#[test]
fn configurations_that_hold_nothing_are_refused() {
    assert_eq!(BlockSize::new(0), None);
    let full = spec(AttentionKind::FULL);
    let config = |num_blocks, spec| KvCacheConfig::uniform(num_blocks, spec, 1, LIMITS);
    let refused = |config: KvCacheConfig, text: &str| {
        assert_eq!(KvCache::new(&config).unwrap_err().to_string(), text);
    };
    refused(config(1, full), "1 blocks, at least 2 needed");
    refused(KvCacheConfig::new(9, Vec::new(), LIMITS), "no cache group");
    let none = LIMITS.max_model_len(0);
    refused(KvCacheConfig::uniform(9, full, 1, none), "the maximum model length is 0 tokens");
    refused(config(1 << 30, full), "1073741824 blocks of 4 tokens: more slots than a u32 can index");
    for kind in [AttentionKind::SlidingWindow { window: 0 }, AttentionKind::ChunkedLocal { chunk: 0 }] {
        refused(config(9, spec(kind)), "group 0: a window or chunk of 0 tokens");
    }
    let latent = |ratio| KvCacheSpec::latent(AttentionKind::FULL, SIZE, 8, KvDtype::F16, ratio);
    refused(config(9, latent(3)), "group 0: block size 4 is not a multiple of the compress ratio 3");
    refused(config(9, latent(0)), "group 0: block size 4 is not a multiple of the compress ratio 0");
    let chunked = spec(AttentionKind::ChunkedLocal { chunk: 4 }).block_size(BlockSize::new(2).unwrap());
    let mut mixed = config(9, full);
    mixed.groups.push(KvCacheGroup::new(chunked, vec![1]));
    let error = KvCache::new(&mixed).unwrap_err();
    assert_eq!(error, ConfigError::ChunkedAlignment { group: 1, block_size: 2, alignment: 4 });
}

/// No hit is long enough to be a multiple of both block sizes, so there is none.
#[test]
fn block_sizes_without_a_common_multiple_of_32_bits_never_hit() {
    let group = |tokens| {
        let spec = spec(AttentionKind::FULL).block_size(BlockSize::new(tokens).unwrap());
        KvCacheGroup::new(spec, vec![0])
    };
    let groups = vec![group(3_u32.pow(8)), group(1 << 20)];
    let mut cache = KvCache::new(&KvCacheConfig::new(20, groups, LIMITS)).unwrap();
    let text = Text::new(&cache, 12);
    cache.allocate_slots(SlotRequest::new(A, text.content(), 0, 12)).unwrap();
    assert_eq!(cache.lookup(text.content()).num_tokens, 0);
}

#[test]
fn capacities_do_not_overflow() {
    let huge = KvCacheSpec::new(
        AttentionKind::FULL,
        BlockSize::new(1 << 20).unwrap(),
        1 << 10,
        1 << 10,
        KvDtype::F32,
    );
    let options = kvblock::LayoutOptions::HYBRID;
    let layout = kvblock::CacheLayout::plan(&[huge; 4], options).unwrap();
    let limits = LengthLimits::new(u32::MAX);
    assert_eq!(layout.num_blocks(u64::MAX), u32::MAX / (1 << 20));
    let needed_bytes = layout.bytes_per_seq(limits);
    assert_eq!(needed_bytes, 4097 * layout.bytes_per_block());
    let error = layout.check_memory(1 << 50, limits).unwrap_err();
    assert!(matches!(error, CapacityError::TooLong { max_model_len: u32::MAX, .. }), "{error}");
    let window = spec(AttentionKind::SlidingWindow { window: u32::MAX });
    assert_eq!(window.max_blocks_per_seq(limits), (1 << 30) + 1);
    let mut cache = KvCache::new(&KvCacheConfig::uniform(4, window, 1, limits)).unwrap();
    let content = SeqContent::new(&[1], &[]);
    let request = SlotRequest::new(A, content, u32::MAX, 9).full_sequence_must_fit(true);
    let error = cache.allocate_slots(request).unwrap_err();
    assert_eq!(error, AllocError::OutOfBlocks { needed: 1 << 30, free: 3 });
    assert_eq!(cache.pool().cached(BlockHash::from_bytes([0; 32]), &[GroupId::new(0)]), None);
}
