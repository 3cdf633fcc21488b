//! Choice of the block that a full tier evicts (LRU or ARC), and a filter that keeps out blocks used only once.

mod arc;
mod lru;

pub use arc::ArcPolicy;
pub use lru::LruPolicy;

use kvblock::BlockHash;
use rustc_hash::FxHashMap;

use crate::recency::Recency;

/// An order of eviction over the blocks of one tier.
pub trait EvictionPolicy: Send {
    /// Adds a block that was given a slot.
    fn insert(&mut self, key: BlockHash);

    /// Records that a block was requested, resident or not. `ready` is false while it is still being written.
    fn touch(&mut self, key: BlockHash, ready: bool);

    /// The next `count` blocks to evict among those `evictable`, in order, or `None` when there are fewer.
    fn victims(&self, count: usize, evictable: &dyn Fn(&BlockHash) -> bool) -> Option<Vec<BlockHash>>;

    /// Removes a block that [`Self::victims`] named and that is evicted; the policy may remember its hash.
    fn evict(&mut self, key: BlockHash);

    /// Removes and forgets a block that leaves the tier for another reason than eviction.
    fn remove(&mut self, key: BlockHash);
}

/// The policies to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// Adaptive replacement (Megiddo and Modha, FAST 2003).
    Arc,
}

impl PolicyKind {
    /// An empty policy for a tier of `capacity` blocks.
    #[must_use]
    pub fn build(self, capacity: usize) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Lru => Box::new(LruPolicy::default()),
            Self::Arc => Box::new(ArcPolicy::new(capacity)),
        }
    }
}

/// Admits a block to a tier only after enough requests for it, so that prompts seen once do not wear out a
/// disk.
#[derive(Clone, Debug)]
pub struct ReuseFilter {
    requests_min: u32,
    tracked_max: usize,
    requests: FxHashMap<BlockHash, u32>,
    recency: Recency,
}

impl ReuseFilter {
    /// A filter that admits a block from its `requests_min`-th request on, and remembers the `tracked_max`
    /// most recently requested blocks.
    #[must_use]
    pub fn new(requests_min: u32, tracked_max: usize) -> Self {
        Self { requests_min, tracked_max, requests: FxHashMap::default(), recency: Recency::default() }
    }

    /// Counts a request.
    pub fn request(&mut self, key: BlockHash) {
        let count = self.requests.entry(key).or_default();
        *count = count.saturating_add(1);
        self.recency.touch(key);
        while self.requests.len() > self.tracked_max {
            let oldest = self.recency.pop_oldest().expect("counts and recency list hold the same blocks");
            self.requests.remove(&oldest);
        }
    }

    /// Whether the block may be stored.
    #[must_use]
    pub fn admits(&self, key: &BlockHash) -> bool {
        self.requests.get(key).copied().unwrap_or(0) >= self.requests_min
    }
}
