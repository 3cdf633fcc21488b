//! Placement of requests among replicas: the longest cached prefix, against the load.
//!
//! A request costs a replica the prompt tokens that it does not hold, after the prompt tokens that it has still to compute, and
//! shares each step with the sequences that decode there. The cost is that of NVIDIA Dynamo's KV router: prompt tokens to
//! compute, and KV tokens of what decodes, with a weight between them. The smallest one is taken.
//!
//! [Cache events](kvblock::CacheEvent) tell what a replica holds. Requests with one beginning often come at the
//! same time, before the first of them has stored anything, so the blocks of a prompt count as held from its placement on.

use derive_setters::Setters;
use kvblock::{BlockHash, BlockSize, CacheEvent, GroupId, Medium};
use rustc_hash::FxHashMap;

use crate::prefix_index::{PrefixIndex, ReplicaId, longest};

/// Way in which a replica is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum PlacementPolicy {
    /// Replicas in turn.
    RoundRobin,
    /// The replica with the smallest load, whatever prefixes it holds.
    LeastLoad,
    /// The replica with the smallest cost: its load, and the prompt tokens that it does not hold.
    #[default]
    PrefixAware,
}

/// Settings of a [`Placement`].
#[derive(Clone, Copy, PartialEq, Debug, Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PlacementConfig {
    /// Way in which a replica is chosen.
    pub policy: PlacementPolicy,
    /// Number of tokens of a block.
    pub block_size: BlockSize,
    /// Cost of one token of KV that requests of a replica hold, as a number of prompt tokens to compute; 1 as in
    /// Dynamo. A larger weight spreads requests, and a smaller one sends them to replicas that hold their prefixes.
    pub kv_weight: f64,
}

impl PlacementConfig {
    /// Settings of prefix-aware placement with a weight of 1.
    #[must_use]
    pub const fn new(block_size: BlockSize) -> Self {
        Self { policy: PlacementPolicy::PrefixAware, block_size, kv_weight: 1.0 }
    }
}

/// Load of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ReplicaLoad {
    /// Number of requests.
    pub requests: u32,
    /// Number of prompt tokens that the replica has still to compute.
    pub prefill_tokens: u64,
    /// Number of prompt tokens of the replica's requests, computed or not.
    pub kv_tokens: u64,
}

/// Handle of a placed request; later tickets compare larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// The replica of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Placed {
    /// Handle of the request for later calls.
    pub ticket: Ticket,
    /// The replica that was chosen.
    pub replica: ReplicaId,
    /// Number of leading prompt tokens that are expected to be cached at the replica.
    pub cached_tokens: u32,
}

#[derive(Clone, Debug)]
struct Replica {
    serves: bool,
    load: ReplicaLoad,
}

/// A request that has not ended.
#[derive(Clone, Debug)]
struct Open {
    replica: ReplicaId,
    prompt_tokens: u32,
    /// Number of prompt tokens of the request that are still to be computed.
    new_tokens: u32,
    /// Hashes of blocks that the replica is expected to hold once the request's prompt is computed.
    claims: Vec<BlockHash>,
}

/// Places requests among replicas, without a clock and without random numbers: equal calls give equal results.
#[derive(Clone, Debug)]
pub struct Placement {
    config: PlacementConfig,
    replicas: Vec<Replica>,
    /// Blocks that replicas said they hold.
    held: PrefixIndex,
    /// Blocks of prompts that are being computed. The next field is the number of requests that each block is
    /// expected from.
    expected: PrefixIndex,
    claims: FxHashMap<(ReplicaId, BlockHash), u32>,
    open: FxHashMap<Ticket, Open>,
    next_ticket: u64,
    /// Index of the replica after the last chosen one, at which a round robin goes on.
    turn: usize,
}

impl Placement {
    /// A placement among `num_replicas` idle replicas that hold nothing.
    #[must_use]
    pub fn new(num_replicas: u32, config: PlacementConfig) -> Self {
        Self {
            config,
            replicas: vec![Replica { serves: true, load: ReplicaLoad::default() }; num_replicas as usize],
            held: PrefixIndex::new(num_replicas),
            expected: PrefixIndex::new(num_replicas),
            claims: FxHashMap::default(),
            open: FxHashMap::default(),
            next_ticket: 0,
            turn: 0,
        }
    }

    /// Chooses a replica among those that serve and that `may` allows, and counts the request there. Returns `None`
    /// if no replica is left to choose. `hashes` are the hashes of the full blocks of the prompt, which has
    /// `prompt_tokens` tokens.
    ///
    /// It takes the replica that holds fewest blocks among those of equal cost, then the first one.
    ///
    /// # Complexity
    /// O(replicas + blocks of the longest prefix · replicas / 64).
    pub fn place(
        &mut self,
        hashes: &[BlockHash],
        prompt_tokens: u32,
        may: impl Fn(ReplicaId) -> bool,
    ) -> Option<Placed> {
        let blocks = longest(&[&self.held, &self.expected], hashes);
        // The last token is computed in any case: its logits are needed.
        let cached = |replica: ReplicaId| {
            let tokens = u64::from(blocks[replica.index()]) * u64::from(self.config.block_size.get());
            u32::try_from(tokens).unwrap_or(u32::MAX).min(prompt_tokens.saturating_sub(1))
        };
        let able = |replica: &ReplicaId| self.replicas[replica.index()].serves && may(*replica);
        let all = (0..self.held.num_replicas()).map(ReplicaId::new);
        let cost = |replica: ReplicaId| {
            let load = self.replicas[replica.index()].load;
            let new_tokens = match self.config.policy {
                PlacementPolicy::PrefixAware => prompt_tokens - cached(replica),
                _ => 0,
            };
            (u64::from(new_tokens) + load.prefill_tokens) as f64
                + self.config.kv_weight * load.kv_tokens as f64
        };
        let replica = match self.config.policy {
            PlacementPolicy::RoundRobin => {
                let turn = self.turn;
                all.clone().skip(turn).chain(all.take(turn)).find(able)?
            }
            PlacementPolicy::LeastLoad | PlacementPolicy::PrefixAware => {
                let key = |replica: ReplicaId| (cost(replica), self.held.held(replica));
                let better = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                let costs = all.filter(able).map(|replica| (replica, key(replica)));
                costs.min_by(|a, b| better(&a.1, &b.1))?.0
            }
        };
        let cached_tokens = cached(replica);
        self.turn = (replica.index() + 1) % self.replicas.len();
        Some(self.count(replica, prompt_tokens, cached_tokens, hashes))
    }

    /// Counts a request of a replica. All blocks of its prompt are expected, even those that the replica holds now:
    /// they may be evicted before the request starts, and are then computed again.
    fn count(
        &mut self,
        replica: ReplicaId,
        prompt_tokens: u32,
        cached_tokens: u32,
        blocks: &[BlockHash],
    ) -> Placed {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let new_tokens = prompt_tokens - cached_tokens;
        let load = &mut self.replicas[replica.index()].load;
        load.requests += 1;
        load.prefill_tokens += u64::from(new_tokens);
        load.kv_tokens += u64::from(prompt_tokens);
        for &hash in blocks {
            let claims = self.claims.entry((replica, hash)).or_default();
            *claims += 1;
            if *claims == 1 {
                self.expected.store(replica, hash);
            }
        }
        self.open.insert(ticket, Open { replica, prompt_tokens, new_tokens, claims: blocks.to_vec() });
        Placed { ticket, replica, cached_tokens }
    }

    /// Reports that the prompt of a request has been computed, so that events now name its blocks. A request that has
    /// ended is ignored.
    pub fn prefilled(&mut self, ticket: Ticket) {
        let Some(open) = self.open.get_mut(&ticket) else { return };
        let (replica, claims) = (open.replica, std::mem::take(&mut open.claims));
        let new_tokens = std::mem::take(&mut open.new_tokens);
        self.replicas[replica.index()].load.prefill_tokens -= u64::from(new_tokens);
        for hash in claims {
            if let Some(count) = self.claims.get_mut(&(replica, hash)) {
                *count -= 1;
                if *count == 0 {
                    self.claims.remove(&(replica, hash));
                    self.expected.remove(replica, &hash);
                }
            }
        }
    }

    /// Reports that a request has ended, for whatever reason. A request that has already ended is ignored.
    pub fn ended(&mut self, ticket: Ticket) {
        self.prefilled(ticket);
        if let Some(open) = self.open.remove(&ticket) {
            let load = &mut self.replicas[open.replica.index()].load;
            load.requests -= 1;
            load.kv_tokens -= u64::from(open.prompt_tokens);
        }
    }

    /// Takes a cache event of a replica. Only events of the first attention group in the device pool count. Groups
    /// with windows keep fewer blocks, so that a prefix may be shorter than the index says.
    pub fn follow(&mut self, replica: ReplicaId, event: &CacheEvent) {
        let of_pool = |group: GroupId, medium: Medium| group == GroupId::new(0) && medium == Medium::Gpu;
        match event {
            CacheEvent::Stored(blocks) if of_pool(blocks.group, blocks.medium) => {
                for hash in &blocks.hashes {
                    self.held.store(replica, *hash);
                }
            }
            CacheEvent::Removed { key, medium, .. } if of_pool(key.group, *medium) => {
                self.held.remove(replica, &key.hash);
            }
            CacheEvent::AllCleared => self.held.clear(replica),
            _ => {}
        }
    }

    /// Sets whether a replica takes new requests. The requests that it has continue.
    pub fn set_serving(&mut self, replica: ReplicaId, serves: bool) {
        self.replicas[replica.index()].serves = serves;
    }

    /// Forgets the blocks of a replica and ends its requests, as after the loss of its device. Returns the tickets of
    /// the requests, oldest first. The requests may be placed anew.
    pub fn lost(&mut self, replica: ReplicaId) -> Vec<Ticket> {
        let of = |(ticket, open): (&Ticket, &Open)| (open.replica == replica).then_some(*ticket);
        let mut tickets: Vec<Ticket> = self.open.iter().filter_map(of).collect();
        tickets.sort_unstable();
        tickets.iter().for_each(|ticket| self.ended(*ticket));
        self.held.clear(replica);
        tickets
    }

    /// The load of a replica.
    #[must_use]
    pub fn load(&self, replica: ReplicaId) -> ReplicaLoad {
        self.replicas[replica.index()].load
    }

    /// The blocks that replicas said they hold.
    #[must_use]
    pub const fn index(&self) -> &PrefixIndex {
        &self.held
    }
}
