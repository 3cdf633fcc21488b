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
use kvblock::KvCacheSpec;
use prefetch::spill::Spill;
use smallvec::SmallVec;

use crate::cast::u32_of;

pub(crate) use self::allocate::split_planner;
pub(crate) use self::offload::{BlockLocation, BlockRun, Ring, block_runs};
pub use self::offload::{HostMemory, HostTraffic, Offload};
pub use self::plan::{CachePart, IndexDtype, KvOptions, KvPlan, LayerCache};

/// The buffers of a [`KvPlan`], `num_blocks` pages each. Block ids are of all groups together: a block belongs to one
/// group at a time, and its page in a buffer to the layer of that group.
#[derive(Debug)]
pub struct KvPool {
    plan: KvPlan,
    shape: KvShape,
    num_blocks: u32,
    device_blocks: u32,
    tensors: Vec<CacheBuffers>,
    /// The blocks that are not on the device, where there are some.
    host: Option<Host>,
}

#[derive(Debug)]
struct Host {
    ring: Ring,
    /// Buffers of all layers, segment by segment of so many blocks.
    segments: Vec<Vec<CacheBuffers>>,
    segment_blocks: u32,
    memory: HostMemory,
    /// Buffers of each slot of the ring.
    slots: Vec<CacheBuffers>,
    /// The blocks that memory of the host does not hold either, where there are some.
    spill: Option<Arc<Spill>>,
    /// Keys of one layer, by block id, where a policy selects among blocks on disk: the layer at hand finds there what it takes
    /// in. Buffers of as many blocks as a segment has; none elsewhere.
    board: Vec<Buf<KvWord>>,
}

/// Buffers that attention reads keys from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeysIn {
    /// Buffers of the layer itself.
    Layer,
    /// Buffers of the layer that hold a segment of the blocks beyond those.
    Segment(usize),
    /// A slot of the ring, which holds blocks of the layer at hand.
    Slot(usize),
}

/// Rows of decode attention that may take turns with slots: where there is room for fewer, sequences wait instead.
pub(crate) const ROWS: u32 = 16;

/// One buffer of latents, or one of keys and one of values.
#[derive(Debug)]
struct CacheBuffers {
    buffers: SmallVec<[Buf<KvWord>; 2]>,
    /// Words of a block in each buffer.
    words: usize,
}

/// Size of a pool, and where its blocks lie.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Number of blocks on the device.
    pub num_blocks: u32,
    /// Blocks in memory of the host beyond them: a part of those on the device is then the ring that they pass through.
    pub offload: Option<Offload>,
    /// Whether a sparse policy selects blocks. With `offload`, the host then holds all blocks, and the remaining device
    /// blocks are slots for selected pages.
    pub selects: bool,
    /// Blocks on disk beyond those of the host, with the [shape](KvPlan::spill_shape) of the plan; for this pool alone.
    pub spill: Option<Arc<Spill>>,
}

impl PoolOptions {
    /// A pool of `num_blocks` blocks on the device, all of which are attended.
    #[must_use]
    pub const fn new(num_blocks: u32) -> Self {
        Self { num_blocks, offload: None, selects: false, spill: None }
    }

    /// Sets the blocks in memory of the host; `None` for none.
    #[must_use]
    pub fn offload(self, offload: Option<Offload>) -> Self {
        Self { offload, ..self }
    }

    /// Sets the blocks on disk; `None` for none.
    #[must_use]
    pub fn spill(self, spill: Option<Arc<Spill>>) -> Self {
        Self { spill, ..self }
    }

    fn disk_blocks(&self) -> u32 {
        self.spill.as_ref().map_or(0, |spill| spill.shape().blocks)
    }

    /// Sets whether a sparse policy selects blocks.
    #[must_use]
    pub fn selects(self, selects: bool) -> Self {
        Self { selects, ..self }
    }
}

impl KvPool {
    /// Blocks that one binding of the device can hold.
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

    /// Shape of the keys and of the values of attention.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Blocks of the pool, the null block and those on the host included.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Blocks of all layers that the pool has memory on the device for, those of the ring included.
    #[must_use]
    pub fn device_blocks(&self) -> u32 {
        self.device_blocks + if self.is_in_place() { self.beyond_blocks() } else { 0 }
    }

    /// Blocks in memory of the host.
    #[must_use]
    pub fn host_blocks(&self) -> u32 {
        if self.is_in_place() { 0 } else { self.beyond_blocks() }
    }

    /// Blocks beyond the resident ones, and before those on disk.
    fn beyond_blocks(&self) -> u32 {
        self.ring().map_or(0, Ring::host_blocks)
    }

    /// Whether blocks beyond the resident ones are attended where they lie on the device.
    pub(crate) fn is_in_place(&self) -> bool {
        self.ring().is_some_and(Ring::is_in_place)
    }

    /// Blocks on disk.
    #[must_use]
    pub fn disk_blocks(&self) -> u32 {
        self.spill().map_or(0, |spill| spill.shape().blocks)
    }

    /// The file of the blocks that memory of the host does not hold either, where there are some.
    #[must_use]
    pub fn spill(&self) -> Option<&Arc<Spill>> {
        self.host.as_ref()?.spill.as_ref()
    }

    /// Number of a block in the file, if it lies there.
    pub(crate) fn on_disk(&self, id: u32) -> Option<u32> {
        match self.ring()?.place(id) {
            BlockLocation::Disk(block) => Some(block),
            BlockLocation::Device(_) | BlockLocation::Host(_) => None,
        }
    }

    /// Id of a block of the file.
    pub(crate) fn disk_id(&self, block: u32) -> u32 {
        self.num_blocks - self.disk_blocks() + block
    }

    /// Regions of the file for what the attention of a layer reads.
    pub(crate) fn regions(&self, layer: usize) -> Range<u32> {
        let tensor = self.plan.of_layer(layer).tensor;
        let before = self.tensors[..tensor].iter().map(|tensor| tensor.buffers.len()).sum::<usize>();
        u32_of(before)..u32_of(before + self.tensors[tensor].buffers.len())
    }

    /// K and V of one layer.
    #[must_use]
    pub fn layer(&self, layer: usize) -> (&Buf<KvWord>, &Buf<KvWord>) {
        let cache = self.plan.cache(layer, CachePart::KeyValue).expect("a layer with keys and values");
        let buffers = &self.tensors[cache.tensor].buffers;
        (&buffers[0], &buffers[1])
    }

    /// K and V of one layer on the host, where some blocks are there: of these blocks of its.
    pub(crate) fn host_layers(&self, layer: usize) -> impl Iterator<Item = (Range<u32>, [&Buf<KvWord>; 2])> {
        (0..self.segments()).filter_map(move |segment| match self.host_attended(layer, segment) {
            [k, v] => Some((self.host_segment(segment), [k, v])),
            _ => None,
        })
    }

    /// Buffers that the attention of a layer reads, K and V or latents, and the words of a block in each.
    pub(crate) fn attended(&self, layer: usize) -> (&[Buf<KvWord>], usize) {
        let tensor = &self.tensors[self.plan.of_layer(layer).tensor];
        (&tensor.buffers, tensor.words)
    }

    /// Buffers on the host that the attention of a layer reads, with the blocks of a segment; none if no blocks are there.
    pub(crate) fn host_attended(&self, layer: usize, segment: usize) -> &[Buf<KvWord>] {
        let tensor = || self.plan.of_layer(layer).tensor;
        self.host.as_ref().map_or(&[], |host| &host.segments[segment][tensor()].buffers)
    }

    /// Blocks on the host that share buffers.
    pub(crate) fn host_segment(&self, segment: usize) -> Range<u32> {
        let first = self.first_of_segment(segment);
        first..self.beyond_blocks().min(first.saturating_add(self.segment_size()))
    }

    /// The first block of a segment.
    pub(crate) fn first_of_segment(&self, segment: usize) -> u32 {
        u32_of(segment) * self.segment_size()
    }

    /// The segment of a block beyond those of the device.
    pub(crate) fn segment_of(&self, block: u32) -> usize {
        (block / self.segment_size()) as usize
    }

    /// Buffers that the attention of a layer reads where its keys are at hand.
    pub(crate) fn keys_in(&self, layer: usize, place: KeysIn) -> &[Buf<KvWord>] {
        match (place, &self.host) {
            (KeysIn::Slot(slot), Some(host)) => &host.slots[slot].buffers,
            (KeysIn::Slot(slot), None) => panic!("slot {slot} of a pool without a ring"),
            (KeysIn::Layer, _) => self.attended(layer).0,
            (KeysIn::Segment(segment), _) => self.host_attended(layer, segment),
        }
    }

    /// Whether kernels cannot reach the blocks on the host, which copies serve.
    pub(crate) fn is_staged(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.memory == HostMemory::Staged)
    }

    /// Whether kernels reach blocks on the host.
    pub(crate) fn is_mapped(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.memory == HostMemory::Mapped)
    }

    /// Whether only the host can write a block.
    pub(crate) fn host_writes(&self, id: u32) -> bool {
        self.is_staged() && self.ring().is_some_and(|ring| matches!(ring.place(id), BlockLocation::Host(_)))
    }

    /// Keys of one layer, by block id, where a policy selects among blocks on disk: those of blocks that a step takes in. Buffers
    /// of as many blocks as a segment has; none elsewhere.
    pub(crate) fn board(&self) -> &[Buf<KvWord>] {
        self.host.as_ref().map_or(&[], |host| &host.board)
    }

    fn segment_size(&self) -> u32 {
        self.host.as_ref().map_or(u32::MAX, |host| host.segment_blocks)
    }

    /// K and V of one layer where block ids count, with the ids that they hold: beyond the device if blocks are selected and live
    /// there, perhaps in several buffers, else on it. Of blocks on disk that are selected, the [board](Self::board) has the keys.
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

    /// K and V of one layer by block id, for kernels that read keys of all blocks: one buffer each.
    pub(crate) fn whole(&self, layer: usize) -> [&Buf<KvWord>; 2] {
        assert!(self.segments() <= 1, "keys of layer {layer} lie in {} buffers", self.segments());
        self.by_id(layer).next().expect("a layer with keys and values").1
    }

    /// Buffers of one layer that hold the blocks beyond those of the device.
    pub(crate) fn segments(&self) -> usize {
        self.host.as_ref().map_or(0, |host| host.segments.len())
    }

    /// The ring that blocks on the host pass through.
    pub(crate) fn ring(&self) -> Option<&Ring> {
        Some(&self.host.as_ref()?.ring)
    }

    /// Blocks on the device for pages of selected blocks; 0 where blocks live there, or none are selected.
    pub(crate) fn page_slots(&self) -> u32 {
        self.ring().map_or(0, Ring::page_slots)
    }

    /// Maximum number of sequences of one step that blocks are selected for: each needs a partition of pages on the
    /// device. `None` where nothing bounds them, for rows beyond a portion take their turn.
    #[must_use]
    pub fn max_sequences(&self) -> Option<u32> {
        let slots = self.ring()?.page_slots();
        let rows = slots / (PARTITION / self.shape.block_size).max(1);
        (slots > 0 && rows < ROWS).then_some(rows)
    }

    /// Bytes of a block in what the attention of one layer reads; layers of a pool with a ring are alike.
    pub(crate) fn attended_bytes(&self) -> u64 {
        let (buffers, words) = self.attended(0);
        (buffers.len() * words * 4) as u64
    }

    /// Whether two blocks lie in the same buffers.
    pub(crate) fn together(&self, a: u32, b: u32) -> bool {
        let kind = |ring: &Ring, id| match ring.place(id) {
            BlockLocation::Host(block) => {
                (std::mem::discriminant(&BlockLocation::Host(0)), self.segment_of(block))
            }
            place => (std::mem::discriminant(&place), 0),
        };
        self.ring().is_none_or(|ring| kind(ring, a) == kind(ring, b))
    }

    /// The buffers that hold a block, with the words that it takes in each, and its number in them.
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

    /// Group of a layer's keys and values.
    #[must_use]
    pub fn group(&self, layer: usize) -> usize {
        self.plan.cache(layer, CachePart::KeyValue).expect("a layer with keys and values").group
    }

    /// The buffer of a cache that has one.
    ///
    /// # Panics
    /// When the layer has no such cache.
    #[must_use]
    pub fn buffer(&self, layer: usize, part: CachePart) -> &Buf<KvWord> {
        let cache = self.plan.cache(layer, part).expect("a cache of this part");
        &self.tensors[cache.tensor].buffers[0]
    }

    /// Words from one block to the next of a cache that has one buffer, and tokens of a block.
    ///
    /// # Panics
    /// When the layer has no such cache.
    pub(crate) fn block_words(&self, layer: usize, part: CachePart) -> (u32, u32) {
        let cache = self.plan.cache(layer, part).expect("a cache of this part");
        let words =
            u32::try_from(self.tensors[cache.tensor].words).expect("a page is far smaller than 16 GiB");
        (words, cache.spec.block_size.get())
    }

    /// Every buffer, with the words that a block takes in it.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (&Buf<KvWord>, usize)> {
        self.tensors.iter().flat_map(|tensor| tensor.buffers.iter().map(|buffer| (buffer, tensor.words)))
    }
}

/// The buffers that pages of a spec are split into.
fn names(spec: &KvCacheSpec) -> &'static [&'static str] {
    if spec.is_latent() { &["latent_cache"] } else { &["k_cache", "v_cache"] }
}

fn page_words(page_bytes: u64, names: &[&str]) -> usize {
    usize::try_from(page_bytes).expect("pages fit in memory") / 4 / names.len()
}
