//! Blocks that live in memory of the host, behind a pool on the device that is too small for a context.
//!
//! Block ids count on: the first ones are resident on the device, the others lie in host buffers. Attention goes through
//! the keys in chunks; what of a chunk lies on the host is copied into a slot of a ring. Layers are attended one after the
//! other and share the ring: of a model of 32 layers, a pool of an eighth holds the keys of four, so that a slot takes all
//! keys of a layer while the other receives those of the next.
//!
//! With a policy that selects what is attended, all blocks live on the host, and most of the pool is slots for pages of
//! selected blocks; the ring serves the rows that attend to everything.
//!
//! The last blocks lie in a file if memory of the host does not suffice either: the host reads what a chunk needs of them
//! ahead, and writes what steps write of them behind.

use std::ops::Range;

use super::KeysIn;

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
    /// Maximum number of blocks of one buffer; as many as a binding holds, if these are fewer.
    pub buffer_blocks: u32,
}

impl Offload {
    /// `host_blocks` blocks in `memory`, which pass through a ring of `ring_slots` slots.
    #[must_use]
    pub const fn new(host_blocks: u32, ring_slots: u32, memory: HostMemory) -> Self {
        Self { host_blocks, ring_slots, memory, buffer_blocks: u32::MAX }
    }

    /// Sets the memory of the blocks beyond the device pool.
    #[must_use]
    pub const fn memory(self, memory: HostMemory) -> Self {
        Self { memory, ..self }
    }

    /// Sets the maximum number of blocks of one buffer.
    #[must_use]
    pub const fn buffer_blocks(self, buffer_blocks: u32) -> Self {
        Self { buffer_blocks, ..self }
    }
}

/// Traffic between a pool and its blocks in memory of the host so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostTraffic {
    /// Bytes of whole blocks that were copied from the host: into the ring, and to where a step adds to them.
    pub fetched_bytes: u64,
    /// Bytes that steps wrote to blocks on the host: whole blocks, or new tokens where few rows write and blocks are selected.
    pub written_bytes: u64,
}

/// Memory of blocks beyond the device pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostMemory {
    /// Mappable storage buffers in memory of the host, which kernels reach over the bus.
    #[default]
    Mapped,
    /// Memory that every device can copy from and that only the host writes: copies bring blocks into the ring, and what
    /// a step writes to them is read back to the host at its end. For devices without mappable storage buffers.
    Staged,
    /// Memory of the device. A measurement: the same decisions and copies with no byte over the bus.
    Device,
    /// Memory of the device whose blocks are attended where they lie, buffer by buffer: a pool that is larger than what one
    /// binding holds of a layer. Pages of blocks that a policy selects are copied to slots, where one dispatch finds them all.
    InPlace,
}

/// Division of an offloading pool into resident blocks or slots for pages, and slots of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ring {
    /// Blocks of every layer's own buffers.
    own: u32,
    /// Whether these are slots for pages of selected blocks, and no block is resident.
    pages: bool,
    /// Slots.
    slots: u32,
    /// Blocks of a slot, of one layer: whole partitions.
    slot_blocks: u32,
    /// Blocks of a partition.
    partition: u32,
    /// Blocks in memory of the host; those beyond are on disk.
    host: u32,
    /// Blocks of one buffer of the memory beyond the device's own, where they are attended there.
    in_place: Option<u32>,
}

/// Sizes that the division of a pool follows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingDemand {
    /// Blocks of all layers that the device has memory for.
    pub(crate) device_blocks: u32,
    /// Blocks on the host.
    pub(crate) host_blocks: u32,
    /// Blocks on disk.
    pub(crate) disk_blocks: u32,
    /// Layers of the model, which share the ring.
    pub(crate) layers: u32,
    /// Slots, at least 1.
    pub(crate) slots: u32,
    /// Blocks of a partition: slots hold whole ones.
    pub(crate) chunk: u32,
    /// Maximum number of blocks of one layer in one buffer.
    pub(crate) max_slot: u32,
}

/// Location of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockLocation {
    /// A block of the device's buffers.
    Device(u32),
    /// A block of the host's buffers.
    Host(u32),
    /// A block of the file on disk.
    Disk(u32),
}

impl Ring {
    /// Divides a pool: up to half of it makes the ring, in slots of whole chunks. `None` when it does not suffice for one chunk a
    /// slot beside the null block of every layer.
    pub(crate) fn new(demand: RingDemand) -> Option<Self> {
        Self::divided(demand, 2, 1, false)
    }

    /// Divides a pool where a policy selects: up to a sixteenth of it makes the ring, and the others, at least a chunk a layer,
    /// are for pages of selected blocks.
    pub(crate) fn with_pages(demand: RingDemand) -> Option<Self> {
        Self::divided(demand, 16, demand.chunk, true)
    }

    /// The ring has one `part`-th of the pool, and every layer at least `least` blocks of its own.
    fn divided(demand: RingDemand, part: u32, least: u32, pages: bool) -> Option<Self> {
        let RingDemand { device_blocks, host_blocks, disk_blocks, layers, slots, chunk, max_slot } = demand;
        let partition = chunk;
        let (all, chunk) = (u64::from(device_blocks) * u64::from(layers), u64::from(chunk));
        // More than everything fills no slot, and resident blocks need not move.
        let blocks = [device_blocks, host_blocks, disk_blocks].map(u64::from).into_iter().sum::<u64>();
        let useful = blocks.next_multiple_of(chunk).min(max_slot.into());
        let slot = (all / u64::from(part * slots)).min(useful) / chunk * chunk;
        let slot = slot.max(chunk);
        let own = all.checked_sub(u64::from(slots) * slot)? / u64::from(layers);
        let own = u32::try_from(own).ok().filter(|own| *own >= least)?;
        let slot_blocks = u32::try_from(slot).ok()?;
        Some(Self { own, pages, slots, slot_blocks, partition, host: host_blocks, in_place: None })
    }

    /// Has blocks beyond the resident ones attended where they lie, in buffers of `segment` blocks.
    pub(crate) fn in_place(self, segment: u32) -> Self {
        Self { in_place: Some(segment), ..self }
    }

    /// Whether blocks beyond the resident ones are attended where they lie.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place.is_some()
    }

    /// Buffers in which a block is attended where it lies, and its number there; `None` if it has to come to the ring.
    pub(crate) fn in_place_location(&self, id: u32) -> Option<(KeysIn, u32)> {
        match (self.place(id), self.in_place) {
            (BlockLocation::Device(block), _) => Some((KeysIn::Layer, block)),
            (BlockLocation::Host(block), Some(segment)) => {
                Some((KeysIn::Segment((block / segment) as usize), block % segment))
            }
            (BlockLocation::Host(_) | BlockLocation::Disk(_), _) => None,
        }
    }

    /// Blocks of the device that [`new`](Self::new) or [`with_pages`](Self::beside_pages) need at least.
    pub(crate) fn needed(demand: RingDemand, pages: bool) -> u32 {
        let RingDemand { layers, slots, chunk, .. } = demand;
        (slots * chunk).div_ceil(layers) + if pages { chunk } else { 1 }
    }

    /// Blocks of every layer's own buffers: resident ones, or slots for pages.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Slots for pages of selected blocks, from block 0 of a layer's buffers on; 0 where blocks are resident instead.
    pub(crate) fn page_slots(&self) -> u32 {
        if self.pages { self.own } else { 0 }
    }

    /// Ids below this one are resident.
    pub(crate) fn resident(&self) -> u32 {
        if self.pages { 0 } else { self.own }
    }

    /// Blocks of a partition.
    pub(crate) fn partition(&self) -> u32 {
        self.partition
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn slot_blocks(&self) -> u32 {
        self.slot_blocks
    }

    pub(crate) fn place(&self, id: u32) -> BlockLocation {
        match self.off_device_index(id) {
            None => BlockLocation::Device(id),
            Some(block) if block < self.host => BlockLocation::Host(block),
            Some(block) => BlockLocation::Disk(block - self.host),
        }
    }

    /// Number of a block among those beyond the device: first those in memory of the host, then those on disk.
    pub(crate) fn off_device_index(&self, id: u32) -> Option<u32> {
        id.checked_sub(self.resident())
    }

    /// Blocks in memory of the host.
    pub(crate) fn host_blocks(&self) -> u32 {
        self.host
    }
}

/// Consecutive blocks that are copied together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlockRun {
    /// Blocks of the buffers that they come from.
    pub(crate) from: Range<u32>,
    /// First block of the device's buffers.
    pub(crate) device: u32,
}

/// Joins copies of single blocks, `(from, device)`, to runs.
pub(crate) fn block_runs(copies: &[(u32, u32)]) -> Vec<BlockRun> {
    let follows = |a: &(u32, u32), b: &(u32, u32)| a.0 + 1 == b.0 && a.1 + 1 == b.1;
    let run = |run: &[(u32, u32)]| BlockRun { from: run[0].0..run[run.len() - 1].0 + 1, device: run[0].1 };
    copies.chunk_by(follows).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 slots for 4 layers, chunks of 16 blocks.
    fn demand(device_blocks: u32, host_blocks: u32) -> RingDemand {
        RingDemand {
            device_blocks,
            host_blocks,
            disk_blocks: 0,
            layers: 4,
            slots: 2,
            chunk: 16,
            max_slot: 10_000,
        }
    }

    #[test]
    fn half_of_a_pool_is_the_ring() {
        let parts =
            |demand| Ring::new(demand).map(|ring| (ring.resident(), ring.slots(), ring.slot_blocks()));
        assert_eq!(
            parts(demand(100, 1000)),
            Some((100 - 2 * 96 / 4, 2, 96)),
            "half of 400 blocks of a layer"
        );
        assert_eq!(parts(demand(1000, 500)), Some((1000 - 2 * 992 / 4, 2, 992)), "half");
        assert_eq!(parts(demand(1000, 5)), Some((1000 - 2 * 992 / 4, 2, 992)), "half");
        assert_eq!(parts(demand(9, 30)), Some((1, 2, 16)), "at least a chunk a slot");
        assert_eq!(parts(demand(8, 30)), None, "nothing is left for the null block");
        let narrow = RingDemand { max_slot: 40, ..demand(100, 1000) };
        assert_eq!(parts(narrow), Some((100 - 2 * 32 / 4, 2, 32)), "what a buffer holds");
        let few = RingDemand { layers: 32, ..demand(40, 100) };
        assert_eq!(parts(few), Some((40 - 2 * 144 / 32, 2, 144)), "no more than all blocks");
        for (pages, demand) in [(false, demand(0, 1)), (true, demand(0, 1)), (true, few)] {
            let divide = if pages { Ring::with_pages } else { Ring::new };
            let needed = Ring::needed(demand, pages);
            assert!(divide(RingDemand { device_blocks: needed, ..demand }).is_some());
            assert!(divide(RingDemand { device_blocks: needed - 1, ..demand }).is_none());
        }
    }

    #[test]
    fn pages_have_most_of_a_pool() {
        let parts = |demand| {
            Ring::with_pages(demand).map(|ring| (ring.page_slots(), ring.slots(), ring.slot_blocks()))
        };
        assert_eq!(parts(demand(1024, 9000)), Some((960, 2, 128)));
        assert_eq!(parts(demand(24, 100)), Some((16, 2, 16)));
        assert_eq!(parts(demand(23, 100)), None, "not one partition of a selection");
        let ring = Ring::with_pages(demand(24, 100)).unwrap();
        assert_eq!((ring.place(0), ring.resident()), (BlockLocation::Host(0), 0));
        let ring = Ring::new(demand(9, 30)).unwrap();
        assert_eq!(
            [ring.place(0), ring.place(1), ring.place(7)],
            [BlockLocation::Device(0), BlockLocation::Host(0), BlockLocation::Host(6)]
        );
        assert_eq!(ring.page_slots(), 0);
    }

    #[test]
    fn blocks_beyond_the_host_are_on_disk() {
        let ring = Ring::new(RingDemand { disk_blocks: 10, ..demand(9, 30) }).unwrap();
        let places = [0, 1, 30, 31, 40].map(|id| ring.place(id));
        let want = [
            BlockLocation::Device(0),
            BlockLocation::Host(0),
            BlockLocation::Host(29),
            BlockLocation::Disk(0),
            BlockLocation::Disk(9),
        ];
        assert_eq!(places, want);
        let wide =
            |disk_blocks| Ring::new(RingDemand { disk_blocks, ..demand(400, 0) }).unwrap().slot_blocks();
        assert_eq!([wide(0), wide(100)], [400, 400], "a quarter of all blocks of all layers");
        let wide =
            |disk_blocks| Ring::new(RingDemand { layers: 32, disk_blocks, ..demand(40, 100) }).unwrap();
        assert_eq!(
            [wide(0), wide(100)].map(|ring| ring.slot_blocks()),
            [144, 240],
            "no more than all blocks"
        );
    }

    #[test]
    fn neighbours_are_copied_together() {
        let copies = [(4, 10), (5, 11), (6, 12), (8, 13), (9, 15)];
        let want = [(4..7, 10), (8..9, 13), (9..10, 15)].map(|(from, device)| BlockRun { from, device });
        assert_eq!(block_runs(&copies), want);
    }
}
