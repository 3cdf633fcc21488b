//! Copies of layers from the host through the slots of a decoder.
//!
//! ```text
//! products   │ layer 0: qkv │ o │ gate, up │ down │ layer 1: qkv │ o │ ...
//! copies     │ layer 1, a tenth │ ..│ half     │ ...  │ layer 3, ...
//! ```
//!
//! Copies of the next layer are divided among the products before it in proportion to the bytes of their weights, as the times
//! of products are. Dispatches run at the same time from the beginning of a compute pass until the first of
//! them waits for another, so each portion begins a pass right before a product.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::swap_blocks::{self, Link, SwapBlocksBuffers, SwapBlocksParams};
use attn_kernels::rows::BlockCopy;

use super::{HostWeights, SlotPlace};
use crate::ModelError;
use crate::cast::u32_of;

/// Number of workgroups that copy weights. With 16 KiB in flight each, they saturate a bus; the same number copies
/// keys and values.
const WORKGROUPS: u32 = 8;

/// Minimum size of a portion: the start of a dispatch that waits for a bus takes some ten microseconds.
const MIN_BYTES: u64 = 8 << 20;

/// Maximum number of portions of a small layer.
const MAX_PORTIONS: u64 = 8;

/// Maximum number of portion boundaries in a layer: bind groups are kept for each.
const ENDS: usize = 32;

/// Slots of a decoder, and the layers that pass through them.
#[derive(Debug)]
pub(crate) struct WeightStream {
    host: Arc<HostWeights>,
    /// Buffers of each slot.
    slots: Vec<Vec<Buf<[u32; 4]>>>,
    transport: WeightTransport,
    /// The layer that is being copied.
    coming: Option<Coming>,
}

/// Way in which layers are copied to the device.
#[derive(Debug)]
enum WeightTransport {
    /// A kernel, which can access host memory, copies the listed blocks. Both numbers of each pair are the same.
    Kernel { copy: Arc<Pipeline>, pairs: Buf<BlockCopy> },
    /// The queue copies by commands, if kernels cannot access host memory; nothing overlaps with the copies.
    Queue,
}

/// A layer that is being copied to its slot.
#[derive(Clone, Copy, Debug)]
struct Coming {
    /// Position among the layers on the host.
    order: usize,
    /// Number of the layer's blocks whose copies are recorded, counted through all its buffers.
    copied: usize,
    /// Bytes of the weights that products have read since the copy began.
    passed: u64,
    /// Bytes of the weights that products read from the start of the copy until the layer is needed.
    window: u64,
}

impl WeightStream {
    /// Creates slots for the layers on the host.
    pub(crate) fn new(gpu: &Gpu, host: Arc<HostWeights>) -> Result<Self, ModelError> {
        let quads = |bytes: &u64| usize::try_from(bytes / 16).expect("a buffer fits in memory");
        let slot = || {
            let buffers = host.placement.slot_bytes.iter();
            buffers.map(|bytes| gpu.buffer("weight_slot", quads(bytes))).collect::<Result<Vec<_>, _>>()
        };
        let slots = (0..host.placement.slots).map(|_| slot()).collect::<Result<_, _>>()?;
        let transport = match gpu.has_host_buffers() {
            false => WeightTransport::Queue,
            true => {
                let max = host.placement.slot_bytes.iter().max().unwrap_or(&0) / host.placement.block_bytes;
                let blocks = 0..u32::try_from(max).expect("a binding has less than 4 TiB");
                let pairs: Vec<_> = blocks.map(|block| BlockCopy { from: block, to: block }).collect();
                let pairs = gpu.upload("weight_blocks", &pairs)?;
                WeightTransport::Kernel { copy: gpu.pipeline(&swap_blocks::variant())?, pairs }
            }
        };
        Ok(Self { host, slots, transport, coming: None })
    }

    /// Returns a binding that begins at an address in a slot.
    pub(super) fn bind(&self, place: SlotPlace) -> Bind<[u32; 4]> {
        self.slots[place.slot as usize][place.buffer as usize].bind_from(place.quad as usize)
    }

    /// Begins a step, and forgets the copy that the last step began.
    pub(crate) fn begin_step(&mut self) {
        self.coming = None;
    }

    /// Records that a layer's weights are on the device before the commands that follow, and starts copying the next
    /// layer on the host.
    pub(crate) fn enter(&mut self, pass: &mut Pass, layer: usize) {
        let host = Arc::clone(&self.host);
        let placement = &host.placement;
        let next = match placement.order(layer) {
            Some(order) => {
                if self.coming.is_none_or(|coming| coming.order != order) {
                    self.begin(layer, order);
                }
                self.bring_rest(pass);
                order + 1
            }
            None if self.coming.is_some() => return,
            None => placement.host_layers.partition_point(|host| (*host as usize) < layer),
        };
        // Without a slot that is free a layer comes when it is needed.
        if next < placement.host_layers.len() && (placement.slots > 1 || placement.order(layer).is_none()) {
            self.begin(layer, next);
        }
    }

    /// Starts to copy the layer with number `order` among those on the host. The products from `layer` on overlap with
    /// the copy.
    fn begin(&mut self, layer: usize, order: usize) {
        let until = self.host.placement.host_layers[order] as usize;
        let window = self.host.layer_bytes[layer..until].iter().sum();
        self.coming = Some(Coming { order, copied: 0, passed: 0, window });
    }

    /// Records copies that overlap with the product that is recorded next, which reads `bytes` bytes of weights.
    pub(crate) fn beside(&mut self, pass: &mut Pass, bytes: u64) {
        let Some(coming) = &mut self.coming else { return };
        coming.passed += bytes;
        let Coming { order, copied, passed, window } = *coming;
        let all = self.blocks(order);
        let least = (MIN_BYTES / self.host.placement.block_bytes).min(all as u64 / MAX_PORTIONS);
        let due =
            usize::try_from(all as u64 * passed.min(window) / window.max(1)).expect("some of all blocks");
        let grain = all.div_ceil(ENDS);
        let due = if passed >= window { all } else { due / grain * grain };
        if due > copied && ((due - copied) as u64 >= least || due == all) {
            self.bring(pass, due);
        }
    }

    /// Returns the number of blocks of a layer on the host.
    fn blocks(&self, order: usize) -> usize {
        self.host.buffers[order].iter().map(|buffer| self.blocks_of(buffer)).sum()
    }

    fn blocks_of(&self, buffer: &Buf<[u32; 4]>) -> usize {
        buffer.len() / self.block_quads()
    }

    fn block_quads(&self) -> usize {
        usize::try_from(self.host.placement.block_bytes / 16).expect("a block is small")
    }

    /// Records the remaining copies of the current layer.
    fn bring_rest(&mut self, pass: &mut Pass) {
        let Some(coming) = self.coming else { return };
        match &self.transport {
            WeightTransport::Kernel { .. } => self.bring(pass, self.blocks(coming.order)),
            WeightTransport::Queue => {
                let slot = &self.slots[coming.order % self.slots.len()];
                for (from, to) in self.host.buffers[coming.order].iter().zip(slot) {
                    pass.copy(from, 0..from.len(), to, 0);
                }
            }
        }
        self.coming = None;
    }

    /// Records copies of the current layer, up to block `until` of all its buffers.
    fn bring(&mut self, pass: &mut Pass, until: usize) {
        let (Some(coming), WeightTransport::Kernel { copy, pairs }) = (self.coming, &self.transport) else {
            return;
        };
        if until > coming.copied {
            pass.split();
        }
        let (from, to) = (&self.host.buffers[coming.order], &self.slots[coming.order % self.slots.len()]);
        let lengths: Vec<usize> = from.iter().map(|buffer| self.blocks_of(buffer)).collect();
        for (buffer, range) in in_buffers(coming.copied..until, &lengths) {
            let at = range.start as u64 * self.host.placement.block_bytes;
            let params = SwapBlocksParams {
                workgroups: WORKGROUPS.min(u32_of(range.len())),
                ..SwapBlocksParams::new(u32_of(self.block_quads()), u32_of(range.len()), Link::Bus)
            };
            let buffers = SwapBlocksBuffers {
                pairs: pairs.bind(),
                source: Bind::at(from[buffer].raw(), at),
                pool: Bind::at(to[buffer].raw(), at),
            };
            pass.dispatch(copy, &params, buffers);
        }
        self.coming = Some(Coming { copied: until, ..coming });
    }
}

/// Divides a range of block numbers, counted through all buffers, into the ranges of each buffer.
fn in_buffers(blocks: Range<usize>, lengths: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let firsts = lengths.iter().scan(0, |next, len| {
        let first = *next;
        *next += len;
        Some(first)
    });
    let part = move |(buffer, (first, len)): (usize, (usize, &usize))| {
        let range = blocks.start.max(first)..blocks.end.min(first + len);
        (!range.is_empty()).then(|| (buffer, range.start - first..range.end - first))
    };
    firsts.zip(lengths).enumerate().filter_map(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any division of a layer into portions, every block of every buffer is copied once, in order.
        #[test]
        fn portions_bring_every_block_once(
            lengths in prop::collection::vec(1..9_usize, 1..6),
            cuts in prop::collection::vec(0..40_usize, 0..6),
        ) {
            let all: usize = lengths.iter().sum();
            let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all)).chain([all]).collect();
            ends.sort_unstable();
            let starts = std::iter::once(0).chain(ends.clone());
            let portions = starts.zip(ends).flat_map(|(start, end)| in_buffers(start..end, &lengths));
            let came: Vec<_> = portions.flat_map(|(buffer, range)| range.map(move |n| (buffer, n))).collect();
            let want = lengths.iter().enumerate().flat_map(|(buffer, len)| (0..*len).map(move |n| (buffer, n)));
            prop_assert_eq!(came, want.collect::<Vec<_>>());
        }
    }
}
