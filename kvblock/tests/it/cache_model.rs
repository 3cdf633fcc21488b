//! All managers at once, over one pool: random sessions beside a memory in which every token's place holds a hash of
//! its prefix. Whatever is hit, forked, evicted or recycled, what a query can reach must be what was computed.

mod ops;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kvblock::{
    AllocError, AttentionKind, BlockHash, BlockId, BlockSize, CacheEvent, ExtraKey, ExtraKeys, GroupId,
    HashChain, KvCache, KvCacheConfig, KvCacheGroup, KvCacheSpec, KvDtype, LengthLimits, Medium, PrefixHit,
    SeqContent, SeqId, SlotRequest, StoredBlocks, TokenId,
};
use proptest::prelude::*;
use proptest::sample::Index;

use ops::{Op, groups, op};

/// Longest sequence and longest step.
const LIMITS: LengthLimits = {
    let mut limits = LengthLimits::new(40);
    limits.max_batched_tokens = 12;
    limits
};
/// Maximum number of draft slots of a step.
const LOOKAHEAD: u32 = 2;

struct Seq {
    tokens: Vec<TokenId>,
    chain: HashChain,
    computed: u32,
}

impl Seq {
    fn content(&self) -> SeqContent<'_> {
        SeqContent::new(&self.tokens, self.chain.hashes()).extra_keys(Some(self.chain.extra_keys()))
    }

    fn known(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap()
    }
}

struct Machine {
    cache: KvCache,
    groups: Vec<(AttentionKind, u32)>,
    seqs: BTreeMap<SeqId, Seq>,
    next_seq: u64,
    /// Value last written at an offset of a block.
    memory: HashMap<(BlockId, u32), u64>,
    /// Keys that the events say can be found.
    findable: BTreeSet<(BlockHash, GroupId)>,
    /// Hits that were looked up and not adopted, with the tokens they are of.
    hits: Vec<(Vec<TokenId>, PrefixHit)>,
}

/// Stands for the keys and values of the last token in the layers of a group: they depend on all tokens before it.
fn prefix_hash(group: GroupId, tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(u64::from(group.get()) + 7, |hash: u64, &token| {
        (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// One of two texts, whose prefixes differ.
fn text(family: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| (i * i + family) % 5).collect()
}

/// Sequences of the second text have a salt.
fn extra_keys(tokens: &[TokenId]) -> ExtraKeys {
    let salt = (tokens.first() == Some(&1)).then(|| "salt".to_owned());
    ExtraKeys { salt, ..ExtraKeys::default() }
}

/// Hashes of the blocks of an event, computed from all else that it says.
fn recomputed(cache: &KvCache, stored: &StoredBlocks) -> Vec<BlockHash> {
    let (hasher, first) = (cache.hasher(), stored.parent.is_none());
    let (size, mut parent) = (hasher.block_size().get() as usize, stored.parent.unwrap_or(hasher.root()));
    let salt = match stored.extra_keys.first().map(Vec::as_slice) {
        Some([ExtraKey::Salt(salt)]) if first => Some(salt.clone()),
        None | Some([]) => None,
        other => panic!("{other:?}"),
    };
    assert!(stored.extra_keys.iter().skip(1).all(Vec::is_empty), "a salt of a later block");
    let keys = ExtraKeys { salt, ..ExtraKeys::default() };
    let mut hashes = Vec::new();
    for (index, tokens) in stored.tokens.chunks_exact(size).enumerate() {
        let mut extra = Vec::new();
        keys.encode_block(if first { index } else { index + 1 }, 1, &mut extra);
        parent = hasher.hash_block(&parent, tokens, &extra);
        hashes.push(parent);
    }
    let per_block = stored.block_size.get() as usize / size;
    hashes.into_iter().skip(per_block - 1).step_by(per_block).collect()
}

fn first_reachable(kind: AttentionKind, query: u32) -> u32 {
    match kind {
        AttentionKind::Full { .. } => 0,
        AttentionKind::SlidingWindow { window } => (query + 1).saturating_sub(window),
        AttentionKind::ChunkedLocal { chunk } => query / chunk * chunk,
    }
}

fn config(
    num_blocks: u32,
    groups: &[(AttentionKind, u32)],
    caching: bool,
    unhashed_first: bool,
) -> KvCacheConfig {
    let spec = |&(kind, size): &(AttentionKind, u32)| {
        KvCacheSpec::new(kind, BlockSize::new(size).unwrap(), 1, 4, KvDtype::F16)
    };
    let group = |of| KvCacheGroup::new(spec(of), vec![0]);
    KvCacheConfig::new(num_blocks, groups.iter().map(group).collect(), LIMITS)
        .caching(caching)
        .events(true)
        .hash_algorithm(kvblock::HashAlgorithm::Xxh3)
        .reuse_unhashed_first(unhashed_first)
}

impl Machine {
    fn pick(&self, index: &Index) -> Option<SeqId> {
        (!self.seqs.is_empty()).then(|| *self.seqs.keys().nth(index.index(self.seqs.len())).unwrap())
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Start { family, len, new, lookup } => {
                let tokens = text(*family, *len);
                let hit = if *lookup { self.look(&tokens) } else { PrefixHit::default() };
                self.start(tokens, &hit, *new);
            }
            Op::Look { family, len } => {
                let tokens = text(*family, *len);
                let hit = self.look(&tokens);
                self.hits.push((tokens, hit));
            }
            Op::Adopt { hit, new } if !self.hits.is_empty() => {
                let (tokens, hit) = self.hits.swap_remove(hit.index(self.hits.len()));
                self.start(tokens, &hit, *new);
            }
            Op::Adopt { .. } => {}
            Op::Grow { seq, new, token, lookahead, early } => {
                let Some(id) = self.pick(seq) else { return };
                let seq = self.seqs.get_mut(&id).unwrap();
                if seq.computed == seq.known() && seq.known() + LOOKAHEAD < LIMITS.max_model_len {
                    seq.tokens.push(*token);
                    seq.chain.extend(&seq.tokens);
                }
                if self.step(id, *new, *lookahead, true) && *early {
                    self.write_early(id);
                }
            }
            Op::Fail { seq, new } => {
                let Some(id) = self.pick(seq) else { return };
                let start = self.seqs[&id].computed;
                self.step(id, *new, 0, false);
                self.cache.uncache_from(id, start);
                self.end(id);
            }
            Op::Fork(seq, tokens) => {
                if let Some(id) = self.pick(seq) {
                    self.fork(id, tokens);
                }
            }
            Op::Free(seq) => {
                if let Some(id) = self.pick(seq) {
                    self.end(id);
                }
            }
            Op::Evict(block) => {
                let block = 1 + u32::try_from(block.index(self.cache.pool().num_usable() as usize)).unwrap();
                self.cache.evict_blocks(&[BlockId::new(block)]).unwrap();
            }
            Op::Reset => assert_eq!(self.cache.reset_prefix_cache(), self.cache.pool().num_used() == 0),
        }
        self.check();
    }

    /// Forks at any token that is computed, most often at the last one.
    fn fork(&mut self, id: SeqId, place: &Index) {
        let (child, parent) = (self.seq_id(), &self.seqs[&id]);
        let num_tokens = u32::try_from(place.index(2 * parent.computed as usize + 1)).unwrap();
        let computed = num_tokens.min(parent.computed);
        let tokens = parent.tokens[..computed as usize].to_vec();
        let chain = self.chain(&tokens);
        let before = format!("{:?}", self.cache);
        if let Err(error) = self.cache.fork(id, child, computed) {
            let AllocError::NotHeld { seq, group, block, .. } = error else { panic!("{error}") };
            let (kind, size) = self.groups[group.index()];
            let first = first_reachable(kind, computed) / size;
            assert!(seq == id && (first..computed.div_ceil(size)).contains(&block.get()), "{error}");
            let table = self.cache.table(id, group).unwrap().blocks();
            assert!(table[block.get() as usize].is_null(), "{error}");
            assert_eq!(before, format!("{:?}", self.cache), "a refusal left a change behind");
            return;
        }
        self.seqs.insert(child, Seq { tokens, chain, computed });
    }

    fn seq_id(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId::new(self.next_seq)
    }

    fn chain(&self, tokens: &[TokenId]) -> HashChain {
        let mut chain = HashChain::new(self.cache.hasher(), extra_keys(tokens));
        chain.extend(tokens);
        chain
    }

    fn end(&mut self, id: SeqId) {
        self.cache.free(id);
        self.seqs.remove(&id);
    }

    fn look(&self, tokens: &[TokenId]) -> PrefixHit {
        let chain = self.chain(tokens);
        let hit = self.cache.lookup(SeqContent::new(tokens, chain.hashes()));
        assert!((hit.num_tokens as usize) < tokens.len(), "the last token is always computed");
        hit
    }

    /// The first block of a hit in reach that lookups no longer find by its tokens, or that holds others.
    fn first_stale(&self, tokens: &[TokenId], hit: &PrefixHit) -> Option<(GroupId, usize)> {
        let chain = self.chain(tokens);
        let hash_size = self.cache.hasher().block_size().get();
        (0..).map(GroupId::new).zip(&self.groups).zip(&hit.blocks).find_map(|((group, of), blocks)| {
            let &(kind, size) = of;
            let stale = |index: &usize| {
                let (block, ends) = (blocks[*index], (1..).skip(index * size as usize));
                let hash = chain.hashes()[(index + 1) * (size / hash_size) as usize - 1];
                let holds = |(at, end): (u32, usize)| {
                    self.memory.get(&(block, at)) == Some(&prefix_hash(group, &tokens[..end]))
                };
                self.cache.pool().hash(block) != Some(hash) || !(0..size).zip(ends).all(holds)
            };
            let first = first_reachable(kind, hit.num_tokens) / size;
            (first as usize..blocks.len()).find(stale).map(|index| (group, index))
        })
    }

    fn start(&mut self, tokens: Vec<TokenId>, hit: &PrefixHit, new: u32) {
        let chain = self.chain(&tokens);
        let content = SeqContent::new(&tokens, chain.hashes()).extra_keys(Some(chain.extra_keys()));
        let (id, new) = (self.seq_id(), new.min(u32::try_from(tokens.len()).unwrap() - hit.num_tokens));
        let request = SlotRequest::new(id, content, 0, new).hit(hit);
        let before = format!("{:?}", self.cache);
        let stale = self.first_stale(&tokens, hit);
        if let Err(error) = self.cache.allocate_slots(request) {
            match error {
                AllocError::OutOfBlocks { needed, free } => {
                    assert!(stale.is_none() && needed > free && free == self.cache.pool().num_free());
                }
                AllocError::StaleHit { group, index, .. } => {
                    assert_eq!(stale, Some((group, index.get() as usize)), "{error}");
                }
                _ => panic!("{error}"),
            }
            assert_eq!(before, format!("{:?}", self.cache), "a refusal left a change behind");
            return;
        }
        assert_eq!(stale, None, "a hit of other tokens was adopted");
        self.seqs.insert(id, Seq { tokens, chain, computed: hit.num_tokens });
        self.run(id, new);
    }

    /// Allocates a step and, if `run`, computes it. False if there was nothing to compute, or no block.
    fn step(&mut self, id: SeqId, new: u32, num_lookahead: u32, run: bool) -> bool {
        let seq = &self.seqs[&id];
        let new = new.min(seq.known() - seq.computed);
        if new == 0 {
            return false;
        }
        let request = SlotRequest::new(id, seq.content(), seq.computed, new).num_lookahead(num_lookahead);
        let allocation = self.cache.allocate_slots(request);
        let is_allocated = allocation.is_ok();
        if let Ok(allocation) = allocation {
            for copy in allocation.copies {
                let offsets = 0..self.groups[copy.group.index()].1;
                let moved: Vec<_> =
                    offsets.map(|at| (at, self.memory.get(&(copy.source, at)).copied())).collect();
                for (at, content) in moved {
                    content.map(|content| self.memory.insert((copy.destination, at), content));
                }
            }
            if run {
                self.run(id, new);
            }
        }
        is_allocated
    }

    /// Writes to the slot after the computed tokens before it is allocated, as a step that is sent early does: nobody may see it.
    fn write_early(&mut self, id: SeqId) {
        let position = self.seqs[&id].computed;
        if self.cache.extend(id, position + 1).is_err() || position >= LIMITS.max_model_len {
            return;
        }
        for (group, &(_, size)) in (0..).map(GroupId::new).zip(&self.groups) {
            let block = self.cache.table(id, group).unwrap().blocks()[(position / size) as usize];
            self.memory.insert((block, position % size), 0);
        }
    }

    /// Writes the next `new` tokens and reads all that each of them can reach.
    fn run(&mut self, id: SeqId, new: u32) {
        let seq = self.seqs.get_mut(&id).unwrap();
        for (group, &(kind, size)) in (0..).map(GroupId::new).zip(&self.groups) {
            let table = self.cache.table(id, group).unwrap().blocks();
            let place = |token: u32| (table[(token / size) as usize], token % size);
            for token in seq.computed..seq.computed + new {
                let (block, _) = place(token);
                let pool = self.cache.pool();
                assert_eq!(pool.ref_count(block), 1, "{id:?} writes {block:?}, which others read");
                self.memory.insert(place(token), prefix_hash(group, &seq.tokens[..=token as usize]));
            }
            for query in seq.computed..seq.computed + new {
                for key in first_reachable(kind, query)..=query {
                    let expected = prefix_hash(group, &seq.tokens[..=key as usize]);
                    assert_eq!(
                        self.memory.get(&place(key)),
                        Some(&expected),
                        "{id:?} reads {key} in {group:?} at {query}"
                    );
                }
            }
        }
        seq.computed += new;
    }

    fn check(&mut self) {
        for event in self.cache.take_events() {
            match event {
                CacheEvent::Stored(stored) => {
                    assert_eq!(stored.hashes, recomputed(&self.cache, &stored));
                    assert_eq!(stored.medium, Medium::Gpu);
                    for hash in stored.hashes {
                        assert!(self.findable.insert((hash, stored.group)), "{hash:?} could be found before");
                    }
                }
                CacheEvent::Removed { key, .. } => assert!(self.findable.remove(&(key.hash, key.group))),
                CacheEvent::AllCleared => self.findable.clear(),
                other => panic!("{other:?}"),
            }
        }
        let pool = self.cache.pool();
        assert_eq!(pool.num_cached(), self.findable.len());
        for (hash, group) in &self.findable {
            let found = pool.cached(*hash, &[*group]).expect("an event told of it")[0];
            assert_eq!(pool.hash(found), Some(*hash));
        }
        let mut owners: HashMap<BlockId, u32> = HashMap::new();
        for (group, &(kind, size)) in (0..).map(GroupId::new).zip(&self.groups) {
            let spec = KvCacheSpec::new(kind, BlockSize::new(size).unwrap(), 1, 4, KvDtype::F16);
            let most = LIMITS.max_batched_tokens(LIMITS.max_batched_tokens + LOOKAHEAD);
            for (id, table) in self.cache.tables(group) {
                let live: Vec<BlockId> =
                    table.blocks().iter().copied().filter(|block| !block.is_null()).collect();
                let unique: BTreeSet<BlockId> = live.iter().copied().collect();
                assert_eq!(live.len(), unique.len(), "a block twice in the table of {id:?}");
                assert!(
                    live.len() <= spec.max_blocks_per_seq(most) as usize,
                    "{} live blocks of {kind:?}",
                    live.len()
                );
                live.into_iter().for_each(|block| *owners.entry(block).or_default() += 1);
            }
        }
        for block in (1..=pool.num_usable()).map(BlockId::new) {
            let references = owners.get(&block).copied().unwrap_or(0);
            assert_eq!(
                (pool.ref_count(block), pool.is_free(block)),
                (references, references == 0),
                "{block:?}"
            );
        }
        assert_eq!(pool.num_used() as usize, owners.len());
        assert_eq!(pool.num_free() + pool.num_used(), pool.num_usable());
        assert_eq!((pool.ref_count(BlockId::NULL), pool.hash(BlockId::NULL)), (0, None));
        assert!(!pool.is_free(BlockId::NULL));
    }
}

proptest! {
    // 100,000 operations by default.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 10, ..ProptestConfig::default() })]
    #[test]
    fn every_reachable_token_is_the_one_computed(
        groups in groups(),
        num_blocks in 8_u32..60,
        caching in prop::bool::weighted(0.9),
        unhashed_first in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let cache = KvCache::new(&config(num_blocks, &groups, caching, unhashed_first)).unwrap();
        let mut machine = Machine {
            cache, groups, seqs: BTreeMap::new(), next_seq: 0, memory: HashMap::new(), findable: BTreeSet::new(),
            hits: Vec::new(),
        };
        ops.iter().for_each(|op| machine.apply(op));
        machine.seqs.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| machine.end(id));
        prop_assert_eq!(machine.cache.pool().num_used(), 0);
        prop_assert!(machine.cache.reset_prefix_cache());
        machine.check();
    }
}
