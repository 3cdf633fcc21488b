//! Simulates a fleet of engines that serve conversations, to show what placement and a shared store of KV are worth.
//!
//! ```sh
//! cargo run --release -p pagoda-scheduler --example fleet -- [REPLICAS] [CONVERSATIONS]
//! ```
//!
//! Each replica has the real prefix cache, whose events feed the real placement; time and the speed of engines are simulated. A
//! replica computes one prompt after the other and decodes any number of sequences at the same time. Conversations begin at
//! random times with one of some system prompts, the first ones far more often than the last, and go on after a pause.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    reason = "a simulation that prints counts and seconds"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use scheduler::kvblock::{
    AttentionKind, BlockHash, BlockSize, ExtraKeys, HashAlgorithm, HashChain, KvCache, KvCacheConfig,
    KvCacheSpec, KvDtype, LengthLimits, SeqContent, SeqId, SlotRequest, TokenId,
};
use scheduler::{Placement, PlacementConfig, PlacementPolicy, ReplicaId, Ticket};

const BLOCK: u32 = 16;
/// Number of blocks of a replica: 32,768 tokens.
const BLOCKS: u32 = 2048;
const SYSTEM_PROMPTS: u64 = 500;
const SYSTEM_TOKENS: u32 = 1500;
const MAX_TURNS: u64 = 8;
const ANSWER_TOKENS: u32 = 200;
/// Number of prompt tokens that a replica computes per second, and number of tokens per second that it loads from a
/// store.
const PREFILL_TOK_S: f64 = 5000.0;
const LOAD_TOK_S: f64 = 50_000.0;
/// Seconds of an answer, and mean seconds until the next turn.
const ANSWER_S: f64 = 4.0;
const PAUSE_S: f64 = 20.0;
/// Share of the time in which replicas would compute if no token were cached.
const OFFERED: f64 = 1.2;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u32>().expect("a number"));
    let replicas = numbers.next().unwrap_or(100);
    let conversations = numbers.next().unwrap_or(replicas * 20);
    println!("{replicas} replicas of {} tokens, {conversations} conversations", BLOCKS * BLOCK);
    println!("policy       store   cached  loaded  first token, s    events/s  index");
    println!("                         %       %    mean   99 %                blocks     MB  us a place");
    for store in [false, true] {
        for policy in [PlacementPolicy::RoundRobin, PlacementPolicy::LeastLoad, PlacementPolicy::PrefixAware]
        {
            let mut fleet = Fleet::new(replicas, conversations, policy, store);
            fleet.run();
            fleet.print(policy, store);
        }
    }
}

/// Random numbers that are equal in each run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between 0 and 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A random time from the exponential distribution with this mean.
    fn after(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

struct Conversation {
    tokens: Vec<TokenId>,
    chain: HashChain,
    turns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A turn of a conversation arrives.
    Turn(usize),
    /// A replica has computed the prompt that it worked on.
    Prefilled(u32),
    /// An answer has ended.
    Ended(usize),
}

#[derive(Clone, Copy)]
struct Open {
    ticket: Ticket,
    replica: ReplicaId,
    arrived: f64,
    seq: SeqId,
}

struct Replica {
    cache: KvCache,
    /// Conversations whose prompts wait, the first one being computed if `busy`.
    queue: VecDeque<usize>,
    busy: bool,
}

struct Fleet {
    random: Random,
    now: f64,
    /// Events by time in nanoseconds.
    events: BinaryHeap<Reverse<(u64, What)>>,
    conversations: Vec<Conversation>,
    open: Vec<Option<Open>>,
    replicas: Vec<Replica>,
    placement: Placement,
    store: Option<HashSet<BlockHash>>,
    next_seq: u64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    prompt_tokens: u64,
    cached_tokens: u64,
    loaded_tokens: u64,
    cache_events: u64,
    most_blocks: usize,
    most_bytes: usize,
    first_token_s: Vec<f64>,
    placing: Duration,
}

impl Fleet {
    fn new(num_replicas: u32, num_conversations: u32, policy: PlacementPolicy, store: bool) -> Self {
        let block_size = BlockSize::new(BLOCK).expect("positive");
        let spec = KvCacheSpec::new(AttentionKind::FULL, block_size, 8, 128, KvDtype::F16);
        let limits = LengthLimits::new(BLOCKS * BLOCK / 2);
        let config = KvCacheConfig::uniform(BLOCKS, spec, 32, limits).events(true);
        let config = config.hash_algorithm(HashAlgorithm::Xxh3);
        let cache = KvCache::new(&config).expect("the configuration is right");
        let hasher = cache.hasher();
        let replica = |_| Replica { cache: cache.clone(), queue: VecDeque::new(), busy: false };
        let mut random = Random(7);
        let mean_tokens = f64::from(SYSTEM_TOKENS + MAX_TURNS as u32 / 4 * (250 + ANSWER_TOKENS));
        let turns_s = OFFERED * f64::from(num_replicas) * PREFILL_TOK_S / mean_tokens;
        let (mut events, mut at) = (BinaryHeap::new(), 0.0);
        let conversations = (0..num_conversations as usize).map(|index| {
            // A turn in the mean of half the maximum.
            at += random.after(MAX_TURNS as f64 / 2.0 / turns_s);
            events.push(Reverse((nanoseconds(at), What::Turn(index))));
            let system = (random.share().powi(3) * SYSTEM_PROMPTS as f64) as u32;
            let tokens: Vec<TokenId> = (0..SYSTEM_TOKENS).map(|at| system * 10_000 + at).collect();
            let mut chain = HashChain::new(hasher, ExtraKeys::default());
            chain.extend(&tokens);
            Conversation { tokens, chain, turns: 1 + random.next() % (MAX_TURNS - 1) }
        });
        let conversations: Vec<_> = conversations.collect();
        Self {
            open: vec![None; conversations.len()],
            conversations,
            events,
            random,
            now: 0.0,
            replicas: (0..num_replicas).map(replica).collect(),
            placement: Placement::new(num_replicas, PlacementConfig::new(block_size).policy(policy)),
            store: store.then(HashSet::new),
            next_seq: 0,
            counts: Counts::default(),
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, what))) = self.events.pop() {
            self.now = at as f64 / 1e9;
            match what {
                What::Turn(conversation) => self.turn(conversation),
                What::Prefilled(replica) => self.prefilled(replica),
                What::Ended(conversation) => self.ended(conversation),
            }
        }
    }

    fn at(&mut self, after_s: f64, what: What) {
        self.events.push(Reverse((nanoseconds(self.now + after_s), what)));
    }

    /// Starts a turn: a user writes text that no cache holds, and the conversation is placed.
    fn turn(&mut self, index: usize) {
        let count = 50 + (self.random.next() % 400) as usize;
        let new: Vec<TokenId> = (0..count).map(|_| self.random.next() as u32 | 1 << 31).collect();
        self.write(index, &new);
        let Conversation { tokens, chain, .. } = &self.conversations[index];
        let begin = Instant::now();
        let placed = self.placement.place(chain.hashes(), tokens.len() as u32, |_| true);
        self.counts.placing += begin.elapsed();
        let placed = placed.expect("all replicas serve");
        let (ticket, replica) = (placed.ticket, placed.replica);
        let seq = SeqId::new(self.next_seq);
        self.next_seq += 1;
        self.open[index] = Some(Open { ticket, replica, arrived: self.now, seq });
        self.replicas[replica.index()].queue.push_back(index);
        self.begin(replica);
    }

    fn write(&mut self, index: usize, tokens: &[TokenId]) {
        let conversation = &mut self.conversations[index];
        conversation.tokens.extend_from_slice(tokens);
        conversation.chain.extend(&conversation.tokens);
    }

    /// Computes the first prompt in the queue of an idle replica, if there is room for it; otherwise one that ends tries again.
    fn begin(&mut self, replica: ReplicaId) {
        let at = &mut self.replicas[replica.index()];
        let Some(&index) = at.queue.front().filter(|_| !at.busy) else { return };
        let Conversation { tokens, chain, .. } = &self.conversations[index];
        let content = SeqContent::new(tokens, chain.hashes());
        let hit = at.cache.lookup(content);
        let new = tokens.len() as u32 - hit.num_tokens;
        let seq = self.open[index].expect("it waits").seq;
        if at.cache.allocate_slots(SlotRequest::new(seq, content, 0, new).hit(&hit)).is_err() {
            return;
        }
        at.busy = true;
        let found = (hit.num_tokens / BLOCK) as usize;
        let loaded = self.store.as_mut().map_or(0, |store| {
            let more = chain.hashes()[found..].iter().take_while(|hash| store.contains(*hash)).count();
            store.extend(chain.hashes());
            (more as u32 * BLOCK).min(new - 1)
        });
        self.counts.prompt_tokens += tokens.len() as u64;
        self.counts.cached_tokens += u64::from(hit.num_tokens);
        self.counts.loaded_tokens += u64::from(loaded);
        self.follow(replica);
        let seconds = f64::from(new - loaded) / PREFILL_TOK_S + f64::from(loaded) / LOAD_TOK_S;
        self.at(seconds, What::Prefilled(replica.get()));
    }

    fn follow(&mut self, replica: ReplicaId) {
        let events = self.replicas[replica.index()].cache.take_events();
        self.counts.cache_events += events.len() as u64;
        events.iter().for_each(|event| self.placement.follow(replica, event));
    }

    fn prefilled(&mut self, replica: u32) {
        let at = &mut self.replicas[replica as usize];
        at.busy = false;
        let index = at.queue.pop_front().expect("it was computed");
        let open = self.open[index].expect("it runs");
        self.placement.prefilled(open.ticket);
        self.counts.first_token_s.push(self.now - open.arrived);
        self.at(ANSWER_S, What::Ended(index));
        self.begin(open.replica);
    }

    fn ended(&mut self, index: usize) {
        let open = self.open[index].take().expect("it ran");
        let answer: Vec<TokenId> = (0..ANSWER_TOKENS).map(|_| self.random.next() as u32 | 1 << 31).collect();
        let before = self.conversations[index].tokens.len() as u32;
        self.write(index, &answer);
        let Conversation { tokens, chain, .. } = &self.conversations[index];
        let cache = &mut self.replicas[open.replica.index()].cache;
        // Without room, the blocks of an answer are not kept, as if it had been preempted at its end.
        let content = SeqContent::new(tokens, chain.hashes());
        let _ = cache.allocate_slots(SlotRequest::new(open.seq, content, before, ANSWER_TOKENS));
        cache.free(open.seq);
        self.follow(open.replica);
        self.placement.ended(open.ticket);
        let held = self.placement.index();
        // Now and then, as its bytes take a look at every entry.
        if held.len() > self.counts.most_blocks + self.counts.most_blocks / 50 {
            (self.counts.most_blocks, self.counts.most_bytes) = (held.len(), held.memory());
        }
        let conversation = &mut self.conversations[index];
        conversation.turns -= 1;
        if conversation.turns > 0 {
            let pause = self.random.after(PAUSE_S);
            self.at(pause, What::Turn(index));
        }
        self.begin(open.replica);
    }

    fn print(&mut self, policy: PlacementPolicy, store: bool) {
        self.counts.first_token_s.sort_by(f64::total_cmp);
        let Counts { first_token_s, prompt_tokens, .. } = &self.counts;
        let percent = |tokens: u64| tokens as f64 / *prompt_tokens as f64 * 100.0;
        let mean = first_token_s.iter().sum::<f64>() / first_token_s.len() as f64;
        let slow = first_token_s[first_token_s.len() * 99 / 100];
        let places = first_token_s.len() as f64;
        println!(
            "{:<12} {:<5} {:>8.1} {:>7.1} {mean:>7.3} {slow:>6.3} {:>11.0} {:>9} {:>6.1} {:>11.2}",
            format!("{policy:?}"),
            if store { "yes" } else { "no" },
            percent(self.counts.cached_tokens),
            percent(self.counts.loaded_tokens),
            self.counts.cache_events as f64 / self.now,
            self.counts.most_blocks,
            self.counts.most_bytes as f64 / 1e6,
            self.counts.placing.as_secs_f64() * 1e6 / places,
        );
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
