//! The paged KV cache on the device.

mod allocate;
mod offload;
mod plan;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::paged_decode::PARTITION;
use attn_kernels::rows::KvWord;
use derive_setters::Setters;
use prefetch::spill::Spill;
use smallvec::SmallVec;

use self::plan::{names, page_words};
use crate::ModelError;
use crate::cast::u32_of;

pub(crate) use self::allocate::split_planner;
pub(crate) use self::offload::{BlockLocation, BlockRun, KeysIn, Ring, block_runs};
pub use self::offload::{HostMemory, HostTraffic, Offload};
pub use self::plan::{CachePart, IndexDtype, KvOptions, KvPlan, LayerCache};

/// The buffers of a [`KvPlan`], with `num_blocks` blocks each. All cache groups share one range of block ids: a block belongs to
/// one group at a time, and is stored in the buffers of that group's layers.
#[derive(Debug)]
pub struct KvPool {
    plan: KvPlan,
    shape: KvShape,
    num_blocks: u32,
    device_blocks: u32,
    tensors: Vec<CacheBuffers>,
    /// The blocks that are not on the device, if there are any.
    host: Option<Host>,
}

#[derive(Debug)]
struct Host {
    ring: Ring,
    /// Buffers of all layers, for each segment of the blocks.
    segments: Vec<Vec<CacheBuffers>>,
    segment_blocks: u32,
    memory: HostMemory,
    /// Buffers of each slot of the ring.
    slots: Vec<CacheBuffers>,
    /// File of the blocks that are neither on the device nor in host memory, if there are any.
    spill: Option<Arc<Spill>>,
    /// Keys of the current layer, by block id, from which the layer summarises blocks, if a policy selects among blocks
    /// on disk. Each buffer holds a segment of blocks.
    board: Vec<Buf<KvWord>>,
}

/// Number of decode rows whose pages should fit on the device at the same time. If fewer fit, sequences wait.
pub(crate) const ROWS: u32 = 16;

/// One buffer of latents, or one of keys and one of values.
#[derive(Debug)]
struct CacheBuffers {
    buffers: SmallVec<[Buf<KvWord>; 2]>,
    /// Number of words per block in each buffer.
    words: usize,
}

/// Size of a pool, and where its blocks are.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Number of blocks on the device.
    #[setters(skip)]
    pub num_blocks: u32,
    /// Additional blocks in host memory: part of the device's blocks is then the ring that they pass through.
    pub offload: Option<Offload>,
    /// Whether a sparse policy selects blocks. With `offload`, the host then holds all blocks, and the remaining device blocks
    /// are slots for selected pages.
    pub selects: bool,
    /// Additional blocks on disk, with the [shape](KvPlan::spill_shape) of the plan, for this pool alone.
    pub spill: Option<Arc<Spill>>,
}

impl PoolOptions {
    /// A pool of `num_blocks` blocks on the device, all of which are attended.
    #[must_use]
    pub const fn new(num_blocks: u32) -> Self {
        Self { num_blocks, offload: None, selects: false, spill: None }
    }

    fn disk_blocks(&self) -> u32 {
        self.spill.as_ref().map_or(0, |spill| spill.shape().blocks)
    }
}

impl KvPool {
    /// Returns the maximum number of blocks that a binding of the device can hold.
    #[must_use]
    pub fn max_blocks(gpu: &Gpu, plan: &KvPlan) -> u32 {
        let tensors = plan.layout.tensors.iter().filter_map(|tensor| {
            let names = names(&plan.caches[*tensor.layers.first()?].spec);
            Some(page_words(tensor.page_bytes, names) as u64 * 4)
        });
        let blocks = tensors.max().map_or(u64::MAX, |bytes| gpu.max_binding_bytes() / bytes);
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Returns the plan of the caches.
    #[must_use]
    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    /// Returns the shape of keys and values.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Returns the number of blocks of the pool, including the null block and blocks on the host.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Rejects ids outside of the pool: kernels run without bounds checks.
    pub(crate) fn check_blocks(&self, ids: impl Iterator<Item = u32>) -> Result<(), ModelError> {
        let blocks = self.num_blocks;
        ids.max()
            .filter(|block| *block >= blocks)
            .map_or(Ok(()), |block| Err(ModelError::Block { block, blocks }))
    }

    /// Returns the number of blocks, of all layers, that have memory on the device, including those of the ring.
    #[must_use]
    pub fn device_blocks(&self) -> u32 {
        self.device_blocks + if self.is_in_place() { self.beyond_blocks() } else { 0 }
    }

    /// Returns the number of blocks in host memory.
    #[must_use]
    pub fn host_blocks(&self) -> u32 {
        if self.is_in_place() { 0 } else { self.beyond_blocks() }
    }

    /// Returns the number of blocks that are neither resident nor on disk.
    fn beyond_blocks(&self) -> u32 {
        self.ring().map_or(0, Ring::host_blocks)
    }

    /// Whether blocks that are not resident are attended in place on the device.
    pub(crate) fn is_in_place(&self) -> bool {
        self.ring().is_some_and(Ring::is_in_place)
    }

    /// Returns the number of blocks on disk.
    #[must_use]
    pub fn disk_blocks(&self) -> u32 {
        self.spill().map_or(0, |spill| spill.shape().blocks)
    }

    /// Returns the file of the blocks that are neither on the device nor in host memory, if there are any.
    #[must_use]
    pub fn spill(&self) -> Option<&Arc<Spill>> {
        self.host.as_ref()?.spill.as_ref()
    }

    /// Returns the number of a block in the file; `None` if the block is not on disk.
    pub(crate) fn on_disk(&self, id: u32) -> Option<u32> {
        match self.ring()?.place(id) {
            BlockLocation::Disk(block) => Some(block),
            BlockLocation::Device(_) | BlockLocation::Host(_) => None,
        }
    }

    /// Returns the id of a block of the file.
    pub(crate) fn disk_id(&self, block: u32) -> u32 {
        self.num_blocks - self.disk_blocks() + block
    }

    /// Returns the regions of the file for the buffers that a layer's attention reads.
    pub(crate) fn regions(&self, layer: usize) -> Range<u32> {
        let tensor = self.plan.of_layer(layer).tensor;
        let before = self.tensors[..tensor].iter().map(|tensor| tensor.buffers.len()).sum::<usize>();
        u32_of(before)..u32_of(before + self.tensors[tensor].buffers.len())
    }

    /// Returns K and V of one layer.
    #[must_use]
    pub fn layer(&self, layer: usize) -> (&Buf<KvWord>, &Buf<KvWord>) {
        let cache = self.plan.cache(layer, CachePart::KeyValue).expect("a layer with keys and values");
        let buffers = &self.tensors[cache.tensor].buffers;
        (&buffers[0], &buffers[1])
    }

    /// Returns K and V of one layer on the host, with the range of blocks that they hold.
    pub(crate) fn host_layers(&self, layer: usize) -> impl Iterator<Item = (Range<u32>, [&Buf<KvWord>; 2])> {
        (0..self.segments()).filter_map(move |segment| match self.host_attended(layer, segment) {
            [k, v] => Some((self.host_segment(segment), [k, v])),
            _ => None,
        })
    }

    /// Returns the buffers that a layer's attention reads, K and V or latents, and the words per block in each.
    pub(crate) fn attended(&self, layer: usize) -> (&[Buf<KvWord>], usize) {
        let tensor = &self.tensors[self.plan.of_layer(layer).tensor];
        (&tensor.buffers, tensor.words)
    }

    /// Returns the buffers on the host that a layer's attention reads, for the blocks of a segment; none if there are no such
    /// blocks.
    pub(crate) fn host_attended(&self, layer: usize, segment: usize) -> &[Buf<KvWord>] {
        let tensor = || self.plan.of_layer(layer).tensor;
        self.host.as_ref().map_or(&[], |host| &host.segments[segment][tensor()].buffers)
    }

    /// Returns the range of blocks on the host that share buffers.
    pub(crate) fn host_segment(&self, segment: usize) -> Range<u32> {
        let first = self.first_of_segment(segment);
        first..self.beyond_blocks().min(first.saturating_add(self.segment_size()))
    }

    /// Returns the first block of a segment.
    pub(crate) fn first_of_segment(&self, segment: usize) -> u32 {
        u32_of(segment) * self.segment_size()
    }

    /// Returns the segment of a block that is not resident.
    pub(crate) fn segment_of(&self, block: u32) -> usize {
        (block / self.segment_size()) as usize
    }

    /// Returns the buffers that a layer's attention reads, given where its keys are.
    pub(crate) fn keys_in(&self, layer: usize, place: KeysIn) -> &[Buf<KvWord>] {
        match (place, &self.host) {
            (KeysIn::Slot(slot), Some(host)) => &host.slots[slot].buffers,
            (KeysIn::Slot(slot), None) => panic!("slot {slot} of a pool without a ring"),
            (KeysIn::Layer, _) => self.attended(layer).0,
            (KeysIn::Segment(segment), _) => self.host_attended(layer, segment),
        }
    }

    /// Whether kernels cannot access the blocks on the host, so that they have to be copied.
    pub(crate) fn is_staged(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.memory == HostMemory::Staged)
    }

    /// Whether kernels access blocks on the host.
    pub(crate) fn is_mapped(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.memory == HostMemory::Mapped)
    }

    /// Whether only the host can write a block.
    pub(crate) fn host_writes(&self, id: u32) -> bool {
        self.is_staged() && self.ring().is_some_and(|ring| matches!(ring.place(id), BlockLocation::Host(_)))
    }

    /// Returns the keys of the current layer, by block id, for the blocks that a step summarises; empty unless a policy
    /// selects among blocks on disk. Each buffer holds a segment of blocks.
    pub(crate) fn board(&self) -> &[Buf<KvWord>] {
        self.host.as_ref().map_or(&[], |host| &host.board)
    }

    fn segment_size(&self) -> u32 {
        self.host.as_ref().map_or(u32::MAX, |host| host.segment_blocks)
    }

    /// Returns the buffers of K and V of one layer by block id, each pair with the range of ids that it holds. They are
    /// on the host if blocks are selected there, else on the device. For selected blocks on disk, keys are on the
    /// [board](Self::board).
    pub(crate) fn by_id(&self, layer: usize) -> impl Iterator<Item = (Range<u32>, [&Buf<KvWord>; 2])> {
        let (k, v) = self.layer(layer);
        let (boards, on_device) = (self.board(), self.page_slots() == 0);
        let shown = boards.iter().zip(0..).map(move |(board, segment)| {
            let first = segment * self.segment_size();
            (first..first.saturating_add(self.segment_size()), [board, v])
        });
        let own = on_device.then_some((0..u32::MAX, [k, v]));
        let beyond = self.host_layers(layer).filter(move |_| boards.is_empty() && !on_device);
        shown.chain(own).chain(beyond)
    }

    /// Returns K and V of one layer by block id, for kernels that read the keys of all blocks in one buffer.
    pub(crate) fn whole(&self, layer: usize) -> [&Buf<KvWord>; 2] {
        assert!(self.segments() <= 1, "keys of layer {layer} lie in {} buffers", self.segments());
        self.by_id(layer).next().expect("a layer with keys and values").1
    }

    /// Returns the number of segments of the blocks that are not resident.
    pub(crate) fn segments(&self) -> usize {
        self.host.as_ref().map_or(0, |host| host.segments.len())
    }

    /// Returns the ring that blocks on the host pass through.
    pub(crate) fn ring(&self) -> Option<&Ring> {
        Some(&self.host.as_ref()?.ring)
    }

    /// Returns the number of device blocks that are slots for pages of selected blocks; 0 if blocks are resident instead, or none
    /// are selected.
    pub(crate) fn page_slots(&self) -> u32 {
        self.ring().map_or(0, Ring::page_slots)
    }

    /// Returns the maximum number of sequences of a step that select: each needs a partition of pages on the device. `None` if
    /// there is no limit, because rows can be processed in portions.
    #[must_use]
    pub fn max_sequences(&self) -> Option<u32> {
        let slots = self.ring()?.page_slots();
        let rows = slots / (PARTITION / self.shape.block_size).max(1);
        (slots > 0 && rows < ROWS).then_some(rows)
    }

    /// Returns the bytes per block that one layer's attention reads; layers of a pool with a ring are alike.
    pub(crate) fn attended_bytes(&self) -> u64 {
        let (buffers, words) = self.attended(0);
        (buffers.len() * words * 4) as u64
    }

    /// Whether two blocks are in the same buffers.
    pub(crate) fn together(&self, a: u32, b: u32) -> bool {
        let kind = |ring: &Ring, id| match ring.place(id) {
            BlockLocation::Host(block) => {
                (std::mem::discriminant(&BlockLocation::Host(0)), self.segment_of(block))
            }
            place => (std::mem::discriminant(&place), 0),
        };
        self.ring().is_none_or(|ring| kind(ring, a) == kind(ring, b))
    }

    /// Returns the buffers that hold a block, each with its number of words per block, and the index of the block in
    /// these buffers.
    pub(crate) fn buffers_of(&self, id: u32) -> (impl Iterator<Item = (&Buf<KvWord>, usize)>, usize) {
        let (tensors, index) = match self.host.as_ref().map(|host| (host, host.ring.place(id))) {
            Some((host, BlockLocation::Host(block))) => {
                let segment = self.segment_of(block);
                (&host.segments[segment], block - self.host_segment(segment).start)
            }
            Some((_, BlockLocation::Device(index))) => (&self.tensors, index),
            Some((_, BlockLocation::Disk(block))) => {
                panic!("block {id} lies in no buffer but is number {block} of a file")
            }
            None => (&self.tensors, id),
        };
        let buffers = tensors.iter().flat_map(|t| t.buffers.iter().map(|buffer| (buffer, t.words)));
        (buffers, index as usize)
    }

    /// Returns the cache group of a layer's keys and values.
    #[must_use]
    pub fn group(&self, layer: usize) -> usize {
        self.plan.cache(layer, CachePart::KeyValue).expect("a layer with keys and values").group
    }

    /// Returns the buffer of a cache that has one.
    ///
    /// # Panics
    /// When the layer has no such cache.
    #[must_use]
    pub fn buffer(&self, layer: usize, part: CachePart) -> &Buf<KvWord> {
        let cache = self.plan.cache(layer, part).expect("a cache of this part");
        &self.tensors[cache.tensor].buffers[0]
    }

    /// Returns the words per block of a cache that has one buffer, and the tokens per block.
    ///
    /// # Panics
    /// When the layer has no such cache.
    pub(crate) fn block_words(&self, layer: usize, part: CachePart) -> (u32, u32) {
        let cache = self.plan.cache(layer, part).expect("a cache of this part");
        let words =
            u32::try_from(self.tensors[cache.tensor].words).expect("a page is far smaller than 16 GiB");
        (words, cache.spec.block_size.get())
    }

    /// Returns all buffers, each with its words per block.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (&Buf<KvWord>, usize)> {
        self.tensors.iter().flat_map(|tensor| tensor.buffers.iter().map(|buffer| (buffer, tensor.words)))
    }
}
