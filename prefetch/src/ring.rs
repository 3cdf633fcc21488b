//! The ring pipeline: attention over more blocks than the device holds, loads running ahead of compute.
//!
//! Library only: the engine's ring also places the blocks that a step writes and several sequences at once
//! (`decoder::keys::stream` of models). This is the schedule of one stream by itself, for other engines and for simulations.

use std::fmt;

use kvblock::{BlockId, BlockIdx};

/// A selected block and its location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingBlock {
    /// Its position in the sequence.
    pub block: BlockIdx,
    /// The device block that already holds it; without one, the block goes through a ring slot.
    pub resident: Option<BlockId>,
}

/// Memory that attention reads a block from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// A slot of the ring.
    Slot(u32),
    /// A device block outside of the ring.
    Resident(BlockId),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot {slot}"),
            Self::Resident(block) => write!(f, "{block:?}"),
        }
    }
}

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    /// Its last reader has finished.
    Free,
    /// A copy into it is running.
    Loading(BlockIdx),
    /// Its block has arrived.
    Ready(BlockIdx),
    /// Attention reads it.
    Attending(BlockIdx),
}

/// Why a ring cannot run a selection.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RingError {
    /// Some blocks must be loaded, but there is no slot to load them into.
    #[error("{missing} blocks to load through a ring without slots")]
    NoSlots {
        /// Blocks that are not resident.
        missing: usize,
    },
    /// The selection must be strictly ascending, since it is the order of the merge.
    #[error("block {after:?} follows {before:?} in a selection that must ascend")]
    NotAscending {
        /// A block.
        before: BlockIdx,
        /// The block after it.
        after: BlockIdx,
    },
}

/// State of one pass over a selection. Pure: it says what may start, and is told what has ended.
///
/// Load `i` goes to slot `i % N` of `N` slots, as soon as the slot's last reader has finished. Blocks are
/// attended to and merged in ascending position, resident or not, so the result is bitwise the same for every
/// `N` and every timing.
#[derive(Clone, Debug)]
pub struct Ring {
    blocks: Vec<RingBlock>,
    /// Indices into `blocks` of those to load, in order.
    loads: Vec<usize>,
    slots: Vec<SlotState>,
    next_load: usize,
    next_attend: usize,
    /// Number of loads that attention has consumed or is consuming.
    loads_attended: usize,
}

impl Ring {
    /// A pass over `selection` with `slots` slots.
    ///
    /// # Errors
    /// [`RingError`] when blocks must be loaded and there is no slot, or the selection is not ascending.
    pub fn new(selection: &[RingBlock], slots: u32) -> Result<Self, RingError> {
        if let Some(pair) = selection.windows(2).find(|pair| pair[0].block >= pair[1].block) {
            return Err(RingError::NotAscending { before: pair[0].block, after: pair[1].block });
        }
        let loads: Vec<usize> =
            selection.iter().enumerate().filter(|(_, b)| b.resident.is_none()).map(|(i, _)| i).collect();
        if slots == 0 && !loads.is_empty() {
            return Err(RingError::NoSlots { missing: loads.len() });
        }
        Ok(Self {
            blocks: selection.to_vec(),
            loads,
            slots: vec![SlotState::Free; slots as usize],
            next_load: 0,
            next_attend: 0,
            loads_attended: 0,
        })
    }

    /// Starts the next load if its slot is free: the block to copy and the slot to copy it to.
    pub fn start_load(&mut self) -> Option<(BlockIdx, u32)> {
        let block = self.blocks[*self.loads.get(self.next_load)?].block;
        let slot = self.slot_of(self.next_load)?;
        let state = &mut self.slots[slot as usize];
        if *state != SlotState::Free {
            return None;
        }
        *state = SlotState::Loading(block);
        self.next_load += 1;
        Some((block, slot))
    }

    /// Reports that the copy into `slot` is done.
    ///
    /// # Panics
    /// When no copy into it was running.
    pub fn loaded(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        let SlotState::Loading(block) = *state else {
            panic!("slot {slot} reports a load while it is {state:?}");
        };
        *state = SlotState::Ready(block);
    }

    /// Starts attention over the next block in position order, if its bytes have arrived. The caller must
    /// merge its result before that of any later block.
    pub fn start_attend(&mut self) -> Option<(BlockIdx, Place)> {
        let RingBlock { block, resident } = *self.blocks.get(self.next_attend)?;
        let place = match resident {
            Some(device) => Place::Resident(device),
            None => {
                let slot = self.slot_of(self.loads_attended)?;
                let state = &mut self.slots[slot as usize];
                if *state != SlotState::Ready(block) {
                    return None;
                }
                *state = SlotState::Attending(block);
                self.loads_attended += 1;
                Place::Slot(slot)
            }
        };
        self.next_attend += 1;
        Some((block, place))
    }

    /// Reports that attention over `slot` is done, so that the slot may be overwritten.
    ///
    /// # Panics
    /// When the slot was not being read.
    pub fn attended(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        assert!(
            matches!(state, SlotState::Attending(_)),
            "slot {slot} reports attention while it is {state:?}"
        );
        *state = SlotState::Free;
    }

    /// Whether attention over every block has started.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next_attend == self.blocks.len()
    }

    fn slot_of(&self, load: usize) -> Option<u32> {
        let slot = load.checked_rem(self.slots.len())?;
        Some(u32::try_from(slot).expect("slots are counted in u32"))
    }
}

/// A command of the static form of the pipeline, for queues that run in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingOp {
    /// Copy a block into a slot, concurrently with compute.
    Load {
        /// The block.
        block: BlockIdx,
        /// The slot.
        slot: u32,
    },
    /// Compute waits until the slot's copy is done.
    Wait {
        /// The slot.
        slot: u32,
    },
    /// Attention over one block, not causal.
    Attend {
        /// The block.
        block: BlockIdx,
        /// Memory that holds it.
        place: Place,
    },
    /// From here on the slot may be overwritten.
    ComputeDone {
        /// The slot.
        slot: u32,
    },
    /// Merge the block's output and log-sum-exp into the accumulator.
    Merge {
        /// The block.
        block: BlockIdx,
    },
}

impl fmt::Display for RingOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { block, slot } => write!(f, "load {block:?} -> slot {slot}"),
            Self::Wait { slot } => write!(f, "wait slot {slot}"),
            Self::Attend { block, place } => write!(f, "attend {block:?} in {place}"),
            Self::ComputeDone { slot } => write!(f, "done slot {slot}"),
            Self::Merge { block } => write!(f, "merge {block:?}"),
        }
    }
}

/// The whole pass as a list: preload `min(N, len)` blocks; then, for each block, wait, attend, free the slot,
/// merge, and start the load `N` places later.
///
/// # Errors
/// As [`Ring::new`].
pub fn schedule(selection: &[RingBlock], slots: u32) -> Result<Vec<RingOp>, RingError> {
    let mut ring = Ring::new(selection, slots)?;
    let mut ops = Vec::with_capacity(selection.len() * 5);
    loop {
        while let Some((block, slot)) = ring.start_load() {
            ops.push(RingOp::Load { block, slot });
        }
        if ring.is_done() {
            return Ok(ops);
        }
        let (block, place) = match ring.start_attend() {
            Some(next) => next,
            None => {
                let slot = ring.slot_of(ring.loads_attended).expect("a block to load has a slot");
                ring.loaded(slot);
                ops.push(RingOp::Wait { slot });
                continue;
            }
        };
        ops.push(RingOp::Attend { block, place });
        if let Place::Slot(slot) = place {
            ring.attended(slot);
            ops.push(RingOp::ComputeDone { slot });
        }
        ops.push(RingOp::Merge { block });
    }
}

/// Division of the device slots between loads and new tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingUse {
    /// Prefill whose chunk lies in a buffer of its own: all slots take loads.
    Prefill,
    /// Prefill that writes chunk `chunk` into slot `chunk % N`: the other slots take loads.
    PrefillInRing {
        /// Index of the chunk.
        chunk: u32,
    },
    /// Decode: slot 0 takes new tokens, the other slots take loads.
    Decode,
}

impl RingUse {
    /// The device slots that loads go through, in turn; ring slot `i` is the `i`-th of them.
    #[must_use]
    pub fn load_slots(self, slots: u32) -> Vec<u32> {
        let write_slot = match self {
            Self::Prefill => None,
            Self::PrefillInRing { chunk } => chunk.checked_rem(slots),
            Self::Decode => Some(0),
        };
        (0..slots).filter(|&slot| Some(slot) != write_slot).collect()
    }
}
