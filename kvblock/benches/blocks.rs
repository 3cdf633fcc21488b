//! Measures allocating, freeing, hashing and looking up blocks, at pool sizes from 10^3 to 10^7.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvblock::{
    AttentionKind, BlockHasher, BlockPool, BlockSize, ExtraKeys, HashAlgorithm, HashChain, KvCache,
    KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits, PoolOptions, SeqContent, SeqId, SlotRequest, TokenId,
};

const BLOCK: BlockSize = BlockSize::new(16).unwrap();
const POOLS: [u32; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Number of blocks of one sequence: 8,192 tokens.
const SEQ_BLOCKS: u32 = 512;

const OPTIONS: PoolOptions = PoolOptions::CACHING;

/// A pool whose free queue is in random order, as after a long time of use: neighbours in the queue are far apart in
/// memory.
fn shuffled(num_blocks: u32) -> BlockPool {
    let mut pool = BlockPool::new(num_blocks, BLOCK, OPTIONS);
    let mut taken = pool.allocate(pool.num_free()).expect("all are free");
    let mut state = 1_u64;
    for last in (1..taken.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        taken.swap(last, usize::try_from(state >> 33).expect("31 bits") % (last + 1));
    }
    pool.free(&taken).expect("all were taken");
    pool
}

/// Takes the blocks of one sequence and frees them, tail first, so that all blocks of the pool are used in turn.
fn turn(pool: &mut BlockPool) {
    let mut taken = pool.allocate(black_box(SEQ_BLOCKS)).expect("the pool is free");
    taken.reverse();
    pool.free(&taken).expect("all were taken");
}

fn allocate_and_free(c: &mut Criterion) {
    for (name, pool_of) in [
        ("allocate+free", (|n| BlockPool::new(n, BLOCK, OPTIONS)) as fn(u32) -> BlockPool),
        ("allocate+free, shuffled", shuffled),
    ] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(u64::from(SEQ_BLOCKS)));
        for num_blocks in POOLS {
            let mut pool = pool_of(num_blocks);
            group.bench_function(BenchmarkId::from_parameter(num_blocks), |b| b.iter(|| turn(&mut pool)));
        }
        group.finish();
    }
}

fn prompt(len: u32) -> Vec<TokenId> {
    (0..len).map(|i| i.wrapping_mul(2_654_435_769) >> 15).collect()
}

fn cache(num_blocks: u32, max_model_len: u32, hash_algorithm: HashAlgorithm) -> KvCache {
    let spec = KvCacheSpec::new(AttentionKind::FULL, BLOCK, 8, 128, KvDtype::F16);
    let limits = LengthLimits::new(max_model_len);
    let config = KvCacheConfig::uniform(num_blocks, spec, 1, limits).hash_algorithm(hash_algorithm);
    KvCache::new(&config).expect("a valid configuration")
}

fn chain(cache: &KvCache, tokens: &[TokenId]) -> HashChain {
    let mut chain = HashChain::new(cache.hasher(), ExtraKeys::default());
    chain.extend(tokens);
    chain
}

/// Measures hashing and looking up a prompt of 1,000,000 tokens that is all in the cache.
fn hash_and_look_up(c: &mut Criterion) {
    let tokens = prompt(1_000_000);
    let mut group = c.benchmark_group("1,000,000 tokens");
    group.sample_size(20);
    for algorithm in [HashAlgorithm::Xxh3, HashAlgorithm::Sha256] {
        let mut cache = cache(100_000, 1_048_576, algorithm);
        let known = chain(&cache, &tokens);
        let content = SeqContent::new(&tokens, known.hashes());
        let request = SlotRequest::new(SeqId::new(0), content, 0, 1_000_000);
        cache.allocate_slots(request).expect("62,500 of 100,000 blocks");
        cache.free(SeqId::new(0));
        group.bench_function(BenchmarkId::new("hash", format!("{algorithm:?}")), |b| {
            b.iter(|| chain(&cache, black_box(&tokens)));
        });
        group.bench_function(BenchmarkId::new("hash+lookup", format!("{algorithm:?}")), |b| {
            b.iter(|| {
                let chain = chain(&cache, black_box(&tokens));
                let hit = cache.lookup(SeqContent::new(&tokens, chain.hashes()));
                assert_eq!(hit.num_tokens, 999_984);
                hit
            });
        });
    }
    group.finish();
}

/// Measures sequences of 8,192 new tokens in a full cache: each block is evicted, allocated, entered into the prefix
/// cache and freed.
fn cached_sequences(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate_slots+free, evicting");
    group.throughput(Throughput::Elements(u64::from(SEQ_BLOCKS)));
    let len = SEQ_BLOCKS * BLOCK.get();
    let tokens = prompt(len);
    for num_blocks in POOLS {
        let mut cache = cache(num_blocks, len, HashAlgorithm::Xxh3);
        let mut next = 0;
        // Another salt for each sequence: nothing hits, and the map is as full as the pool.
        let mut fresh = |hasher: BlockHasher| {
            next += 1;
            let extra = ExtraKeys { salt: Some(format!("{next}")), ..ExtraKeys::default() };
            let mut chain = HashChain::new(hasher, extra);
            chain.extend(&tokens);
            chain
        };
        let run = |cache: &mut KvCache, chain: &HashChain| {
            let content = SeqContent::new(&tokens, chain.hashes());
            cache.allocate_slots(SlotRequest::new(SeqId::new(0), content, 0, len)).expect("all are free");
            cache.free(SeqId::new(0));
        };
        for _ in 0..=num_blocks / SEQ_BLOCKS {
            let chain = fresh(cache.hasher());
            run(&mut cache, &chain);
        }
        assert_eq!(cache.pool().num_cached(), num_blocks as usize - 1);
        let memory = cache.pool().memory();
        let per_block = |bytes: usize| bytes as f64 / f64::from(num_blocks);
        let (block, map) = (per_block(memory.block_bytes), per_block(memory.map_bytes));
        eprintln!("{num_blocks} blocks, all cached: {block:.1} bytes a block, {map:.1} of the map");
        let hasher = cache.hasher();
        group.bench_function(BenchmarkId::from_parameter(num_blocks), |b| {
            b.iter_batched_ref(|| fresh(hasher), |chain| run(&mut cache, chain), BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, allocate_and_free, hash_and_look_up, cached_sequences);
criterion_main!(benches);
