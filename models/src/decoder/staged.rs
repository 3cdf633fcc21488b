//! Blocks on the host that kernels cannot reach: what a step writes of them.
//!
//! New keys and values go to rooms on the device, one a block, beside the blocks' earlier tokens. The ring takes these
//! blocks from there, and the host gets them with the step's results. So every kernel sees the bytes that it sees where it
//! can write to memory of the host.

use attn_kernels::gpu::{Buf, Gpu, Outcome, Pass, Read};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Decoder;
use super::inputs::{Plan, u32_of};
use super::sparse::fit;
use crate::{KvPool, ModelError};

/// Rooms on the device for the blocks of a step.
#[derive(Debug)]
pub(super) struct Staged {
    /// K and V, or latents, of each layer.
    rooms: Vec<SmallVec<[Buf<u32>; 2]>>,
}

/// The blocks on the host that a step writes, in the order of their rooms.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    blocks: Vec<u32>,
    /// Rooms of those that hold tokens of earlier steps.
    begun: Vec<u32>,
    rooms: FxHashMap<u32, u32>,
}

impl Fresh {
    /// Finds the blocks of `slots`, -1 apart, which become slots of rooms. Rows of a sequence are in the order of positions.
    pub(super) fn divert(slots: &mut [i32], block_size: u32) -> Self {
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

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The room of a block on the host, if the step writes it.
    pub(super) fn room(&self, block: u32) -> Option<u32> {
        self.rooms.get(&block).copied()
    }
}

/// What comes back of a layer's rooms.
pub(super) type Return = SmallVec<[Read<u32>; 2]>;

impl Staged {
    /// Where blocks of the pool lie in memory that kernels cannot reach.
    pub(super) fn new(gpu: &Gpu, kv: &KvPool, layers: u32) -> Result<Option<Self>, ModelError> {
        let rooms = |layer: u32| -> Result<_, ModelError> {
            let buffers = kv.attended(layer as usize).0.iter();
            Ok(buffers.map(|_| gpu.buffer("rooms", 1)).collect::<Result<_, _>>()?)
        };
        let all = || Ok(Self { rooms: (0..layers).map(rooms).collect::<Result<_, ModelError>>()? });
        kv.is_staged().then(all).transpose()
    }

    /// K and V, or latents, of a layer.
    pub(super) fn rooms(&self, layer: usize) -> &[Buf<u32>] {
        &self.rooms[layer]
    }
}

impl Decoder {
    /// Makes room for what the step writes.
    pub(super) fn begin_staged(&mut self, plan: &Plan) -> Result<(), ModelError> {
        let Some(staged) = &mut self.staged else { return Ok(()) };
        for (layer, rooms) in staged.rooms.iter_mut().enumerate() {
            let words = plan.fresh.blocks.len() * self.kv.attended(layer).1;
            rooms.iter_mut().try_for_each(|room| fit(&self.gpu, room, words))?;
        }
        Ok(())
    }

    /// Records that blocks to which the step adds tokens come to their rooms.
    pub(super) fn fetch_begun(&self, pass: &mut Pass, layer: usize, plan: &Plan) {
        let (Some(staged), Some(host_bufs)) = (&self.staged, self.kv.host_attended(layer)) else { return };
        let words = self.kv.attended(layer).1;
        if let Some(ring) = self.kv.ring() {
            ring.count(plan.fresh.begun.len() as u64);
        }
        for room in &plan.fresh.begun {
            let host = plan.fresh.blocks[*room as usize] as usize * words;
            for (host_buf, rooms) in host_bufs.iter().zip(staged.rooms(layer)) {
                pass.copy(host_buf, host..host + words, rooms, *room as usize * words);
            }
        }
    }

    /// Records the way back of what the step wrote, by layer.
    pub(super) fn read_fresh(&self, pass: &mut Pass, plan: &Plan) -> Vec<Return> {
        let blocks = plan.fresh.blocks.len();
        let staged = self.staged.as_ref().filter(|_| blocks > 0);
        let layers = staged.map_or(&[][..], |staged| &staged.rooms).iter().enumerate();
        let mut read = |(layer, rooms): (usize, &SmallVec<[Buf<u32>; 2]>)| {
            let words = blocks * self.kv.attended(layer).1;
            rooms.iter().map(|rooms| pass.read(rooms, 0..words)).collect()
        };
        layers.map(&mut read).collect()
    }

    /// Writes what the step wrote to the host.
    pub(super) fn keep_fresh(
        &self,
        plan: &Plan,
        layers: Vec<Return>,
        done: &Outcome,
    ) -> Result<(), ModelError> {
        if layers.is_empty() {
            return Ok(());
        }
        let layers: Vec<SmallVec<[Vec<u32>; 2]>> =
            layers.into_iter().map(|reads| reads.into_iter().map(|read| done.get(read)).collect()).collect();
        let mut writes = Vec::new();
        for (layer, rooms) in layers.iter().enumerate() {
            let words = self.kv.attended(layer).1;
            let host = self.kv.host_attended(layer).expect("what is staged has a host");
            for (host, rooms) in host.iter().zip(rooms) {
                let at = plan.fresh.blocks.iter().map(|block| *block as usize * words);
                writes.extend(at.zip(rooms.chunks_exact(words)).map(|(at, room)| (host, at, room)));
            }
        }
        // All at once: each call waits for the device.
        Ok(self.gpu.write_mapped(&writes)?)
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
