//! Changes of what tiers hold, for components that mirror it.

use std::sync::{Arc, Mutex, Weak};

use kvblock::BlockHash;

use crate::sync::lock;
use crate::tier::TierName;

/// A block that a tier holds from now on, or no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Change {
    /// The tier.
    pub tier: TierName,
    /// Key of the block.
    pub key: BlockHash,
    /// Whether the tier holds the block now.
    pub held: bool,
}

/// Queue of the changes of one or several tiers. Clones are the same queue.
///
/// Host and disk tiers put in what they hold when the queue begins to follow them, then every change of their index, in order:
/// whoever reads the queue knows what they hold. Several queues may follow one host tier. A remote tier, which others change
/// too, puts in what its own calls find: each block that it wrote, found, missed or removed.
///
/// ```
/// use prefetch::changes::Changes;
/// use prefetch::kvblock::BlockHash;
/// use prefetch::policy::PolicyKind;
/// use prefetch::tier::{BlockLayout, HostTier, Tier};
///
/// let changes = Changes::default();
/// let layout = BlockLayout::new(1, 64).unwrap();
/// let tier = HostTier::new(layout, 1, PolicyKind::Lru, None);
/// let [a, b] = [1, 2].map(|n| BlockHash::from_bytes([n; 32]));
/// tier.write(a, &[0; 64])?;
/// tier.follow(&changes);
/// tier.write(b, &[0; 64])?; // The tier has room for one.
/// let told: Vec<_> = changes.take().iter().map(|change| (change.key, change.held)).collect();
/// assert_eq!(told, [(a, true), (a, false), (b, true)]);
/// # Ok::<(), prefetch::tier::TierError>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct Changes(Arc<Mutex<Vec<Change>>>);

impl Changes {
    /// The changes since the last call, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<Change> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// A weak reference to the queue, through which a tier reports its changes.
    pub(crate) fn follower(&self, tier: TierName) -> Follower {
        Follower { tier, queue: Arc::downgrade(&self.0) }
    }

    pub(crate) fn tell(&self, tier: TierName, key: BlockHash, held: bool) {
        lock(&self.0).push(Change { tier, key, held });
    }
}

impl PartialEq for Changes {
    /// Whether both are the same queue.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Changes {}

/// A weak reference to a queue, through which a tier reports its changes while anybody can read them.
pub(crate) struct Follower {
    tier: TierName,
    queue: Weak<Mutex<Vec<Change>>>,
}

impl Follower {
    /// Appends a change to the queue; false if the queue has no reader any more.
    pub(crate) fn tell(&self, key: BlockHash, held: bool) -> bool {
        let queue = self.queue.upgrade().map(Changes);
        queue.inspect(|queue| queue.tell(self.tier, key, held)).is_some()
    }
}
