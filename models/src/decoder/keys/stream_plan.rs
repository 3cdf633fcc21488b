//! Plans of the ring pipeline: rows whose keys are not all on the device pass through them chunk by chunk.
//!
//! Chunks follow positions, and partitions continue from one to the next: so neither the size of the ring nor its number
//! of slots changes the order of arithmetic of the decode kernel. Sequences that do not fit into a slot together use
//! the ring one group after the other. The rows of each attention group have their own plan, since windows see few blocks.

use std::ops::Range;

use attn_kernels::rows::PhysicalBlock;
use kvblock::BlockId;
use rustc_hash::FxHashMap;

use super::lists::{ENTRIES, StreamLists, push_runs};
use super::offload_plan::OffloadPlan;
use super::staging::DirtyBlocks;
use super::stream::{BlockCopies, BlockSource, KeyChunk, RingGroup, Stream};
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::attention_groups::AttentionGroup;
use crate::decoder::batch::{AttentionRows, Batch, Dense};
use crate::kv::{BlockLocation, KeysIn, Ring};
use crate::{KvPool, ModelError};

/// A sequence that uses the ring.
struct Sequence<'a> {
    rows: Range<u32>,
    /// First entry of the sequence's table in the step's tables.
    at: usize,
    table: &'a [BlockId],
    /// Range of table entries that the sequence's rows attend.
    seen: Range<usize>,
}

/// Inputs of the streams of a step.
struct Planner<'a> {
    ring: &'a Ring,
    kv: &'a KvPool,
    /// Number of blocks per partition.
    unit: usize,
    /// Number of tokens per block.
    block_size: u32,
    dirty: &'a DirtyBlocks,
}

/// Plans the streams of a step, for rows whose keys are not all on the device. `selects` says whether every layer of
/// an attention group with selections selects.
pub(super) fn plan_streams(
    kv: &KvPool,
    ring: &Ring,
    attn_groups: &[AttentionGroup],
    slices: &[Slice<'_>],
    batch: &mut Batch,
    offload_plan: &mut OffloadPlan,
    selects: bool,
) -> Result<(), ModelError> {
    let (Batch { attn_groups: all, tables, .. }, OffloadPlan { dirty, lists, streams, .. }) =
        (batch, offload_plan);
    let block_size = kv.shape().block_size;
    let planner = Planner { ring, kv, unit: ring.partition() as usize, block_size, dirty };
    for ((attn_group, rows), streams) in attn_groups.iter().zip(all).zip(streams) {
        let unused = selects && !rows.selecting.is_empty();
        for which in Dense::BOTH.into_iter().filter(|which| !unused || *which == Dense::Whole) {
            let rows = match which {
                Dense::All => &mut rows.all,
                Dense::Whole => &mut rows.whole,
            };
            let stream = planner.stream(&sequences(attn_group, slices, rows, block_size), tables, lists)?;
            if let Some(stream) = &stream {
                stream.align(&mut rows.decode, &mut rows.tiles);
            }
            streams[which as usize] = stream;
        }
    }
    Ok(())
}

/// Returns the sequences of `rows`, and what they see.
fn sequences<'a>(
    attn_group: &AttentionGroup,
    slices: &[Slice<'a>],
    rows: &AttentionRows,
    block_size: u32,
) -> Vec<Sequence<'a>> {
    let (mut first_row, mut at) = (0, 0);
    let mut sequences = Vec::new();
    for slice in slices {
        let of_slice = first_row..first_row + u32_of(slice.tokens.len());
        let decode = rows.decode.iter().filter(|row| of_slice.contains(&row.row));
        let decode = decode.map(|row| (row.first_key, row.len));
        let tiles = rows.tiles.iter().filter(|tile| of_slice.contains(&tile.row));
        let tiles = tiles.map(|tile| (attn_group.reach.first_key(tile.position), tile.position + tile.rows));
        let seen = decode.chain(tiles).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        if let Some((first, end)) = seen {
            let seen = (first / block_size) as usize..end.div_ceil(block_size) as usize;
            sequences.push(Sequence { rows: of_slice.clone(), at, table: slice.tables[0], seen });
        }
        first_row = of_slice.end;
        at += slice.tables[0].len();
    }
    sequences
}

/// A chunk that is being filled.
#[derive(Default)]
struct Open {
    units: Range<usize>,
    /// Blocks, and their positions in the slot.
    slots: FxHashMap<BlockId, u32>,
    order: Vec<BlockId>,
}

impl Planner<'_> {
    /// Plans the stream of some sequences; `None` if everything they see is resident.
    fn stream(
        &self,
        sequences: &[Sequence<'_>],
        tables: &[PhysicalBlock],
        lists: &mut StreamLists,
    ) -> Result<Option<Stream>, ModelError> {
        let resident = |sequence: &Sequence<'_>| {
            sequence.table[sequence.seen.clone()].iter().all(|id| self.is_resident(*id))
        };
        if sequences.iter().all(resident) {
            return Ok(None);
        }
        let tables_at = lists.tables.len().next_multiple_of(ENTRIES);
        lists.tables.resize(tables_at, PhysicalBlock::default());
        lists.tables.extend_from_slice(tables);
        let mut groups = Vec::new();
        let mut rest = sequences;
        while !rest.is_empty() {
            let needed = |n: usize| self.largest_unit(&rest[..n]);
            let fits = |n: &usize| needed(*n) <= self.ring.slot_blocks() as usize;
            // Partitions of one sequence are in one buffer more often than those of several.
            let max = if self.ring.is_in_place() { 1 } else { rest.len() };
            let Some(together) = (1..=max).take_while(fits).last() else {
                return Err(ModelError::Ring { needed: needed(1), slot_blocks: self.ring.slot_blocks() });
            };
            let (group, others) = rest.split_at(together);
            groups.push(RingGroup {
                rows: group[0].rows.start..group[together - 1].rows.end,
                chunks: self.chunks(group, tables_at, lists),
            });
            rest = others;
        }
        Ok(Some(Stream { tables_at, groups }))
    }

    fn is_resident(&self, id: BlockId) -> bool {
        matches!(self.ring.place(id.get()), BlockLocation::Device(_))
    }

    /// Returns the partitions that sequences see.
    fn units(&self, group: &[Sequence<'_>]) -> Range<usize> {
        let first = group.iter().map(|sequence| sequence.seen.start / self.unit).min().unwrap_or(0);
        first..group.iter().map(|sequence| sequence.seen.end.div_ceil(self.unit)).max().unwrap_or(0)
    }

    /// Returns the blocks of a partition that sequences see, and their entries in the step's tables.
    fn blocks<'b>(
        &self,
        group: &'b [Sequence<'_>],
        unit: usize,
    ) -> impl Iterator<Item = (usize, BlockId)> + use<'b> {
        let unit = unit * self.unit..(unit + 1) * self.unit;
        group.iter().flat_map(move |sequence| {
            let seen = sequence.seen.start.max(unit.start)..sequence.seen.end.min(unit.end);
            seen.map(|index| (sequence.at + index, sequence.table[index]))
        })
    }

    /// Returns the number of blocks of the largest partition. Shared blocks count each time.
    fn largest_unit(&self, group: &[Sequence<'_>]) -> usize {
        self.units(group).map(|unit| self.blocks(group, unit).count()).max().unwrap_or(0)
    }

    /// Returns the buffers in which all blocks of a partition can be attended in place; `None` if there are no such
    /// buffers.
    fn in_place(&self, group: &[Sequence<'_>], unit: usize) -> Option<KeysIn> {
        let mut places =
            self.blocks(group, unit).map(|(_, id)| Some(self.ring.in_place_location(id.get())?.0));
        let first = places.next().unwrap_or(Some(KeysIn::Layer))?;
        places.all(|at| at == Some(first)).then_some(first)
    }

    /// Divides the keys of a group into chunks. Leading partitions that are resident are attended in place. Later resident blocks
    /// pass through a slot with the others, since one dispatch reads one buffer. If all blocks are attended in place, a chunk
    /// ends with its buffer.
    fn chunks(&self, group: &[Sequence<'_>], tables_at: usize, lists: &mut StreamLists) -> Vec<KeyChunk> {
        let mut chunks: Vec<KeyChunk> = Vec::new();
        let mut open = Open::default();
        let mut leading = true;
        for unit in self.units(group) {
            leading |= self.ring.is_in_place();
            if let Some(at) = self.in_place(group, unit).filter(|_| leading) {
                if !open.order.is_empty() {
                    chunks.push(self.close(std::mem::take(&mut open), lists));
                }
                for (entry, id) in self.blocks(group, unit) {
                    let (_, block) = self.ring.in_place_location(id.get()).expect("the partition has a home");
                    lists.tables[tables_at + entry] = PhysicalBlock(block);
                }
                let keys = self.keys(unit..unit + 1);
                match chunks.last_mut().filter(|last| last.parts.is_empty() && last.at == at) {
                    Some(last) => last.keys.end = keys.end,
                    None => chunks.push(KeyChunk { keys, parts: Vec::new(), at }),
                }
                continue;
            }
            leading = false;
            let new = self.blocks(group, unit).filter(|(_, id)| !open.slots.contains_key(id)).count();
            if open.order.len() + new > self.ring.slot_blocks() as usize {
                chunks.push(self.close(std::mem::take(&mut open), lists));
            }
            if open.order.is_empty() {
                open.units = unit..unit;
            }
            open.units.end = unit + 1;
            for (entry, id) in self.blocks(group, unit) {
                let next = u32_of(open.order.len());
                let slot = *open.slots.entry(id).or_insert(next);
                if slot == next {
                    open.order.push(id);
                }
                lists.tables[tables_at + entry] = PhysicalBlock(slot);
            }
        }
        if !open.order.is_empty() {
            chunks.push(self.close(open, lists));
        }
        chunks
    }

    /// Returns the range of positions of the partitions `units`.
    fn keys(&self, units: Range<usize>) -> Range<u32> {
        let tokens = |units: usize| u32_of(units * self.unit) * self.block_size;
        tokens(units.start)..tokens(units.end)
    }

    /// Finishes a chunk.
    fn close(&self, open: Open, lists: &mut StreamLists) -> KeyChunk {
        // The host writes blocks from disk right before the chunk is attended, when the slot is free.
        const PARTS: [(BlockSource, bool); 5] = [
            (BlockSource::Host, false),
            (BlockSource::Host, true),
            (BlockSource::Resident, true),
            (BlockSource::Staging, true),
            (BlockSource::Disk, true),
        ];
        let mut copies: [Vec<(u32, u32)>; 5] = Default::default();
        for (id, slot) in open.order.iter().zip(0..) {
            let staging =
                self.ring.off_device_index(id.get()).and_then(|block| self.dirty.staging_index(block));
            let (part, from) = match (self.ring.place(id.get()), staging) {
                (BlockLocation::Device(block), _) => (2, block),
                (BlockLocation::Host(_) | BlockLocation::Disk(_), Some(index)) => (3, index),
                (BlockLocation::Host(block), None) => (usize::from(self.dirty.is_written(block)), block),
                (BlockLocation::Disk(block), None) => (4, block),
            };
            copies[part].push((from, slot));
        }
        // Copies of one buffer on the host are consecutive.
        copies[..2].iter_mut().for_each(|of_host| of_host.sort_unstable());
        let parts = PARTS.into_iter().zip(copies).filter(|(_, copies)| !copies.is_empty());
        let segment = |block| self.kv.segment_of(block);
        let together = |from, a, b| from != BlockSource::Host || segment(a) == segment(b);
        let parts = parts.map(|((from, late), copies)| BlockCopies {
            from,
            late,
            pairs: push_runs(&mut lists.pairs, &copies, 0, |a, b| together(from, a, b)),
        });
        KeyChunk { keys: self.keys(open.units), parts: parts.collect(), at: KeysIn::Layer }
    }
}
