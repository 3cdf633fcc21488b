//! Traffic per tier, and how much of it compute hid.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::tier::TierKind;

/// Traffic of one tier since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TierCounters {
    /// Blocks or shards served.
    pub hits: u64,
    /// Blocks or shards requested that were absent or unreadable.
    pub misses: u64,
    /// Calls that failed for another reason than absence; a failed read also counts as a miss.
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
    tiers: [AtomicTier; TierKind::ALL.len()],
    transfer_ns: AtomicU64,
    waited_ns: AtomicU64,
}

impl Counters {
    /// The counters of one tier.
    #[must_use]
    pub fn tier(&self, kind: TierKind) -> TierCounters {
        let tier = &self.tiers[kind as usize];
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

    pub(crate) fn hit(&self, kind: TierKind, bytes: usize) {
        self.tiers[kind as usize].hits.fetch_add(1, Relaxed);
        self.tiers[kind as usize].bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn miss(&self, kind: TierKind) {
        self.missed(kind, 1);
    }

    pub(crate) fn missed(&self, kind: TierKind, blocks: u64) {
        self.tiers[kind as usize].misses.fetch_add(blocks, Relaxed);
    }

    pub(crate) fn error(&self, kind: TierKind) {
        self.tiers[kind as usize].errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn written(&self, kind: TierKind, bytes: usize) {
        self.tiers[kind as usize].bytes_written.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn waited(&self, kind: TierKind, time: Duration) {
        self.tiers[kind as usize].wait_ns.fetch_add(nanos(time), Relaxed);
    }

    /// Records one finished transfer that consumers waited on for `waited` of its time.
    pub(crate) fn transfer(&self, transfer: Duration, waited: Duration) {
        self.transfer_ns.fetch_add(nanos(transfer), Relaxed);
        self.waited_ns.fetch_add(nanos(waited.min(transfer)), Relaxed);
    }
}

/// Saturates after 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
