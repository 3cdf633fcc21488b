//! The ring pipeline: rows whose keys do not all lie on the device go through them chunk by chunk.
//!
//! Chunks follow positions, and partitions continue from one to the next: so neither the size of the ring nor its number
//! of slots changes the order of arithmetic of the decode kernel. Sequences that a slot has no room for together go through
//! the ring one group after the other.

use std::ops::Range;

use attn_kernels::kernel::paged_decode::PARTITION;
use attn_kernels::kernel::paged_prefill::Tile;
use attn_kernels::rows::{BlockCopy, DecodeRow, PhysicalBlock};
use kvblock::BlockId;
use rustc_hash::FxHashMap;

use super::staged::Fresh;
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::inputs::{Plan, Rows, ViewRows};
use crate::kv::{Place, ROWS, Ring, Run, runs};
use crate::{KvPool, ModelError};

/// Order in which a step goes through its keys.
#[derive(Debug)]
pub(in crate::decoder) struct Stream {
    /// The step's tables, in which slots of the ring stand for blocks on the host.
    pub(in crate::decoder) tables: Vec<PhysicalBlock>,
    /// Blocks on the host and their places on the device, chunk by chunk, each from where a binding can begin.
    pub(in crate::decoder) pairs: Vec<BlockCopy>,
    /// Groups in the order of rows.
    pub(in crate::decoder) groups: Vec<Group>,
}

/// Slices that go through the ring together.
#[derive(Debug)]
pub(in crate::decoder) struct Group {
    /// Their rows in the step.
    rows: Range<u32>,
    /// Tokens of a chunk, whole partitions.
    pub(in crate::decoder) chunk_tokens: u32,
    pub(in crate::decoder) chunks: Vec<Chunk>,
}

/// Copies that bring a chunk into the ring.
#[derive(Debug)]
pub(in crate::decoder) struct Chunk {
    /// Pairs of the stream.
    pub(in crate::decoder) pairs: Range<usize>,
    /// Copies from the host in runs, where the queue copies.
    pub(in crate::decoder) host: Vec<Run>,
    /// Blocks that this step adds to, which come from their spare blocks on the device.
    pub(in crate::decoder) rooms: Vec<Run>,
}

impl Chunk {
    /// A chunk of blocks on the host and their places on the device, which `pairs` are; `staged` are the rooms where the queue
    /// copies.
    fn new(copies: &[(u32, u32)], staged: Option<&Fresh>, pairs: Range<usize>) -> Self {
        let Some(fresh) = staged else { return Self { pairs, host: Vec::new(), rooms: Vec::new() } };
        let in_rooms = copies.iter().filter_map(|(host, slot)| Some((fresh.room(*host)?, *slot)));
        let on_host = copies.iter().copied().filter(|(host, _)| fresh.room(*host).is_none());
        let (host, rooms) = (runs(&on_host.collect::<Vec<_>>()), runs(&in_rooms.collect::<Vec<_>>()));
        Self { pairs, host, rooms }
    }
}

impl Stream {
    /// Plans the stream of those slices of a step that `streams` names; `None` where all their blocks are resident.
    fn plan(
        kv: &KvPool,
        slices: &[Slice<'_>],
        plan: &Plan,
        streams: impl Fn(usize) -> bool,
    ) -> Result<Option<Self>, ModelError> {
        let Some(ring) = kv.ring() else { return Ok(None) };
        let (block_size, staged) = (kv.shape().block_size, kv.is_staged().then_some(&plan.fresh));
        let on_host = |id: &BlockId| matches!(ring.place(id.get()), Place::Host(_));
        let (mut row, mut at) = (0, 0);
        let mut parts = Vec::new();
        for (index, slice) in slices.iter().enumerate() {
            let rows = row..row + u32_of(slice.tokens.len());
            row = rows.end;
            if streams(index) {
                parts.push(Part { rows, at, table: reached(slice, block_size) });
            }
            at += slice.tables[0].len();
        }
        if !parts.iter().any(|part| part.table.iter().any(on_host)) {
            return Ok(None);
        }
        let mut stream = Self { tables: plan.tables.clone(), pairs: Vec::new(), groups: Vec::new() };
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let needed = |n: usize| largest(&rest[..n], unit(block_size), ring);
            let fits = |n: &usize| needed(*n) <= ring.slot_blocks() as usize;
            let Some(together) = (1..=rest.len()).take_while(fits).last() else {
                return Err(ModelError::Ring { needed: needed(1), slot_blocks: ring.slot_blocks() });
            };
            let (group, others) = rest.split_at(together);
            stream.push(ring, block_size, group, staged);
            rest = others;
        }
        Ok(Some(stream))
    }

    /// Adds a group of slices.
    fn push(&mut self, ring: &Ring, block_size: u32, parts: &[Part<'_>], staged: Option<&Fresh>) {
        let unit = unit(block_size);
        let longest = parts.iter().map(|part| part.table.len()).max().unwrap_or(0);
        let fits = |blocks: &usize| largest(parts, *blocks, ring) <= ring.slot_blocks() as usize;
        let most = (ring.slot_blocks() as usize / unit).min(longest.div_ceil(unit)).max(1);
        let chunk = (1..=most).rev().map(|units| units * unit).find(fits).unwrap_or(unit);
        let mut chunks: Vec<FxHashMap<u32, u32>> = vec![FxHashMap::default(); longest.div_ceil(chunk)];
        let mut copies: Vec<Vec<(u32, u32)>> = vec![Vec::new(); chunks.len()];
        for Part { at, table, .. } in parts {
            for (index, id) in table.iter().enumerate() {
                let Place::Host(host) = ring.place(id.get()) else { continue };
                let number = index / chunk;
                let taken = u32_of(chunks[number].len());
                let slot = *chunks[number].entry(host).or_insert_with(|| {
                    let slot = ring.slot_block(u32_of(number), taken);
                    copies[number].push((host, slot));
                    slot
                });
                self.tables[at + index] = PhysicalBlock(slot);
            }
        }
        let chunk_of = |copies: &Vec<(u32, u32)>| {
            self.pairs.resize(self.pairs.len().next_multiple_of(PAIRS), BlockCopy::default());
            let first = self.pairs.len();
            self.pairs.extend(copies.iter().map(|(from, to)| BlockCopy { from: *from, to: *to }));
            Chunk::new(copies, staged, first..self.pairs.len())
        };
        let chunks = copies.iter().map(chunk_of).collect();
        self.groups.push(Group {
            rows: parts[0].rows.start..parts[parts.len() - 1].rows.end,
            chunk_tokens: u32_of(chunk) * block_size,
            chunks,
        });
    }

    /// Has the rows and tiles of every group begin where a binding can: rows of nothing and copies of tiles fill the gaps.
    fn align(&self, rows: &mut Rows) {
        let tiles = std::mem::take(&mut rows.tiles);
        for group in &self.groups {
            let gap = rows.tiles.last().map(|last| (*last, rows.tiles.len().next_multiple_of(TILES)));
            gap.into_iter().for_each(|(last, len)| rows.tiles.resize(len, last));
            rows.tiles.extend(tiles.iter().filter(|tile| group.rows.contains(&tile.row)));
        }
        let decode = std::mem::take(&mut rows.decode);
        for group in &self.groups {
            rows.decode.resize(rows.decode.len().next_multiple_of(ROWS as usize), DecodeRow::default());
            rows.decode.extend(decode.iter().filter(|row| group.rows.contains(&row.row)));
        }
        let streams = |row: u32| self.groups.iter().any(|group| group.rows.contains(&row));
        rows.decode.extend(decode.iter().filter(|row| !streams(row.row)));
    }
}

/// Tiles and pairs after which a binding can begin: 256 bytes, the largest alignment that devices ask for.
const TILES: usize = 8;
const PAIRS: usize = 32;

impl Group {
    /// Its tiles in an [aligned](Stream::align) list.
    pub(in crate::decoder) fn tiles(&self, tiles: &[Tile]) -> Range<usize> {
        let own = |tile: &Tile| self.rows.contains(&tile.row);
        let first = tiles.iter().position(own).unwrap_or(0);
        let mut end = first;
        // Copies in the gap behind repeat the last row.
        while tiles.get(end).is_some_and(own) && (end == first || tiles[end].row > tiles[end - 1].row) {
            end += 1;
        }
        first..end
    }

    /// Its rows in an [aligned](Stream::align) list.
    pub(in crate::decoder) fn rows(&self, rows: &[DecodeRow]) -> Range<usize> {
        let own = |row: &DecodeRow| row.len > 0 && self.rows.contains(&row.row);
        let first = rows.iter().position(own).unwrap_or(0);
        first..first + rows.iter().filter(|row| own(row)).count()
    }
}

/// A slice on its way through the ring.
struct Part<'a> {
    rows: Range<u32>,
    /// First entry of its table in the step's tables.
    at: usize,
    /// The blocks that its rows attend to.
    table: &'a [BlockId],
}

/// Blocks of a partition.
fn unit(block_size: u32) -> usize {
    (PARTITION / block_size) as usize
}

/// The blocks that the rows of a slice attend to.
fn reached<'a>(slice: &Slice<'a>, block_size: u32) -> &'a [BlockId] {
    let end = slice.first + u32_of(slice.tokens.len());
    &slice.tables[0][..end.div_ceil(block_size) as usize]
}

/// Returns the maximum number of blocks on the host in one chunk of `chunk` blocks per table, shared ones counted each time.
fn largest(parts: &[Part<'_>], chunk: usize, ring: &Ring) -> usize {
    let longest = parts.iter().map(|part| part.table.len()).max().unwrap_or(0);
    let of_chunk = |start: usize| {
        let blocks = parts
            .iter()
            .flat_map(|part| &part.table[start.min(part.table.len())..(start + chunk).min(part.table.len())]);
        blocks.filter(|id| matches!(ring.place(id.get()), Place::Host(_))).count()
    };
    (0..longest).step_by(chunk).map(of_chunk).max().unwrap_or(0)
}

/// Returns the host slots of rows whose blocks lie on the host, -1 for the others; `None` where there are no such rows.
/// They leave the lists of the views.
fn host_slots(ring: &Ring, block_size: u32, plan: &mut Plan) -> Option<Vec<i32>> {
    let place = |slot: i32| ring.place(slot.cast_unsigned() / block_size);
    let on_host = |slot: &i32| match place(*slot) {
        Place::Host(block) => (block * block_size + slot.cast_unsigned() % block_size).cast_signed(),
        Place::Device(_) => -1,
    };
    let all = plan.views.first().map_or(&[][..], |view| &view.slots);
    let host: Vec<i32> = all.iter().map(on_host).collect();
    if host.iter().all(|slot| *slot < 0) {
        return None;
    }
    for view in &mut plan.views {
        for (slot, host) in view.slots.iter_mut().zip(&host) {
            *slot = if *host < 0 { *slot } else { -1 };
        }
    }
    Some(host)
}

/// Finds out which rows of a step go through the ring; returns the bytes that the step writes to the host. `selects` says
/// whether blocks are selected in every layer.
pub(in crate::decoder) fn plan_stream(
    kv: &KvPool,
    slices: &[Slice<'_>],
    plan: &mut Plan,
    selects: bool,
) -> Result<u64, ModelError> {
    let Some(ring) = kv.ring() else { return Ok(0) };
    let block_size = kv.shape().block_size;
    plan.host_slots = host_slots(ring, block_size, plan);
    if let Some(slots) = plan.host_slots.as_mut().filter(|_| kv.is_staged()) {
        plan.fresh = Fresh::divert(slots, block_size);
    }
    // Where the host writes, whole blocks come back.
    let slots = plan.host_slots.iter().flatten().filter(|slot| **slot >= 0).count() as u64;
    let tokens = if kv.is_staged() { plan.fresh.len() as u64 * u64::from(block_size) } else { slots };
    let whole = |view: &ViewRows, slice: usize| {
        let first: usize = slices[..slice].iter().map(|slice| slice.tokens.len()).sum();
        let rows = first..first + slices[slice].tokens.len();
        let rows_of = view.whole.decode.iter().map(|row| row.row);
        rows_of.chain(view.whole.tiles.iter().map(|tile| tile.row)).any(|row| rows.contains(&(row as usize)))
    };
    // Views share the tables; where blocks are selected there is one.
    let streams = |slice: usize| {
        !selects || plan.views.iter().any(|view| view.selecting.is_empty() || whole(view, slice))
    };
    let stream = Stream::plan(kv, slices, plan, streams)?;
    if let Some(stream) = &stream {
        for view in &mut plan.views {
            stream.align(&mut view.all);
            stream.align(&mut view.whole);
        }
    }
    plan.stream = stream;
    Ok(tokens * (kv.plan().block_bytes() / u64::from(block_size)))
}
