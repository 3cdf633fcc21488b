//! Blocks that live in memory of the host, behind a pool on the device that is too small for a context.
//!
//! Block ids count on: the first ones are resident on the device, the others lie in host buffers. Attention goes through
//! the keys in chunks; what of a chunk lies on the host is copied into a slot of a ring, which takes the place of the
//! last blocks of the device's buffers. So the ring is a part of the same buffers that kernels read anyway.
//!
//! Where a policy selects what is attended, all blocks live on the host, and most of the device's buffers are slots for
//! pages of selected blocks; the ring serves the rows that attend to everything.

use std::ops::Range;

/// Extension of the pool beyond the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Offload {
    /// Blocks in memory of the host.
    pub host_blocks: u32,
    /// Slots of the ring, at least 1.
    pub ring_slots: u32,
    /// Memory of the blocks beyond the device pool.
    pub memory: HostMemory,
}

impl Offload {
    /// `host_blocks` blocks in `memory`, which pass through a ring of `ring_slots` slots.
    #[must_use]
    pub const fn new(host_blocks: u32, ring_slots: u32, memory: HostMemory) -> Self {
        Self { host_blocks, ring_slots, memory }
    }

    /// Sets the memory of the blocks beyond the device pool.
    #[must_use]
    pub const fn memory(self, memory: HostMemory) -> Self {
        Self { memory, ..self }
    }
}

/// Traffic between a pool and its blocks on the host so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostTraffic {
    /// Bytes of whole blocks that were copied from the host: into the ring, and to where a step adds to them.
    pub fetched_bytes: u64,
    /// Bytes that steps wrote to blocks on the host: new tokens, or whole blocks where these come back by copies.
    pub written_bytes: u64,
}

/// Memory of blocks beyond the device pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostMemory {
    /// Mappable storage buffers in memory of the host, which kernels reach over the bus.
    #[default]
    Mapped,
    /// Memory that any device copies from, and only the host writes: copies bring blocks into the ring as ever, and what a step
    /// writes of them comes back to the host at its end. For devices without mappable storage buffers.
    Staged,
    /// Memory of the device. A measurement: the same decisions and copies with no byte over the bus.
    Device,
}

/// Division of an offloading pool into resident blocks and slots.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Ids below this one are resident.
    resident: u32,
    /// First block of the ring on the device.
    first: u32,
    /// Slots.
    slots: u32,
    /// Blocks of a slot.
    slot_blocks: u32,
}

/// Location of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A block of the device's buffers.
    Device(u32),
    /// A block of the host's buffers.
    Host(u32),
}

impl Ring {
    /// Divides `device_blocks` blocks: half of them make the ring, in slots of whole chunks of `chunk_blocks` blocks.
    /// `None` when they do not suffice for one chunk a slot beside the null block.
    pub(crate) fn new(device_blocks: u32, slots: u32, chunk_blocks: u32) -> Option<Self> {
        let slot_blocks = (device_blocks / 2 / slots / chunk_blocks).max(1) * chunk_blocks;
        let resident = device_blocks.checked_sub(slots.checked_mul(slot_blocks)?).filter(|left| *left > 0)?;
        Some(Self::divided(resident, resident, slots, slot_blocks))
    }

    /// Divides `device_blocks` blocks where a policy selects: an eighth of them makes the ring, whose slots have at least one
    /// chunk; the others, at least a chunk too, are for pages of selected blocks.
    pub(crate) fn beside_pages(device_blocks: u32, slots: u32, chunk_blocks: u32) -> Option<Self> {
        let slot_blocks = (device_blocks / 8 / slots.max(1) / chunk_blocks).max(1) * chunk_blocks;
        let first = device_blocks.checked_sub(slots.checked_mul(slot_blocks)?);
        let first = first.filter(|left| *left >= chunk_blocks)?;
        Some(Self::divided(0, first, slots, slot_blocks))
    }

    fn divided(resident: u32, first: u32, slots: u32, slot_blocks: u32) -> Self {
        Self { resident, first, slots, slot_blocks }
    }

    /// Blocks of the device for pages of selected blocks, from block 0 on; 0 where blocks are resident instead.
    pub(crate) fn page_slots(&self) -> u32 {
        self.first - self.resident.min(self.first)
    }

    pub(crate) fn resident(&self) -> u32 {
        self.resident
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn slot_blocks(&self) -> u32 {
        self.slot_blocks
    }

    pub(crate) fn place(&self, id: u32) -> Place {
        if id < self.resident { Place::Device(id) } else { Place::Host(id - self.resident) }
    }

    /// Block `index` of the slot that chunk `chunk` goes through.
    pub(crate) fn slot_block(&self, chunk: u32, index: u32) -> u32 {
        assert!(index < self.slot_blocks, "block {index} of a slot of {}", self.slot_blocks);
        self.first + chunk % self.slots * self.slot_blocks + index
    }
}

/// Consecutive blocks that are copied together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Blocks of the buffers that they come from.
    pub(crate) from: Range<u32>,
    /// First block of the device's buffers.
    pub(crate) device: u32,
}

/// Joins copies of single blocks, `(from, device)`, to runs.
pub(crate) fn runs(copies: &[(u32, u32)]) -> Vec<Run> {
    let follows = |a: &(u32, u32), b: &(u32, u32)| a.0 + 1 == b.0 && a.1 + 1 == b.1;
    let run = |run: &[(u32, u32)]| Run { from: run[0].0..run[run.len() - 1].0 + 1, device: run[0].1 };
    copies.chunk_by(follows).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_pool_is_the_ring() {
        let parts = |blocks, slots, chunk| {
            Ring::new(blocks, slots, chunk).map(|ring| (ring.resident, ring.slots, ring.slot_blocks))
        };
        assert_eq!(parts(63, 2, 16), Some((31, 2, 16)));
        assert_eq!(parts(1000, 2, 16), Some((1000 - 2 * 240, 2, 240)));
        assert_eq!(parts(33, 2, 16), Some((1, 2, 16)));
        assert_eq!(parts(32, 2, 16), None, "nothing is left for the null block");
        assert_eq!(parts(40, 1, 16), Some((24, 1, 16)));
    }

    #[test]
    fn pages_have_most_of_a_pool() {
        let parts = |blocks, slots, chunk| {
            Ring::beside_pages(blocks, slots, chunk)
                .map(|ring| (ring.page_slots(), ring.slots, ring.slot_blocks))
        };
        assert_eq!(parts(1024, 2, 16), Some((896, 2, 64)));
        assert_eq!(parts(63, 2, 16), Some((31, 2, 16)));
        assert_eq!(parts(48, 2, 16), Some((16, 2, 16)));
        assert_eq!(parts(47, 2, 16), None, "not one partition of a selection");
        assert_eq!(Ring::new(63, 2, 16).unwrap().page_slots(), 0);
        let ring = Ring::beside_pages(48, 2, 16).unwrap();
        assert_eq!((ring.place(0), ring.slot_block(1, 3)), (Place::Host(0), 35));
    }

    #[test]
    fn slots_take_chunks_in_turn() {
        let ring = Ring::new(63, 2, 16).unwrap();
        assert_eq!(
            [ring.place(30), ring.place(31), ring.place(40)],
            [Place::Device(30), Place::Host(0), Place::Host(9)]
        );
        assert_eq!([0, 1, 2].map(|chunk| ring.slot_block(chunk, 3)), [34, 50, 34]);
    }

    #[test]
    fn neighbours_are_copied_together() {
        let copies = [(4, 10), (5, 11), (6, 12), (8, 13), (9, 15)];
        let want = [(4..7, 10), (8..9, 13), (9..10, 15)].map(|(from, device)| Run { from, device });
        assert_eq!(runs(&copies), want);
    }
}
