//! Blocks on the host that kernels cannot reach: what a step writes of them.
//!
//! New keys and values go to rooms on the device, one a block, beside the blocks' earlier tokens. The ring takes these
//! blocks from there, and the host gets them with the step's results. So every kernel sees the bytes that it sees where it
//! can write to memory of the host.

use attn_kernels::gpu::{Gpu, Outcome, Pass, Read};
use attn_kernels::rows::KvWord;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::{KvPool, ModelError};

/// Rooms on the device for the blocks of a step.
#[derive(Debug)]
pub(in crate::decoder) struct Staged {
    /// K and V, or latents, of each layer.
    rooms: Vec<SmallVec<[GrowBuf<KvWord>; 2]>>,
}

/// The blocks on the host that a step writes, in the order of their rooms.
#[derive(Debug, Default)]
pub(in crate::decoder) struct Fresh {
    blocks: Vec<u32>,
    /// Rooms of those that hold tokens of earlier steps.
    begun: Vec<u32>,
    rooms: FxHashMap<u32, u32>,
}

impl Fresh {
    /// Finds the blocks of `slots`, -1 apart, which become slots of rooms. Rows of a sequence are in the order of positions.
    pub(in crate::decoder) fn divert(slots: &mut [i32], block_size: u32) -> Self {
        let mut fresh = Self::default();
        for slot in slots.iter_mut().filter(|slot| **slot >= 0) {
            let (block, offset) = (slot.cast_unsigned() / block_size, slot.cast_unsigned() % block_size);
            let room = *fresh.rooms.entry(block).or_insert_with(|| {
                let room = u32_of(fresh.blocks.len());
                fresh.blocks.push(block);
                fresh.begun.extend((offset > 0).then_some(room));
                room
            });
            *slot = (room * block_size + offset).cast_signed();
        }
        fresh
    }

    /// Returns the number of rooms.
    pub(in crate::decoder) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The room of a block on the host, if the step writes it.
    pub(in crate::decoder) fn room(&self, block: u32) -> Option<u32> {
        self.rooms.get(&block).copied()
    }
}

/// Readbacks of a layer's rooms.
pub(in crate::decoder) type Return = SmallVec<[Read<KvWord>; 2]>;

impl Staged {
    /// Rooms for blocks of a pool that lie in memory that kernels cannot reach; `None` where they do not.
    pub(in crate::decoder) fn new(gpu: &Gpu, kv: &KvPool, layers: u32) -> Result<Option<Self>, ModelError> {
        let rooms = |layer: u32| {
            kv.attended(layer as usize).0.iter().map(|_| GrowBuf::new(gpu, "rooms", 1)).collect()
        };
        let all = || Ok(Self { rooms: (0..layers).map(rooms).collect::<Result<_, ModelError>>()? });
        kv.is_staged().then(all).transpose()
    }

    /// K and V, or latents, of a layer.
    pub(in crate::decoder) fn rooms(&self, layer: usize) -> &[GrowBuf<KvWord>] {
        &self.rooms[layer]
    }

    /// Makes room for what the step writes.
    pub(in crate::decoder) fn begin(
        &mut self,
        gpu: &Gpu,
        kv: &KvPool,
        fresh: &Fresh,
    ) -> Result<(), ModelError> {
        for (layer, rooms) in self.rooms.iter_mut().enumerate() {
            let words = fresh.blocks.len() * kv.attended(layer).1;
            rooms.iter_mut().try_for_each(|room| room.fit(gpu, words))?;
        }
        Ok(())
    }

    /// Records that blocks to which the step adds tokens come to their rooms; returns how many these are.
    pub(in crate::decoder) fn fetch_begun(
        &self,
        pass: &mut Pass,
        kv: &KvPool,
        layer: usize,
        fresh: &Fresh,
    ) -> u64 {
        let words = kv.attended(layer).1;
        for room in &fresh.begun {
            let host = fresh.blocks[*room as usize] as usize * words;
            for (host_buf, rooms) in kv.host_attended(layer).iter().zip(self.rooms(layer)) {
                pass.copy(host_buf, host..host + words, rooms, *room as usize * words);
            }
        }
        fresh.begun.len() as u64
    }

    /// Records the way back of what the step wrote, by layer.
    pub(in crate::decoder) fn read(&self, pass: &mut Pass, kv: &KvPool, fresh: &Fresh) -> Vec<Return> {
        let mut read = |(layer, rooms): (usize, &SmallVec<[GrowBuf<KvWord>; 2]>)| {
            let words = fresh.blocks.len() * kv.attended(layer).1;
            rooms.iter().map(|rooms| pass.read(rooms, 0..words)).collect()
        };
        let layers = if fresh.blocks.is_empty() { &[][..] } else { &self.rooms };
        layers.iter().enumerate().map(&mut read).collect()
    }
}

impl Fresh {
    /// Writes what the step wrote to the host.
    pub(in crate::decoder) fn keep(
        &self,
        gpu: &Gpu,
        kv: &KvPool,
        layers: Vec<Return>,
        done: &Outcome,
    ) -> Result<(), ModelError> {
        if layers.is_empty() {
            return Ok(());
        }
        let layers: Vec<SmallVec<[Vec<KvWord>; 2]>> =
            layers.into_iter().map(|reads| reads.into_iter().map(|read| done.get(read)).collect()).collect();
        let mut writes = Vec::new();
        for (layer, rooms) in layers.iter().enumerate() {
            let words = kv.attended(layer).1;
            for (host, rooms) in kv.host_attended(layer).iter().zip(rooms) {
                let at = self.blocks.iter().map(|block| *block as usize * words);
                writes.extend(at.zip(rooms.chunks_exact(words)).map(|(at, room)| (host, at, room)));
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
        let fresh = Fresh::divert(&mut slots, 4);
        assert_eq!(slots, [2, 3, -1, 4, 5, 6, 7, 8]);
        assert_eq!((&fresh.blocks[..], &fresh.begun[..]), (&[7, 2, 9][..], &[0][..]));
        assert_eq!([2, 3].map(|block| fresh.room(block)), [Some(1), None]);
    }
}
