//! Statistics of prefix hits.

use std::collections::VecDeque;

/// Counters over a set of lookups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HitCount {
    /// Number of lookups.
    pub requests: u64,
    /// Number of tokens of the prefixes that were looked up.
    pub queried_tokens: u64,
    /// Number of tokens found.
    pub hit_tokens: u64,
}

impl HitCount {
    /// Share of the tokens that were found, in `[0, 1]`; 0 before the first lookup.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
    pub fn rate(&self) -> f64 {
        if self.queried_tokens == 0 { 0.0 } else { self.hit_tokens as f64 / self.queried_tokens as f64 }
    }

    fn add(&mut self, queried_tokens: u64, hit_tokens: u64) {
        self.requests += 1;
        self.queried_tokens += queried_tokens;
        self.hit_tokens += hit_tokens;
    }
}

/// Prefix statistics: totals, and a window over the most recent requests.
#[derive(Clone, Debug)]
pub struct PrefixStats {
    total: HitCount,
    resumed: HitCount,
    recent: VecDeque<(u64, u64)>,
    window: usize,
}

impl PrefixStats {
    /// Statistics with a window of `window` requests.
    #[must_use]
    pub fn new(window: usize) -> Self {
        Self { total: HitCount::default(), resumed: HitCount::default(), recent: VecDeque::new(), window }
    }

    /// Counts one lookup. A resumed sequence finds its own blocks again, so it is counted apart.
    pub fn record(&mut self, queried_tokens: u32, hit_tokens: u32, resumed: bool) {
        let (queried, hit) = (u64::from(queried_tokens), u64::from(hit_tokens));
        if resumed {
            self.resumed.add(queried, hit);
            return;
        }
        self.total.add(queried, hit);
        self.recent.push_back((queried, hit));
        if self.recent.len() > self.window {
            self.recent.pop_front();
        }
    }

    /// Counters over all lookups of new sequences.
    #[must_use]
    pub const fn total(&self) -> HitCount {
        self.total
    }

    /// Counters over all lookups of preempted sequences.
    #[must_use]
    pub const fn resumed(&self) -> HitCount {
        self.resumed
    }

    /// Counters over the lookups of new sequences inside the window. O(window).
    #[must_use]
    pub fn recent(&self) -> HitCount {
        let mut count = HitCount::default();
        self.recent.iter().for_each(|&(queried, hit)| count.add(queried, hit));
        count
    }
}
