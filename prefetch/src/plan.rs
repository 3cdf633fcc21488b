//! The pure planner: which blocks to fetch, for whom, in which order.

use std::fmt;

use kvblock::{BlockHash, SeqId};
use rustc_hash::FxHashSet;

/// Urgency of a fetch. Classes are served in this order; inside a class, first in first out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Priority {
    /// Needed by the next request to run.
    Urgent,
    /// Needed by one of the four requests after the next.
    High,
    /// Needed by one of the twelve requests after those of `High`.
    Normal,
    /// Further away; dropped first when the queue is full.
    Low,
}

impl Priority {
    /// Every class, most urgent first; `priority as usize` indexes it.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    /// The class of the request at `position` of the batch: 0 is urgent, up to 4 high, up to 16 normal, else
    /// low.
    #[must_use]
    pub const fn of_position(position: u32) -> Self {
        match position {
            0 => Self::Urgent,
            1..=4 => Self::High,
            5..=16 => Self::Normal,
            _ => Self::Low,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Urgent => "URGENT",
            Self::High => "HIGH",
            Self::Normal => "NORMAL",
            Self::Low => "LOW",
        })
    }
}

/// The blocks that one request is about to attend to.
#[derive(Clone, Copy, Debug)]
pub struct BlockDemand<'a> {
    /// The request.
    pub seq: SeqId,
    /// Position of the request in the batch; 0 runs first.
    pub position: u32,
    /// The selected blocks, most important first.
    pub selected: &'a [BlockHash],
}

/// Limits of one plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Maximum number of fetches (one per request).
    pub fetches_max: usize,
    /// Maximum number of distinct blocks over all fetches.
    pub blocks_max: usize,
}

/// Blocks to load for one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// The request.
    pub seq: SeqId,
    /// Urgency.
    pub priority: Priority,
    /// Selected blocks that are not resident, most important first, without repeats.
    pub blocks: Vec<BlockHash>,
}

impl fmt::Display for Fetch {
    /// Writes a line of a plan trace, such as `q7 HIGH h01000000 h02000000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:<6}", self.seq, self.priority)?;
        self.blocks.iter().try_for_each(|block| write!(f, " {block:?}"))
    }
}

/// Plans the fetches of a step: for each request in batch order, its selected blocks that are not resident.
///
/// Only blocks that are selected and missing are fetched. A block that several requests want appears in each
/// of their fetches, since each must wait for it, but counts once against the budget, since the engine loads
/// it once. A request whose blocks are all resident, or for which no budget is left, gets no fetch. Requests
/// at the same position keep their order.
///
/// # Complexity
/// O(P log P + B) for P requests with B selected blocks.
#[must_use]
pub fn plan(
    wants: &[BlockDemand<'_>],
    is_resident: impl Fn(BlockHash) -> bool,
    budget: Budget,
) -> Vec<Fetch> {
    let mut by_position: Vec<&BlockDemand<'_>> = wants.iter().collect();
    by_position.sort_by_key(|want| want.position);

    let mut planned = FxHashSet::default();
    let mut fetches = Vec::new();
    for want in by_position {
        if fetches.len() == budget.fetches_max {
            break;
        }
        let mut seen = FxHashSet::default();
        let mut blocks = Vec::new();
        for &block in want.selected {
            if is_resident(block) || !seen.insert(block) {
                continue;
            }
            if planned.contains(&block) {
                blocks.push(block);
            } else if planned.len() < budget.blocks_max {
                planned.insert(block);
                blocks.push(block);
            }
        }
        if !blocks.is_empty() {
            fetches.push(Fetch { seq: want.seq, priority: Priority::of_position(want.position), blocks });
        }
    }
    fetches
}
