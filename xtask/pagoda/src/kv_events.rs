//! Events of the KV cache, for those who send requests to the engine that has most of their prompt.
//!
//! Whoever does what all events of an engine say knows what a request to it would find:
//!
//! - [`Gpu`](Medium::Gpu) is the pool of the engine, also those of its blocks that are in memory of the host because
//!   the device has no room for them. [`CacheEvent::AllCleared`] comes if the prefix cache is emptied, or the device lost.
//! - [`Cpu`](Medium::Cpu) is the host tier, [`Storage`](Medium::Storage) are the tiers of disk and remote store, with
//!   [`CacheEvents::All`]. A block that a disk or a store holds from before is told of when a request first asks for it: a tier
//!   keeps hashes of blocks, and not their tokens. Other engines may remove blocks from a store that they share; that is told of
//!   when a request misses them. A host tier that engines share is told of by each of them, as far as its own requests saved or
//!   looked for the blocks.
//!
//! Hashes are SHA-256 along the prompt from a root. They are the same in every process with the same block size and
//! [policy of prefill](crate::Sparse), equal settings of [`reproducible`](crate::EngineOptions::reproducible) and, with it, of
//! [`coop`](crate::EngineOptions::coop). The model is not a part of them: whoever follows engines of several models keeps
//! these apart.

use std::fmt;

pub use kvblock::{
    AttentionKind, BlockHash, CacheEvent, CacheKey, ExtraKey, GroupId, KvCacheGroup, Medium, PageLayout,
    StoredBlocks,
};

/// Places of the KV cache whose changes an engine tells its [followers](crate::Engine::follow).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CacheEvents {
    /// Nothing is recorded.
    #[default]
    None,
    /// The pool of the device.
    Device,
    /// The pool and the tiers. It takes memory for each block that the tiers hold: its tokens and some 300 bytes. Of blocks that
    /// only a remote store holds, the last 262,144 that requests wrote or found are kept; older ones are told of as removed.
    All,
}

impl CacheEvents {
    /// Whether anything is recorded.
    pub(crate) fn any(self) -> bool {
        self != Self::None
    }
}

/// Followers of an engine's KV cache.
#[derive(Default)]
pub(crate) struct Followers(Vec<Follower>);

type Follower = Box<dyn FnMut(&[CacheEvent]) + Send>;

impl Followers {
    pub(crate) fn add(&mut self, follower: impl FnMut(&[CacheEvent]) + Send + 'static) {
        self.0.push(Box::new(follower));
    }

    pub(crate) fn tell(&mut self, events: &[CacheEvent]) {
        if !events.is_empty() {
            self.0.iter_mut().for_each(|follower| follower(events));
        }
    }
}

impl fmt::Debug for Followers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} followers", self.0.len())
    }
}
