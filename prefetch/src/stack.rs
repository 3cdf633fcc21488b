//! A stack of tiers, queried from the fastest down.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvblock::BlockHash;

use crate::counters::Counters;
use crate::tier::{BlockLayout, Stored, Tier, TierError, TierName, TierWarning};

/// Number of blocks per request of a prefix lookup: enough to hide round trips, few enough to waste little after a miss.
const PREFIX_CHUNK: usize = 32;

/// Tiers of falling speed that act as one: reads come from the fastest tier that has the block, writes go to
/// all.
///
/// When a read fails, the failure is counted and the next tier is tried, so that a corrupt or unreachable
/// copy costs time but never causes a wrong answer. An error is returned only when no tier can serve the
/// block.
///
/// ```
/// use std::sync::Arc;
/// use prefetch::kvblock::BlockHash;
/// use prefetch::policy::PolicyKind;
/// use prefetch::stack::TierStack;
/// use prefetch::tier::{BlockLayout, HostTier, TierName};
///
/// // A tier of memory for four blocks of 2 layers with 64 bytes each.
/// let layout = BlockLayout::new(2, 64).unwrap();
/// let stack = TierStack::new(vec![Arc::new(HostTier::new(layout, 4, PolicyKind::Lru, None))])?;
/// let prefix: Vec<BlockHash> = (0..3).map(|n| BlockHash::from_bytes([n; 32])).collect();
/// stack.store(prefix[0], &[10; 128])?;
/// stack.store(prefix[2], &[12; 128])?;
/// assert_eq!(stack.lookup_prefix(&prefix), [TierName::HOST], "block 1 is missing");
///
/// let mut block = [0; 128];
/// assert_eq!(stack.load(prefix[0], &mut block)?, TierName::HOST);
/// assert_eq!(block, [10; 128]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TierStack {
    tiers: Vec<Arc<dyn Tier>>,
    layout: BlockLayout,
    counters: Arc<Counters>,
}

impl fmt::Debug for TierStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<TierName> = self.names().collect();
        f.debug_struct("TierStack")
            .field("tiers", &names)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl TierStack {
    /// Stacks `tiers`, fastest first. They may be of any kind, also several of one kind under different names.
    ///
    /// # Errors
    /// [`StackError`] when there is no tier, when names repeat, or when block layouts differ.
    pub fn new(tiers: Vec<Arc<dyn Tier>>) -> Result<Self, StackError> {
        let layout = tiers.first().ok_or(StackError::Empty)?.layout();
        for (depth, tier) in tiers.iter().enumerate() {
            let (tier, found, expected) = (tier.name(), tier.layout(), layout);
            if tiers[..depth].iter().any(|upper| upper.name() == tier) {
                return Err(StackError::SameName { tier });
            }
            if found != expected {
                return Err(StackError::Layout { tier, found, expected });
            }
        }
        let counters = Arc::new(Counters::new(tiers.iter().map(|tier| tier.name())));
        Ok(Self { tiers, layout, counters })
    }

    /// The block layout that all tiers share.
    #[must_use]
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// Traffic so far.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The tiers, fastest first.
    pub fn names(&self) -> impl Iterator<Item = TierName> + '_ {
        self.tiers.iter().map(|tier| tier.name())
    }

    /// The fastest tier that holds `key`. A tier that cannot be queried counts an error and is taken to hold
    /// nothing.
    #[must_use]
    pub fn lookup(&self, key: BlockHash) -> Option<TierName> {
        self.lookup_many(&[key])[0]
    }

    /// [`Self::lookup`] for each of `keys`; each tier is queried once, for all keys that no faster tier
    /// holds.
    #[must_use]
    pub fn lookup_many(&self, keys: &[BlockHash]) -> Vec<Option<TierName>> {
        let mut found = vec![None; keys.len()];
        for tier in &self.tiers {
            let open: Vec<usize> = (0..keys.len()).filter(|&at| found[at].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let asked: Vec<BlockHash> = open.iter().map(|&at| keys[at]).collect();
            match guarded(asked[0], || tier.contains_many(&asked)) {
                Ok(held) => {
                    let held = open.into_iter().zip(held).filter(|(_, held)| *held);
                    held.for_each(|(at, _)| found[at] = Some(tier.name()));
                }
                Err(_) => self.counters.error(tier.name()),
            }
        }
        found
    }

    /// The tiers that hold the leading blocks of `keys`, up to the first block that no tier holds.
    #[must_use]
    pub fn lookup_prefix(&self, keys: &[BlockHash]) -> Vec<TierName> {
        let mut found = Vec::new();
        for chunk in keys.chunks(PREFIX_CHUNK) {
            let run = found.len();
            found.extend(self.lookup_many(chunk).into_iter().map_while(|tier| tier));
            if found.len() < run + chunk.len() {
                break;
            }
        }
        found
    }

    /// Counts a miss in every tier for blocks that a lookup found in no tier.
    pub fn count_misses(&self, blocks: u64) {
        self.names().for_each(|tier| self.counters.missed(tier, blocks));
    }

    /// Checks that every tier can be used; see [`Tier::probe`].
    ///
    /// # Errors
    /// The error of the first tier that cannot.
    pub fn probe(&self) -> Result<(), TierError> {
        self.tiers.iter().try_for_each(|tier| tier.probe())
    }

    /// Reads a block from the fastest tier that can serve it and copies it into the faster ones.
    ///
    /// # Errors
    /// The last failure, or [`TierError::NotFound`] of the slowest tier.
    pub fn load(&self, key: BlockHash, into: &mut [u8]) -> Result<TierName, TierError> {
        let depth = self.first_to_serve(key, into.len(), |tier| tier.read_block(key, into))?;
        for upper in &self.tiers[..depth] {
            // A full faster tier only costs speed; it is counted, and the block was read all the same.
            let _ = self.write_to(upper, key, into);
        }
        Ok(self.tiers[depth].name())
    }

    /// Writes a block to every tier and returns the tiers that did not have it yet.
    ///
    /// # Errors
    /// The last failure, when no tier wrote or held the block.
    pub fn store(&self, key: BlockHash, block: &[u8]) -> Result<Vec<TierName>, TierError> {
        let mut written = Vec::new();
        let mut accepted = false;
        let mut failure = None;
        for tier in &self.tiers {
            match self.write_to(tier, key, block) {
                Ok(stored) => {
                    accepted = true;
                    if stored == Stored::Written {
                        written.push(tier.name());
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if !accepted => Err(error),
            _ => Ok(written),
        }
    }

    /// Removes a block from every tier, for instance because its contents turned out to be bad; true when any
    /// tier held it.
    ///
    /// # Errors
    /// The first failure, after all tiers were tried.
    pub fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        let results: Vec<_> = self.tiers.iter().map(|tier| guarded(key, || tier.remove(key))).collect();
        results.into_iter().try_fold(false, |any, removed| Ok(any | removed?))
    }

    /// Flushes every tier; failures are counted.
    ///
    /// # Errors
    /// The first failure, after all tiers were tried.
    pub fn flush(&self) -> Result<(), TierError> {
        let flush = |tier: &Arc<dyn Tier>| tier.flush().inspect_err(|_| self.counters.error(tier.name()));
        let results: Vec<_> = self.tiers.iter().map(flush).collect();
        results.into_iter().collect()
    }

    /// Returns the faults that tiers have repaired or worked around since the last call.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<TierWarning> {
        self.tiers.iter().flat_map(|tier| tier.take_warnings()).collect()
    }

    fn first_to_serve(
        &self,
        key: BlockHash,
        bytes: usize,
        mut read: impl FnMut(&dyn Tier) -> Result<(), TierError>,
    ) -> Result<usize, TierError> {
        let mut failure = None;
        for (depth, tier) in self.tiers.iter().enumerate() {
            match guarded(key, || read(tier.as_ref())) {
                Ok(()) => {
                    self.counters.hit(tier.name(), bytes);
                    return Ok(depth);
                }
                Err(TierError::NotFound { .. }) => self.counters.miss(tier.name()),
                Err(error) => {
                    self.counters.miss(tier.name());
                    self.counters.error(tier.name());
                    failure = Some(error);
                }
            }
        }
        let slowest = self.tiers[self.tiers.len() - 1].name();
        Err(failure.unwrap_or(TierError::NotFound { tier: slowest, key }))
    }

    fn write_to(&self, tier: &Arc<dyn Tier>, key: BlockHash, block: &[u8]) -> Result<Stored, TierError> {
        let stored = guarded(key, || tier.write(key, block));
        match &stored {
            Ok(Stored::Written) => self.counters.written(tier.name(), block.len()),
            Ok(_) => {}
            Err(_) => self.counters.error(tier.name()),
        }
        stored
    }
}

/// Turns a panic of a tier into a failure of that tier, so that the next one is tried.
fn guarded<T>(key: BlockHash, call: impl FnOnce() -> Result<T, TierError>) -> Result<T, TierError> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result.unwrap_or(Err(TierError::Panicked { key }))
}

/// Why tiers do not form a stack.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StackError {
    /// No tier was given.
    #[error("a tier stack needs at least one tier")]
    Empty,
    /// Two tiers have the same name, by which counters and errors distinguish tiers.
    #[error("two tiers of a stack are named {tier}")]
    SameName {
        /// The name.
        tier: TierName,
    },
    /// A tier holds blocks with another layout.
    #[error("the {tier} tier holds {found:?}, the stack {expected:?}")]
    Layout {
        /// The tier.
        tier: TierName,
        /// Layout of its blocks.
        found: BlockLayout,
        /// Layout of the stack's blocks.
        expected: BlockLayout,
    },
}
