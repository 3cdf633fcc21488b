//! Adaptive replacement: balances recency against frequency by observing which blocks it evicted too early.

use kvblock::BlockHash;

use super::EvictionPolicy;
use crate::recency::Recency;

/// Two lists of resident blocks, used once (T1) and more than once (T2), each with a list of the hashes that it
/// evicted (B1, B2). A request for a hash in B1 shows that T1 is too short, and a request for one in B2 shows that T2
/// is. The target size of T1 then moves by the ratio of the two lists, at least 1.
///
/// After *ARC: A Self-Tuning, Low Overhead Replacement Cache* (Megiddo, Modha, FAST 2003), with requests and
/// stores as separate events, as tiers see them.
#[derive(Debug)]
pub struct ArcPolicy {
    once: Recency,
    often: Recency,
    ghosts_once: Recency,
    ghosts_often: Recency,
    /// Wanted length of `once`, 0 to `capacity`.
    target_once: f64,
    capacity: usize,
}

impl ArcPolicy {
    /// An empty policy; each ghost list remembers `capacity` hashes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            once: Recency::default(),
            often: Recency::default(),
            ghosts_once: Recency::default(),
            ghosts_often: Recency::default(),
            target_once: 0.0,
            capacity,
        }
    }

    /// Lengths of T1, T2, B1, B2 and the target length of T1.
    #[must_use]
    pub fn lengths(&self) -> ([usize; 4], f64) {
        let lengths = [self.once.len(), self.often.len(), self.ghosts_once.len(), self.ghosts_often.len()];
        (lengths, self.target_once)
    }
}

fn step(other: &Recency, hit: &Recency) -> f64 {
    (other.len() as f64 / hit.len() as f64).max(1.0)
}

impl EvictionPolicy for ArcPolicy {
    fn insert(&mut self, key: BlockHash) {
        self.ghosts_once.remove(&key);
        self.ghosts_often.remove(&key);
        self.once.touch(key);
    }

    fn touch(&mut self, key: BlockHash, ready: bool) {
        if self.once.contains(&key) {
            // The request that stores a block is not yet a second use.
            if ready {
                self.once.remove(&key);
                self.often.touch(key);
            } else {
                self.once.touch(key);
            }
        } else if self.often.contains(&key) {
            self.often.touch(key);
        } else if self.ghosts_once.contains(&key) {
            let grown = self.target_once + step(&self.ghosts_often, &self.ghosts_once);
            self.target_once = grown.min(self.capacity as f64);
            self.ghosts_once.touch(key);
        } else if self.ghosts_often.contains(&key) {
            self.target_once = (self.target_once - step(&self.ghosts_once, &self.ghosts_often)).max(0.0);
            self.ghosts_often.touch(key);
        }
    }

    fn victims(&self, count: usize, evictable: &dyn Fn(&BlockHash) -> bool) -> Option<Vec<BlockHash>> {
        let mut once = self.once.iter().filter(evictable).peekable();
        let mut often = self.often.iter().filter(evictable).peekable();
        let mut once_left = self.once.len();
        let mut victims = Vec::with_capacity(count);
        while victims.len() < count {
            let from_once =
                once.peek().is_some() && (once_left as f64 >= self.target_once || often.peek().is_none());
            if from_once {
                once_left -= 1;
                victims.extend(once.next());
            } else {
                victims.push(often.next()?);
            }
        }
        Some(victims)
    }

    fn evict(&mut self, key: BlockHash) {
        let (resident, ghosts) = if self.once.contains(&key) {
            (&mut self.once, &mut self.ghosts_once)
        } else {
            (&mut self.often, &mut self.ghosts_often)
        };
        if resident.remove(&key) {
            ghosts.touch(key);
            while ghosts.len() > self.capacity {
                ghosts.pop_oldest();
            }
        }
    }

    fn remove(&mut self, key: BlockHash) {
        for list in [&mut self.once, &mut self.often, &mut self.ghosts_once, &mut self.ghosts_often] {
            list.remove(&key);
        }
    }
}
