//! Blocks in host memory, in addition to a pool on the device that is too small for a context.
//!
//! Block ids count on: the first ones are resident on the device, the others lie in host buffers. Attention goes through
//! the keys in chunks; what of a chunk lies on the host is copied into a slot of a ring. Layers are attended one after the
//! other and share the ring: of a model of 32 layers, a pool of an eighth holds the keys of four, so that a slot takes all
//! keys of a layer while the other receives those of the next.
//!
//! With a policy that selects what is attended, all blocks live on the host, and most of the pool is slots for pages of
//! selected blocks; the ring serves the rows that attend to everything.
//!
//! If host memory does not suffice either, the last blocks are in a file. The host reads the part that a chunk needs before
//! the chunk is attended, and writes the tokens of a step to the file after the step.

use std::ops::Range;

use derive_setters::Setters;

/// Extension of the pool by blocks off the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct Offload {
    /// Number of blocks in host memory.
    #[setters(skip)]
    pub host_blocks: u32,
    /// Number of slots of the ring, at least 1.
    #[setters(skip)]
    pub ring_slots: u32,
    /// Memory of the blocks off the device.
    pub memory: HostMemory,
    /// Maximum number of blocks of one buffer; limited by the size of a binding.
    pub buffer_blocks: u32,
}

impl Offload {
    /// `host_blocks` blocks in `memory`, which pass through a ring of `ring_slots` slots.
    #[must_use]
    pub const fn new(host_blocks: u32, ring_slots: u32, memory: HostMemory) -> Self {
        Self { host_blocks, ring_slots, memory, buffer_blocks: u32::MAX }
    }
}

/// Traffic between a pool and its blocks in host memory so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostTraffic {
    /// Bytes of whole blocks that were copied from the host, into the ring and into staging blocks.
    pub fetched_bytes: u64,
    /// Bytes that steps wrote to blocks on the host: whole blocks, or single tokens if few rows write and blocks are selected.
    pub written_bytes: u64,
}

/// Memory of blocks off the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostMemory {
    /// Mappable storage buffers in host memory, which kernels access over the bus.
    #[default]
    Mapped,
    /// Memory that every device can copy from and only the host writes: blocks are copied to the ring, and dirty blocks are read
    /// back at the end of a step. For devices without mappable storage buffers.
    Staged,
    /// Memory of the device, to measure the same decisions and copies without a bus.
    Device,
    /// Memory of the device whose blocks are attended in place, buffer by buffer: for a pool that is larger than a binding. Pages
    /// of selected blocks are copied to slots, so that one dispatch can read them all.
    InPlace,
}

/// Division of an offloading pool: each layer's buffers, for resident blocks or selected pages, and the ring's slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ring {
    /// Number of blocks of every layer's own buffers.
    own: u32,
    /// Whether every layer's own buffers are slots for pages of selected blocks; otherwise, they hold resident blocks.
    pages: bool,
    /// Number of slots.
    slots: u32,
    /// Number of blocks of one layer that a slot holds, in whole partitions.
    slot_blocks: u32,
    /// Number of blocks per partition.
    partition: u32,
    /// Number of blocks in host memory; further ones are on disk.
    host: u32,
    /// Number of blocks per buffer, if blocks that are not resident are attended in place.
    in_place: Option<u32>,
}

/// Sizes that determine the division of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingDemand {
    /// Number of blocks, of all layers, that fit into device memory.
    pub(crate) device_blocks: u32,
    /// Number of blocks on the host.
    pub(crate) host_blocks: u32,
    /// Number of blocks on disk.
    pub(crate) disk_blocks: u32,
    /// Number of layers, which share the ring.
    pub(crate) layers: u32,
    /// Number of slots, at least 1.
    pub(crate) slots: u32,
    /// Number of blocks per partition.
    pub(crate) chunk: u32,
    /// Maximum number of blocks of one layer in one buffer.
    pub(crate) max_slot: u32,
}

/// Buffers that attention reads keys from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeysIn {
    /// The layer's own buffers.
    Layer,
    /// Buffers of the layer that hold a segment of the other blocks.
    Segment(usize),
    /// A slot of the ring, which holds blocks of the current layer.
    Slot(usize),
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
    /// Divides a pool: up to half of it becomes the ring, in slots of whole chunks. `None` if it does not suffice for one chunk
    /// per slot and the null block of every layer.
    pub(crate) fn new(demand: RingDemand) -> Option<Self> {
        Self::divided(demand, 2, 1, false)
    }

    /// Divides a pool for a policy that selects: up to a sixteenth of it becomes the ring, and the rest, at least a chunk per
    /// layer, are slots for pages of selected blocks.
    pub(crate) fn with_pages(demand: RingDemand) -> Option<Self> {
        Self::divided(demand, 16, demand.chunk, true)
    }

    /// Divides a pool: the ring gets one `part`-th of it, and every layer at least `least` blocks of its own.
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

    /// Lets the device attend offloaded blocks where they are, in buffers of `segment` blocks, without a copy to the ring.
    pub(crate) fn in_place(self, segment: u32) -> Self {
        Self { in_place: Some(segment), ..self }
    }

    /// Whether offloaded blocks are attended on the device where they are, without a copy to the ring.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place.is_some()
    }

    /// Returns the buffers in which a block is attended in place, and its index there; `None` if it has to be copied to the ring.
    pub(crate) fn in_place_location(&self, id: u32) -> Option<(KeysIn, u32)> {
        match (self.place(id), self.in_place) {
            (BlockLocation::Device(block), _) => Some((KeysIn::Layer, block)),
            (BlockLocation::Host(block), Some(segment)) => {
                Some((KeysIn::Segment((block / segment) as usize), block % segment))
            }
            (BlockLocation::Host(_) | BlockLocation::Disk(_), _) => None,
        }
    }

    /// Returns the minimum number of device blocks for [`new`](Self::new) or [`with_pages`](Self::with_pages).
    pub(crate) fn needed(demand: RingDemand, pages: bool) -> u32 {
        let RingDemand { layers, slots, chunk, .. } = demand;
        (slots * chunk).div_ceil(layers) + if pages { chunk } else { 1 }
    }

    /// Returns the number of blocks of every layer's own buffers: resident ones, or slots for pages.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Returns the number of slots for pages of selected blocks, which begin at block 0 of a layer's buffers; 0 if blocks are
    /// resident instead.
    pub(crate) fn page_slots(&self) -> u32 {
        if self.pages { self.own } else { 0 }
    }

    /// Returns the number of resident blocks, which have the smallest ids.
    pub(crate) fn resident(&self) -> u32 {
        if self.pages { 0 } else { self.own }
    }

    /// Returns the blocks per partition.
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

    /// Returns the index of a block among those off the device: first those in host memory, then those on disk.
    pub(crate) fn off_device_index(&self, id: u32) -> Option<u32> {
        id.checked_sub(self.resident())
    }

    /// Returns the number of blocks in host memory.
    pub(crate) fn host_blocks(&self) -> u32 {
        self.host
    }
}

/// Consecutive blocks that are copied together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BlockRun {
    /// Range of blocks in the source.
    pub(crate) from: Range<u32>,
    /// First block in the device's buffers.
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
