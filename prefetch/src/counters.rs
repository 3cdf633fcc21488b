//! Traffic per tier, and the share that computation hid.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::tier::TierName;

/// Traffic of one tier since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TierCounters {
    /// Number of blocks or shards served.
    pub hits: u64,
    /// Number of blocks or shards requested that were absent or unreadable.
    pub misses: u64,
    /// Number of calls that failed for another reason than absence; a failed read also counts as a miss.
    pub errors: u64,
    /// Time for which consumers were blocked on transfers whose last block came from this tier.
    pub wait: Duration,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

impl TierCounters {
    /// [`Self::wait`] in milliseconds.
    #[must_use]
    pub fn wait_ms(&self) -> f64 {
        self.wait.as_secs_f64() * 1e3
    }
}

/// Transfer time, and the part of it during which consumers waited.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Overlap {
    /// Time from the first load of a task to the end of its last, summed over tasks.
    pub transfer: Duration,
    /// The part of [`Self::transfer`] during which a consumer was blocked; never larger.
    pub waited: Duration,
}

impl Overlap {
    /// Fraction of the transfer time hidden by compute, 0 to 1; `None` before the first transfer.
    #[must_use]
    pub fn hidden(&self) -> Option<f64> {
        (!self.transfer.is_zero()).then(|| 1.0 - self.waited.as_secs_f64() / self.transfer.as_secs_f64())
    }
}

#[derive(Default, Debug)]
struct AtomicTier {
    hits: AtomicU64,
    misses: AtomicU64,
    errors: AtomicU64,
    wait_ns: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// Counters shared by a tier stack and everything that moves blocks through it.
#[derive(Default, Debug)]
pub struct Counters {
    tiers: Box<[(TierName, AtomicTier)]>,
    transfer_ns: AtomicU64,
    waited_ns: AtomicU64,
}

impl Counters {
    /// Counters of tiers with these names, all at zero.
    pub(crate) fn new(names: impl Iterator<Item = TierName>) -> Self {
        Self { tiers: names.map(|name| (name, AtomicTier::default())).collect(), ..Self::default() }
    }

    fn of(&self, name: TierName) -> &AtomicTier {
        let tier = self.tiers.iter().find(|(tier, _)| *tier == name);
        &tier.unwrap_or_else(|| panic!("a stack without a tier {name} counts for it")).1
    }

    /// The counters of one tier; all are zero for a tier that is not in the stack.
    #[must_use]
    pub fn tier(&self, name: TierName) -> TierCounters {
        let Some((_, tier)) = self.tiers.iter().find(|(tier, _)| *tier == name) else {
            return TierCounters::default();
        };
        TierCounters {
            hits: tier.hits.load(Relaxed),
            misses: tier.misses.load(Relaxed),
            errors: tier.errors.load(Relaxed),
            wait: Duration::from_nanos(tier.wait_ns.load(Relaxed)),
            bytes_read: tier.bytes_read.load(Relaxed),
            bytes_written: tier.bytes_written.load(Relaxed),
        }
    }

    /// Overlap over all tasks whose outcome has been seen.
    #[must_use]
    pub fn overlap(&self) -> Overlap {
        Overlap {
            transfer: Duration::from_nanos(self.transfer_ns.load(Relaxed)),
            waited: Duration::from_nanos(self.waited_ns.load(Relaxed)),
        }
    }

    pub(crate) fn hit(&self, tier: TierName, bytes: usize) {
        self.of(tier).hits.fetch_add(1, Relaxed);
        self.of(tier).bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn miss(&self, tier: TierName) {
        self.missed(tier, 1);
    }

    pub(crate) fn missed(&self, tier: TierName, blocks: u64) {
        self.of(tier).misses.fetch_add(blocks, Relaxed);
    }

    pub(crate) fn error(&self, tier: TierName) {
        self.of(tier).errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn written(&self, tier: TierName, bytes: usize) {
        self.of(tier).bytes_written.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn waited(&self, tier: TierName, time: Duration) {
        self.of(tier).wait_ns.fetch_add(nanos(time), Relaxed);
    }

    /// Records a finished transfer, and the part `waited` of its time in which consumers waited.
    pub(crate) fn transfer(&self, transfer: Duration, waited: Duration) {
        self.transfer_ns.fetch_add(nanos(transfer), Relaxed);
        self.waited_ns.fetch_add(nanos(waited.min(transfer)), Relaxed);
    }
}

/// Number of nanoseconds of a duration; saturates after 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
