//! The pool against a model that does everything by searching lists.

use std::collections::HashSet;

use kvblock::{
    AllocError, BlockHash, BlockId, BlockPool, BlockSize, CacheEvent, CacheKey, GroupId, Medium, PoolOptions,
    SeqContent,
};
use proptest::prelude::*;
use proptest::sample::Index;

const SIZE: BlockSize = BlockSize::new(1).unwrap();

#[derive(Clone, Debug)]
enum Op {
    Allocate(u32),
    Touch(Index),
    Free(Index),
    Cache { block: Index, content: u8, group: u32 },
    Evict(Index),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0_u32..5).prop_map(Op::Allocate),
        2 => any::<Index>().prop_map(Op::Touch),
        4 => any::<Index>().prop_map(Op::Free),
        3 => (any::<Index>(), 0_u8..4, 0_u32..2)
            .prop_map(|(block, content, group)| Op::Cache { block, content, group }),
        1 => any::<Index>().prop_map(Op::Evict),
        1 => Just(Op::Reset),
    ]
}

/// Everything in plain lists; `free` is in eviction order, `cached` in order of insertion.
struct Model {
    refs: Vec<u32>,
    free: Vec<u32>,
    cached: Vec<(CacheKey, u32)>,
    unhashed_first: bool,
    /// Contents that the events say can be found.
    followed: HashSet<CacheKey>,
}

fn removed(key: CacheKey) -> CacheEvent {
    CacheEvent::removed(key, Medium::Gpu)
}

impl Model {
    /// Takes the events and does what they say. Contents that are stored again have another block.
    fn follow(&mut self, pool: &mut BlockPool) -> Vec<CacheEvent> {
        let events = pool.take_events();
        for event in &events {
            match event {
                CacheEvent::Stored(blocks) => {
                    let key = |hash: &BlockHash| CacheKey { hash: *hash, group: blocks.group };
                    assert_eq!((blocks.medium, blocks.tokens.len()), (Medium::Gpu, blocks.hashes.len()));
                    assert!(blocks.hashes.iter().map(key).all(|key| self.followed.insert(key)));
                }
                CacheEvent::Removed { key, .. } => assert!(self.followed.remove(key)),
                CacheEvent::AllCleared => self.followed.clear(),
                other => panic!("{other:?}"),
            }
        }
        events
    }

    fn evict(&mut self, block: u32) -> Option<CacheKey> {
        let place = self.cached.iter().position(|&(_, b)| b == block)?;
        let (key, _) = self.cached.remove(place);
        self.cached.iter().all(|&(other, _)| other != key).then_some(key)
    }

    fn release(&mut self, block: u32) {
        self.refs[block as usize] -= 1;
        if self.refs[block as usize] > 0 {
            return;
        }
        let hashed = self.cached.iter().any(|&(_, b)| b == block);
        if self.unhashed_first && !hashed { self.free.insert(0, block) } else { self.free.push(block) }
    }

    fn with_refs(&self) -> Vec<u32> {
        (1..).zip(&self.refs[1..]).filter(|(_, refs)| **refs > 0).map(|(block, _)| block).collect()
    }
}

fn hash(content: u8) -> BlockHash {
    BlockHash::from_bytes([content; 32])
}

fn pick(from: &[u32], index: Index) -> Option<u32> {
    (!from.is_empty()).then(|| from[index.index(from.len())])
}

fn apply(pool: &mut BlockPool, model: &mut Model, op: Op) {
    match op {
        Op::Allocate(count) => {
            let free = u32::try_from(model.free.len()).unwrap();
            let taken = pool.allocate(count);
            if count > free {
                assert_eq!(taken, Err(AllocError::OutOfBlocks { needed: count, free }));
                return;
            }
            let expected: Vec<u32> = model.free.drain(..count as usize).collect();
            assert_eq!(taken.unwrap(), expected.iter().map(|&b| BlockId::new(b)).collect::<Vec<_>>());
            let removed: Vec<_> = expected.iter().filter_map(|&b| model.evict(b)).map(removed).collect();
            assert_eq!(model.follow(pool), removed);
            expected.iter().for_each(|&b| model.refs[b as usize] = 1);
        }
        Op::Touch(index) => {
            let block = 1 + u32::try_from(index.index(model.refs.len() - 1)).unwrap();
            pool.touch(&[BlockId::NULL, BlockId::new(block)]).unwrap();
            model.refs[block as usize] += 1;
            model.free.retain(|&b| b != block);
        }
        Op::Free(index) => {
            let Some(block) = pick(&model.with_refs(), index) else { return };
            pool.free(&[BlockId::new(block), BlockId::NULL]).unwrap();
            model.release(block);
        }
        Op::Cache { block, content, group } => {
            let Some(block) = pick(&model.with_refs(), block) else { return };
            let (hashes, group) = ([hash(content)], GroupId::new(group));
            let tokens = [u32::from(content)];
            pool.cache_full_blocks(
                SeqContent::new(&tokens, &hashes),
                &[BlockId::new(block)],
                0..1,
                SIZE,
                group,
            );
            let stored = model.follow(pool).len();
            let (key, known) =
                (CacheKey { hash: hashes[0], group }, model.cached.iter().any(|&(_, b)| b == block));
            let is_new = !known && model.cached.iter().all(|&(other, _)| other != key);
            assert_eq!(stored, usize::from(is_new));
            if !known {
                model.cached.push((key, block));
            }
        }
        Op::Evict(index) => {
            let block = 1 + u32::try_from(index.index(model.refs.len() - 1)).unwrap();
            pool.evict_blocks(&[BlockId::new(block)]).unwrap();
            let removed: Vec<_> = model.evict(block).map(removed).into_iter().collect();
            assert_eq!(model.follow(pool), removed);
        }
        Op::Reset => {
            let unused = model.with_refs().is_empty();
            assert_eq!(pool.reset(), unused);
            if unused {
                model.cached.clear();
                assert_eq!(model.follow(pool), [CacheEvent::AllCleared]);
            }
        }
    }
}

fn check(pool: &BlockPool, model: &Model) {
    let cached: HashSet<CacheKey> = model.cached.iter().map(|(key, _)| *key).collect();
    assert_eq!(model.followed, cached, "what the events say, and what is cached");
    assert!(pool.free_blocks().map(BlockId::get).eq(model.free.iter().copied()), "eviction order");
    for (block, &refs) in (0..).zip(&model.refs) {
        assert_eq!(pool.ref_count(BlockId::new(block)), refs);
    }
    for content in 0..4 {
        let first = |group| {
            let key = CacheKey { hash: hash(content), group };
            model.cached.iter().find(|(other, _)| *other == key).map(|&(_, block)| BlockId::new(block))
        };
        let groups = [GroupId::new(0), GroupId::new(1)];
        assert_eq!(pool.cached(hash(content), &groups[..1]), first(groups[0]).map(|b| vec![b]));
        let both = first(groups[0]).zip(first(groups[1])).map(|(a, b)| vec![a, b]);
        assert_eq!(pool.cached(hash(content), &groups), both, "all groups or none");
    }
    let used = model.with_refs().len();
    assert_eq!(pool.num_used() as usize, used);
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let expected = if model.refs.len() == 1 { 0.0 } else { used as f64 / (model.refs.len() - 1) as f64 };
    assert!((pool.usage() - expected).abs() < 1e-12);
}

proptest! {
    // 100,000 operations by default.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 10, ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_the_model(
        num_blocks in 2_u32..10,
        reuse_unhashed_first in any::<bool>(),
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let options = PoolOptions::CACHING.events(true).reuse_unhashed_first(reuse_unhashed_first);
        let mut pool = BlockPool::new(num_blocks, SIZE, options);
        let mut model = Model {
            refs: vec![0; num_blocks as usize],
            free: (1..num_blocks).collect(),
            cached: Vec::new(),
            unhashed_first: reuse_unhashed_first,
            followed: HashSet::new(),
        };
        for op in ops {
            apply(&mut pool, &mut model, op);
            check(&pool, &model);
        }
    }
}

#[test]
fn a_pool_of_one_block_is_never_used() {
    let options = PoolOptions::CACHING;
    let mut pool = BlockPool::new(1, SIZE, options);
    assert_eq!(pool.allocate(1), Err(AllocError::OutOfBlocks { needed: 1, free: 0 }));
    assert_eq!((pool.num_usable(), pool.usage()), (0, 0.0));
}

#[test]
fn a_colliding_hash_is_a_miss_under_verification() {
    let options = PoolOptions::CACHING.verify_tokens(true);
    let config = kvblock::KvCacheConfig::uniform(
        8,
        kvblock::KvCacheSpec::new(kvblock::AttentionKind::FULL, SIZE, 1, 1, kvblock::KvDtype::F16),
        1,
        kvblock::LengthLimits::new(8),
    )
    .verify_tokens(options.verify_tokens);
    let mut cache = kvblock::KvCache::new(&config).unwrap();
    // Two sequences whose hashes collide by construction.
    let hashes = [hash(1), hash(2)];
    let content = |tokens| SeqContent::new(tokens, &hashes);
    cache.allocate_slots(kvblock::SlotRequest::new(kvblock::SeqId::new(0), content(&[5, 6]), 0, 2)).unwrap();
    assert_eq!(cache.lookup(content(&[5, 6])).num_tokens, 1);
    assert_eq!(cache.lookup(content(&[7, 6])).num_tokens, 0);
}
