//! Staging blocks on the device, for blocks on the host that a step writes.
//!
//! New keys and values are written to staging blocks, which also hold the earlier tokens of their blocks. The ring copies from
//! there, and the host gets whole blocks: from a kernel during the layer's attention, or with the step's results if kernels
//! cannot access host memory.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Gpu, Pass, PassResults, Read};
use attn_kernels::rows::{BlockCopy, KvWord};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::lists::push_copies;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::{KvPool, ModelError};

/// Staging blocks of a step.
#[derive(Debug)]
pub(super) struct StagingBlocks {
    /// Buffers of K and V, or of latents: a set for each layer if the host reads them back at the step's end, otherwise
    /// one set that layers use in turn.
    layers: Vec<SmallVec<[GrowBuf<KvWord>; 2]>>,
}

/// The blocks off the device that a step writes, in the order of their staging blocks, if they have some.
#[derive(Debug, Default)]
pub(in crate::decoder) struct DirtyBlocks {
    blocks: Vec<u32>,
    /// Blocks that hold tokens of earlier steps.
    partial: Vec<u32>,
    numbers: FxHashMap<u32, u32>,
    /// Whether the blocks have staging blocks.
    in_staging: bool,
    /// Number of blocks in host memory; larger numbers are blocks on disk.
    host_blocks: u32,
    /// Pairs of block and staging block, for partly filled blocks on the host and for blocks that the step only reads.
    pub(super) to_staging: [Range<usize>; 2],
    /// Pairs of staging block and block, for all dirty blocks on the host.
    pub(super) to_host: Range<usize>,
    /// Pairs of staging block and block id, of blocks whose keys are copied to the [board](KvPool::board): dirty ones, and those
    /// that the step only reads.
    pub(super) board: Range<usize>,
    /// Number of further staging blocks, for blocks that the step only reads.
    read_only: usize,
    /// Pairs of a block's number on disk and its staging block.
    pub(super) disk_to_staging: Vec<(u32, u32)>,
    pub(super) staging_to_disk: Vec<(u32, u32)>,
}

impl DirtyBlocks {
    /// Finds the blocks of `slots`, apart from -1. Rows of a sequence must be in the order of positions.
    pub(super) fn of(slots: &[i32], block_size: u32, host_blocks: u32) -> Self {
        let mut dirty = Self { host_blocks, ..Self::default() };
        for slot in slots.iter().filter(|slot| **slot >= 0) {
            let (block, offset) = (slot.cast_unsigned() / block_size, slot.cast_unsigned() % block_size);
            dirty.numbers.entry(block).or_insert_with(|| {
                let index = u32_of(dirty.blocks.len());
                dirty.blocks.push(block);
                dirty.partial.extend((offset > 0).then_some(index));
                index
            });
        }
        dirty
    }

    /// Assigns staging blocks, and changes the slots to those of the staging blocks.
    pub(super) fn divert(&mut self, slots: &mut [i32], block_size: u32, pairs: &mut Vec<BlockCopy>) {
        self.in_staging = true;
        for slot in slots.iter_mut().filter(|slot| **slot >= 0) {
            let (block, offset) = (slot.cast_unsigned() / block_size, slot.cast_unsigned() % block_size);
            *slot = (self.numbers[&block] * block_size + offset).cast_signed();
        }
        let of = |index: u32| self.blocks[index as usize];
        let to_staging = self.partial.iter().map(|index| (of(*index), *index));
        let to_host = (0..u32_of(self.blocks.len())).map(|index| (index, of(index)));
        let on_host = |block: u32| block < self.host_blocks;
        let (mut to_staging, disk_to_staging): (Vec<_>, Vec<_>) =
            to_staging.partition(|(block, _)| on_host(*block));
        let (mut to_host, staging_to_disk): (Vec<_>, Vec<_>) =
            to_host.partition(|(_, block)| on_host(*block));
        // Copies of one buffer on the host are consecutive.
        to_staging.sort_unstable();
        to_host.sort_unstable_by_key(|(_, block)| *block);
        // Lists have the same length whether a sequence continues a block or begins one.
        (self.to_staging[0], self.to_host) =
            (push_copies(pairs, &to_staging, to_host.len()), push_copies(pairs, &to_host, 0));
        self.disk_to_staging =
            disk_to_staging.into_iter().map(|(block, index)| (block - self.host_blocks, index)).collect();
        self.staging_to_disk =
            staging_to_disk.into_iter().map(|(index, block)| (index, block - self.host_blocks)).collect();
    }

    /// Assigns further staging blocks to blocks that the step summarises but does not write, and lists all blocks whose
    /// keys go to the board.
    pub(super) fn add_read_only(&mut self, blocks: &[u32], pairs: &mut Vec<BlockCopy>) {
        let staging = u32_of(self.blocks.len())..;
        self.read_only = blocks.len();
        let read_only = || blocks.iter().copied().zip(staging.clone());
        let (on_host, on_disk): (Vec<_>, Vec<_>) =
            read_only().partition(|(block, _)| *block < self.host_blocks);
        self.to_staging[1] = push_copies(pairs, &on_host, 0);
        self.disk_to_staging
            .extend(on_disk.into_iter().map(|(block, index)| (block - self.host_blocks, index)));
        let written = (0..).zip(self.blocks.iter().copied());
        let read_only = read_only().map(|(block, index)| (index, block));
        self.board = push_copies(pairs, &written.chain(read_only).collect::<Vec<_>>(), 0);
    }

    /// Returns the lists of copies between staging blocks and host, which the step's commands depend on.
    pub(super) fn copies(&self) -> impl Iterator<Item = &Range<usize>> {
        self.to_staging.iter().chain([&self.to_host])
    }

    /// Number of staging blocks of the step.
    fn staging(&self) -> usize {
        self.blocks.len() + self.read_only
    }

    /// Whether the blocks have staging blocks: there are dirty blocks, and kernels do not write to the host themselves.
    pub(super) fn in_staging(&self) -> bool {
        self.in_staging
    }

    /// Returns the blocks, each once.
    pub(in crate::decoder) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Returns the dirty blocks in host memory, each with its staging block.
    pub(super) fn on_host(&self) -> impl Iterator<Item = (usize, u32)> {
        let all = self.blocks.iter().copied().enumerate();
        all.filter(|(_, block)| *block < self.host_blocks)
    }

    /// Whether the step writes a block on the host.
    pub(super) fn is_written(&self, block: u32) -> bool {
        self.numbers.contains_key(&block)
    }

    /// Returns the staging block of a block on the host, if it has one.
    pub(super) fn staging_index(&self, block: u32) -> Option<u32> {
        self.numbers.get(&block).copied().filter(|_| self.in_staging)
    }
}

/// Readbacks of a layer's staging blocks.
pub(in crate::decoder) type Return = SmallVec<[Read<KvWord>; 2]>;

impl StagingBlocks {
    /// Creates staging blocks for blocks of a pool.
    pub(super) fn new(gpu: &Gpu, kv: &KvPool, layers: u32) -> Result<Self, ModelError> {
        let staging = |layer: u32| {
            kv.attended(layer as usize).0.iter().map(|_| GrowBuf::new(gpu, "staging", 1)).collect()
        };
        let layers = if kv.is_staged() { layers } else { 1 };
        Ok(Self { layers: (0..layers).map(staging).collect::<Result<_, ModelError>>()? })
    }

    /// Returns K and V, or latents, of a layer.
    pub(super) fn of(&self, layer: usize) -> impl Iterator<Item = &Buf<KvWord>> {
        self.layers[layer % self.layers.len()].iter().map(|index| &**index)
    }

    /// Returns the length of each buffer of one layer, from which the lengths in other layers follow.
    pub(super) fn lens(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().take(1).flatten().map(|index| index.len())
    }

    /// Allocates staging blocks for the dirty blocks.
    pub(super) fn fit(&mut self, gpu: &Gpu, kv: &KvPool, dirty: &DirtyBlocks) -> Result<(), ModelError> {
        for (layer, staging) in self.layers.iter_mut().enumerate() {
            let words = dirty.staging() * kv.attended(layer).1;
            staging.iter_mut().try_for_each(|index| index.fit(gpu, words))?;
        }
        Ok(())
    }

    /// Records the readback of dirty blocks, by layer.
    pub(super) fn read(&self, pass: &mut Pass, kv: &KvPool, dirty: &DirtyBlocks) -> Vec<Return> {
        let mut read = |(layer, staging): (usize, &SmallVec<[GrowBuf<KvWord>; 2]>)| {
            let words = dirty.blocks.len() * kv.attended(layer).1;
            staging.iter().map(|staging| pass.read(staging, 0..words)).collect()
        };
        let layers = if dirty.blocks.is_empty() { &[][..] } else { &self.layers };
        layers.iter().enumerate().map(&mut read).collect()
    }
}

impl DirtyBlocks {
    /// Writes the dirty blocks that were read back to host memory.
    pub(in crate::decoder) fn keep(
        &self,
        gpu: &Gpu,
        kv: &KvPool,
        layers: Vec<Return>,
        done: &PassResults,
    ) -> Result<(), ModelError> {
        if layers.is_empty() {
            return Ok(());
        }
        let layers: Vec<SmallVec<[Vec<KvWord>; 2]>> =
            layers.into_iter().map(|reads| reads.into_iter().map(|read| done.get(read)).collect()).collect();
        let mut written: Vec<(usize, u32)> = self.on_host().collect();
        written.sort_unstable_by_key(|(_, block)| *block);
        let mut writes = Vec::new();
        for (layer, staging) in layers.iter().enumerate() {
            let words = kv.attended(layer).1;
            for some in written.chunk_by(|a, b| kv.segment_of(a.1) == kv.segment_of(b.1)) {
                let segment = kv.segment_of(some[0].1);
                let at = |block: u32| (block - kv.host_segment(segment).start) as usize * words;
                // A buffer is mapped once for consecutive writes.
                for (host, staging) in kv.host_attended(layer, segment).iter().zip(staging) {
                    let of = |(index, block): &(usize, u32)| {
                        (host, at(*block), &staging[index * words..][..words])
                    };
                    writes.extend(some.iter().map(of));
                }
            }
        }
        // All at once: each call waits for the device.
        Ok(gpu.write_mapped(&writes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_get_rooms_in_the_order_of_rows() {
        // Block 7 from its third token on, a row on the device, all of block 2, the begin of block 9.
        let mut slots = [30, 31, -1, 8, 9, 10, 11, 36];
        let (mut dirty, mut copies) = (DirtyBlocks::of(&slots, 4, 8), Vec::new());
        assert_eq!(
            [2, 3, 7].map(|block| (dirty.is_written(block), dirty.staging_index(block))),
            [(true, None), (false, None), (true, None)]
        );
        dirty.divert(&mut slots, 4, &mut copies);
        assert_eq!(slots, [2, 3, -1, 4, 5, 6, 7, 8]);
        assert_eq!((&dirty.blocks[..], &dirty.partial[..]), (&[7, 2, 9][..], &[0][..]));
        assert_eq!([2, 3].map(|block| dirty.staging_index(block)), [Some(1), None]);
        let pairs = |range: &Range<usize>| {
            let copies = copies[range.clone()].iter().filter(|copy| copy.is_some());
            copies.map(|copy| (copy.from, copy.to)).collect::<Vec<_>>()
        };
        assert_eq!(
            (pairs(&dirty.to_staging[0]), pairs(&dirty.to_host)),
            (vec![(7, 0)], vec![(1, 2), (0, 7)])
        );
        // The host has 8 blocks: number 9 is the second one on disk.
        assert_eq!((&dirty.disk_to_staging[..], &dirty.staging_to_disk[..]), (&[][..], &[(2, 1)][..]));
        // One on the host and one on disk are only read.
        dirty.add_read_only(&[5, 10], &mut copies);
        let pairs = |range: &Range<usize>| {
            let copies = copies[range.clone()].iter().filter(|copy| copy.is_some());
            copies.map(|copy| (copy.from, copy.to)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(&dirty.to_staging[1]), [(5, 3)]);
        assert_eq!((&dirty.disk_to_staging[..], dirty.staging()), (&[(2, 4)][..], 5));
        assert_eq!(pairs(&dirty.board), [(0, 7), (1, 2), (2, 9), (3, 5), (4, 10)]);
    }
}
