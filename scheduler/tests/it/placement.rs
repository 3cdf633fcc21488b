//! Placement beside a naive one, and as a timeline.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::sample::Index;
use scheduler::kvblock::{
    AttentionKind, BlockHash, BlockHasher, BlockSize, ExtraKeys, HashAlgorithm, HashChain, KvCache,
    KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits, SeqContent, SeqId, SlotRequest, TokenId,
};
use scheduler::{Placed, Placement, PlacementConfig, PlacementPolicy, PrefixIndex, ReplicaId, Ticket};

const BLOCK: u32 = 4;

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

fn hashes(tokens: &[TokenId]) -> Vec<BlockHash> {
    let mut chain =
        HashChain::new(BlockHasher::new(HashAlgorithm::default(), &[], block_size()), ExtraKeys::default());
    chain.extend(tokens);
    chain.hashes().to_vec()
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}

/// A prompt by the branches that it takes in a tree of texts, a block each.
fn prompt(branches: &[u8]) -> Vec<TokenId> {
    branches.iter().flat_map(|branch| [u32::from(*branch); BLOCK as usize]).chain([99]).collect()
}

#[derive(Clone, Debug)]
enum IndexChange {
    Store(u32, Vec<u8>),
    Remove(u32, Index),
    Clear(u32),
}

/// Replicas, so many that their bits take two words.
const MANY: u32 = 70;

fn index_changes() -> impl Strategy<Value = Vec<IndexChange>> {
    let branches = prop::collection::vec(0u8..2, 0..5);
    let replica = prop_oneof![0..3u32, 60..MANY];
    let change = prop_oneof![
        6 => (replica.clone(), branches).prop_map(|(replica, branches)| IndexChange::Store(replica, branches)),
        2 => (replica.clone(), any::<Index>()).prop_map(|(replica, which)| IndexChange::Remove(replica, which)),
        1 => replica.prop_map(IndexChange::Clear),
    ];
    prop::collection::vec(change, 1..60)
}

proptest! {
    /// The longest prefixes of an index are those of a set of hashes a replica.
    #[test]
    fn an_index_finds_what_sets_hold(changes in index_changes(), asked in prop::collection::vec(0u8..2, 0..5)) {
        let mut index = PrefixIndex::new(MANY);
        let mut sets: Vec<HashSet<BlockHash>> = vec![HashSet::new(); MANY as usize];
        for change in changes {
            match change {
                IndexChange::Store(replica, branches) => {
                    for hash in hashes(&prompt(&branches)) {
                        let new = sets[replica as usize].insert(hash);
                        prop_assert_eq!(index.store(ReplicaId::new(replica), hash), new);
                    }
                }
                IndexChange::Remove(replica, which) => {
                    let mut all: Vec<BlockHash> = sets.iter().flatten().copied().collect();
                    all.sort_unstable();
                    if !all.is_empty() {
                        let hash = *which.get(&all);
                        let was = sets[replica as usize].remove(&hash);
                        prop_assert_eq!(index.remove(ReplicaId::new(replica), &hash), was);
                    }
                }
                IndexChange::Clear(replica) => {
                    sets[replica as usize].clear();
                    index.clear(ReplicaId::new(replica));
                }
            }
            let distinct: HashSet<&BlockHash> = sets.iter().flatten().collect();
            prop_assert_eq!(index.len(), distinct.len());
        }
        let asked = hashes(&prompt(&asked));
        let held = |set: &HashSet<BlockHash>| number(asked.iter().take_while(|hash| set.contains(hash)).count());
        let longest: Vec<u32> = sets.iter().map(held).collect();
        prop_assert_eq!(index.longest(&asked), longest);
        for (replica, set) in (0..).map(ReplicaId::new).zip(&sets) {
            prop_assert_eq!(index.held(replica), set.len());
        }
    }

    /// A placement whose caches are real ones chooses what a naive sum of costs chooses, and all loads end at zero.
    #[test]
    fn placements_are_those_of_a_naive_sum(moves in prop::collection::vec(any_move(), 1..80)) {
        let mut fleet = Fleet::new(3, PlacementConfig::new(block_size()));
        for one in moves {
            fleet.apply(one)?;
        }
        let open: Vec<Ticket> = fleet.open.keys().copied().collect();
        open.into_iter().for_each(|ticket| fleet.end(ticket));
        for replica in fleet.all() {
            prop_assert_eq!(fleet.placement.load(replica), scheduler::ReplicaLoad::default());
        }
    }
}

#[derive(Clone, Debug)]
enum Move {
    Place(Vec<u8>),
    Prefill(Index),
    End(Index),
    Lose(u32),
    Serve(u32, bool),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        8 => prop::collection::vec(0u8..3, 1..7).prop_map(Move::Place),
        6 => any::<Index>().prop_map(Move::Prefill),
        4 => any::<Index>().prop_map(Move::End),
        1 => (0..3u32).prop_map(Move::Lose),
        1 => (0..3u32, any::<bool>()).prop_map(|(replica, serves)| Move::Serve(replica, serves)),
    ]
}

struct OpenRequest {
    placed: Placed,
    seq: SeqId,
    tokens: Vec<TokenId>,
    hashes: Vec<BlockHash>,
    prefilled: bool,
}

/// Replicas with caches of a few blocks, and the placement among them.
struct Fleet {
    placement: Placement,
    caches: Vec<KvCache>,
    serving: Vec<bool>,
    open: BTreeMap<Ticket, OpenRequest>,
    next_seq: u64,
}

impl Fleet {
    fn new(num_replicas: u32, config: PlacementConfig) -> Self {
        let spec = KvCacheSpec::new(AttentionKind::FULL, block_size(), 1, 8, KvDtype::F16);
        let mut cache = KvCacheConfig::uniform(24, spec, 1, LengthLimits::new(64));
        cache.events = true;
        let caches = (0..num_replicas).map(|_| KvCache::new(&cache).unwrap()).collect();
        let serving = vec![true; num_replicas as usize];
        Self {
            placement: Placement::new(num_replicas, config),
            caches,
            serving,
            open: BTreeMap::new(),
            next_seq: 0,
        }
    }

    fn all(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..number(self.caches.len())).map(ReplicaId::new)
    }

    fn apply(&mut self, one: Move) -> Result<(), TestCaseError> {
        match one {
            Move::Place(branches) => {
                let want = self.naive(&prompt(&branches));
                let got = self.place(&branches);
                prop_assert_eq!(got.map(|placed| (placed.replica, placed.cached_tokens)), want);
            }
            Move::Prefill(which) => {
                if let Some(ticket) = self.pick(which) {
                    self.prefill(ticket);
                }
            }
            Move::End(which) => {
                if let Some(ticket) = self.pick(which) {
                    self.end(ticket);
                }
            }
            Move::Lose(replica) => {
                let replica = ReplicaId::new(replica);
                let mine = |open: &OpenRequest| open.placed.replica == replica;
                let want: Vec<Ticket> =
                    self.open.iter().filter(|(_, open)| mine(open)).map(|(ticket, _)| *ticket).collect();
                prop_assert_eq!(self.placement.lost(replica), want);
                self.open.retain(|_, open| !mine(open));
                let fresh = Self::new(1, PlacementConfig::new(block_size())).caches.remove(0);
                self.caches[replica.index()] = fresh;
                prop_assert_eq!(self.placement.index().held(replica), 0);
            }
            Move::Serve(replica, serves) => {
                self.serving[replica as usize] = serves;
                self.placement.set_serving(ReplicaId::new(replica), serves);
            }
        }
        Ok(())
    }

    fn pick(&self, which: Index) -> Option<Ticket> {
        let tickets: Vec<Ticket> = self.open.keys().copied().collect();
        (!tickets.is_empty()).then(|| *which.get(&tickets))
    }

    /// The replica of the smallest cost, and the tokens that it holds or expects, from the caches themselves.
    fn naive(&self, tokens: &[TokenId]) -> Option<(ReplicaId, u32)> {
        let hashes = hashes(tokens);
        let prompt_tokens = number(tokens.len());
        let candidates = self.all().filter(|replica| self.serving[replica.index()]).map(|replica| {
            let here: Vec<&OpenRequest> =
                self.open.values().filter(|open| open.placed.replica == replica).collect();
            // A block that is expected is found after those that the cache finds, and the other way round.
            let expected = |hash: &BlockHash| {
                here.iter().filter(|open| !open.prefilled).any(|open| open.hashes.contains(hash))
            };
            let holds = |hash: &BlockHash| self.cached(replica, hash) || expected(hash);
            let blocks = number(hashes.iter().take_while(|hash| holds(hash)).count());
            let cached = (blocks * BLOCK).min(prompt_tokens - 1);
            let new: u32 = here
                .iter()
                .filter(|open| !open.prefilled)
                .map(|open| number(open.tokens.len()) - open.placed.cached_tokens)
                .sum();
            let kv: usize = here.iter().map(|open| open.tokens.len()).sum();
            let cost = prompt_tokens - cached + new + number(kv);
            (cost, self.placement.index().held(replica), replica, cached)
        });
        candidates
            .min_by_key(|(cost, held, replica, _)| (*cost, *held, *replica))
            .map(|(_, _, replica, cached)| (replica, cached))
    }

    fn cached(&self, replica: ReplicaId, hash: &BlockHash) -> bool {
        self.placement.index().longest(&[*hash])[replica.index()] == 1
    }

    fn place(&mut self, branches: &[u8]) -> Option<Placed> {
        let tokens = prompt(branches);
        let hashes = hashes(&tokens);
        let placed = self.placement.place(&hashes, number(tokens.len()), |_| true)?;
        let seq = SeqId::new(self.next_seq);
        self.next_seq += 1;
        self.open.insert(placed.ticket, OpenRequest { placed, seq, tokens, hashes, prefilled: false });
        Some(placed)
    }

    /// Computes a prompt, or ends its request if the cache has no room for it.
    fn prefill(&mut self, ticket: Ticket) {
        let open = self.open.get_mut(&ticket).unwrap();
        if open.prefilled {
            return;
        }
        let cache = &mut self.caches[open.placed.replica.index()];
        let content = SeqContent::new(&open.tokens, &open.hashes);
        let hit = cache.lookup(content);
        let new = number(open.tokens.len()) - hit.num_tokens;
        let fits = cache.allocate_slots(SlotRequest::new(open.seq, content, 0, new).hit(&hit)).is_ok();
        open.prefilled = fits;
        self.follow(ticket);
        if fits { self.placement.prefilled(ticket) } else { self.end(ticket) }
    }

    fn follow(&mut self, ticket: Ticket) {
        let replica = self.open[&ticket].placed.replica;
        let events = self.caches[replica.index()].take_events();
        events.iter().for_each(|event| self.placement.follow(replica, event));
        // What was followed is what the cache finds, for every prompt that is open.
        for open in self.open.values() {
            let found =
                self.caches[replica.index()].lookup(SeqContent::new(&open.tokens, &open.hashes)).num_tokens;
            let blocks = self.placement.index().longest(&open.hashes)[replica.index()];
            assert_eq!(blocks * BLOCK, found);
        }
    }

    fn end(&mut self, ticket: Ticket) {
        let open = self.open.remove(&ticket).unwrap();
        self.caches[open.placed.replica.index()].free(open.seq);
        self.placement.ended(ticket);
        // One that has ended is ignored.
        self.placement.ended(ticket);
        self.placement.prefilled(ticket);
    }
}

/// Each policy draws a timeline of the same requests: branches of a prompt, a block each, and their replica.
#[test]
fn policies_as_timelines() {
    let requests: [&[u8]; 10] = [
        &[1, 1, 1, 1],
        &[1, 1, 1, 2],
        &[2, 2],
        &[1, 1, 1, 1, 3],
        &[2, 2, 5],
        &[3],
        &[1, 1, 1, 4],
        &[2, 2, 5, 6],
        &[1, 1, 1, 1, 3, 7],
        &[4],
    ];
    let mut drawn = String::new();
    for policy in [PlacementPolicy::RoundRobin, PlacementPolicy::LeastLoad, PlacementPolicy::PrefixAware] {
        let mut fleet = Fleet::new(3, PlacementConfig::new(block_size()).policy(policy));
        writeln!(drawn, "{policy:?}").unwrap();
        for (turn, branches) in requests.iter().enumerate() {
            let placed = fleet.place(branches).unwrap();
            let loads: Vec<u64> =
                fleet.all().map(|replica| fleet.placement.load(replica).prefill_tokens).collect();
            let (replica, cached) = (placed.replica.get(), placed.cached_tokens);
            writeln!(drawn, "  {branches:?} to {replica}, {cached} tokens cached, to compute {loads:?}")
                .unwrap();
            // Every other step computes and ends what came first.
            if turn % 2 == 1 {
                for ticket in fleet.open.keys().copied().take(2).collect::<Vec<_>>() {
                    fleet.prefill(ticket);
                    fleet.end(ticket);
                }
            }
        }
    }
    insta::assert_snapshot!(drawn);
}

#[test]
fn nobody_serves_and_nobody_may() {
    let mut placement = Placement::new(2, PlacementConfig::new(block_size()));
    assert!(placement.place(&[], 5, |_| false).is_none());
    placement.set_serving(ReplicaId::new(0), false);
    let placed = placement.place(&[], 5, |_| true).unwrap();
    assert_eq!((placed.replica, placed.cached_tokens), (ReplicaId::new(1), 0));
    placement.set_serving(ReplicaId::new(1), false);
    assert!(placement.place(&[], 5, |_| true).is_none());
    // What a replica has goes on after it takes no more.
    assert_eq!(placement.load(ReplicaId::new(1)).requests, 1);
    assert_eq!(placement.lost(ReplicaId::new(1)), [placed.ticket]);
    assert_eq!(placement.load(ReplicaId::new(1)).requests, 0);
}
