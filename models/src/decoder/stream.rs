//! The ring pipeline: rows whose keys do not all lie on the device go through them chunk by chunk.
//!
//! Chunks follow positions, and partitions continue from one to the next: so neither the size of the ring nor its number
//! of slots changes the order of arithmetic of the decode kernel. Sequences that a slot has no room for together go through
//! the ring one group after the other.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Pass};
use attn_kernels::kernel::paged_decode::PARTITION;
use kvblock::BlockId;
use rustc_hash::FxHashMap;

use super::Decoder;
use super::inputs::{Plan, Rows, ViewRows};
use super::sparse::Sparse;
use super::staged::Fresh;
use crate::ModelError;
use crate::batch::Slice;
use crate::kv::{Place, ROWS, Ring, Run, runs};

/// How a step goes through its keys.
#[derive(Debug)]
pub(super) struct Stream {
    /// The step's tables, in which slots of the ring stand for blocks on the host.
    pub(super) tables: Vec<u32>,
    /// In the order of rows.
    pub(super) groups: Vec<Group>,
}

/// Slices that go through the ring together.
#[derive(Debug)]
pub(super) struct Group {
    /// Their rows in the step.
    rows: Range<u32>,
    /// Tokens of a chunk, whole partitions.
    pub(super) chunk_tokens: u32,
    chunks: Vec<Chunk>,
}

/// Copies that bring a chunk into the ring.
#[derive(Debug)]
struct Chunk {
    host: Vec<Run>,
    /// Of blocks that only the host writes and this step adds to, from their rooms on the device.
    rooms: Vec<Run>,
}

impl Chunk {
    /// Of blocks on the host and their places on the device.
    fn new(copies: &[(u32, u32)], fresh: &Fresh) -> Self {
        let in_rooms = copies.iter().filter_map(|(host, slot)| Some((fresh.room(*host)?, *slot)));
        let on_host = copies.iter().copied().filter(|(host, _)| fresh.room(*host).is_none());
        Self { host: runs(&on_host.collect::<Vec<_>>()), rooms: runs(&in_rooms.collect::<Vec<_>>()) }
    }
}

impl Stream {
    /// Plans the stream of those slices of a step that `streams` names; `None` where all their blocks are resident.
    fn plan(
        ring: &Ring,
        block_size: u32,
        slices: &[Slice<'_>],
        plan: &Plan,
        streams: impl Fn(usize) -> bool,
    ) -> Result<Option<Self>, ModelError> {
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
        let mut stream = Self { tables: plan.tables.clone(), groups: Vec::new() };
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let needed = |n: usize| largest(&rest[..n], unit(block_size), ring);
            let fits = |n: &usize| needed(*n) <= ring.slot_blocks() as usize;
            let Some(together) = (1..=rest.len()).take_while(fits).last() else {
                return Err(ModelError::Ring { needed: needed(1), slot_blocks: ring.slot_blocks() });
            };
            let (group, others) = rest.split_at(together);
            stream.push(ring, block_size, group, &plan.fresh);
            rest = others;
        }
        Ok(Some(stream))
    }

    /// Adds a group of slices.
    fn push(&mut self, ring: &Ring, block_size: u32, parts: &[Part<'_>], fresh: &Fresh) {
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
                self.tables[at + index] = slot;
            }
        }
        self.groups.push(Group {
            rows: parts[0].rows.start..parts[parts.len() - 1].rows.end,
            chunk_tokens: u32_of(chunk) * block_size,
            chunks: copies.iter().map(|copies| Chunk::new(copies, fresh)).collect(),
        });
    }

    /// Has the rows of every group begin where a binding can: rows of nothing fill the gaps.
    fn align(&self, rows: &mut Rows) {
        let decode = std::mem::take(&mut rows.decode);
        for group in &self.groups {
            rows.decode.resize(rows.decode.len().next_multiple_of(ROWS as usize), [0; 4]);
            rows.decode.extend(decode.iter().filter(|row| group.rows.contains(&row[0])));
        }
        let streams = |row: u32| self.groups.iter().any(|group| group.rows.contains(&row));
        rows.decode.extend(decode.iter().filter(|row| !streams(row[0])));
    }
}

impl Group {
    /// Its rows in an [aligned](Stream::align) list.
    pub(super) fn rows(&self, rows: &Rows) -> Range<usize> {
        let own = |row: &[u32; 4]| row[1] > 0 && self.rows.contains(&row[0]);
        let first = rows.decode.iter().position(own).unwrap_or(0);
        first..first + rows.decode.iter().filter(|row| own(row)).count()
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

/// Most blocks on the host that one chunk of `chunk` blocks a table has, shared ones counted each time.
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

/// Where keys and values of rows go whose blocks lie on the host, -1 for the others; `None` where there are no such rows.
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

/// What the slots of a layer's ring hold while its attention is recorded.
pub(super) struct Loaded(Vec<Option<usize>>);

impl Decoder {
    /// Finds out which rows go through the ring.
    pub(super) fn plan_stream(&self, slices: &[Slice<'_>], plan: &mut Plan) -> Result<(), ModelError> {
        let Some(ring) = self.kv.ring() else { return Ok(()) };
        let block_size = self.options.block_size;
        plan.host_slots = host_slots(ring, block_size, plan);
        if let Some(slots) = plan.host_slots.as_mut().filter(|_| self.kv.is_staged()) {
            plan.fresh = Fresh::divert(slots, block_size);
        }
        // Where the host writes, whole blocks come back.
        let slots = plan.host_slots.iter().flatten().filter(|slot| **slot >= 0).count() as u64;
        let tokens =
            if self.kv.is_staged() { plan.fresh.len() as u64 * u64::from(block_size) } else { slots };
        ring.count_written(tokens * (self.kv.plan().block_bytes() / u64::from(block_size)));
        let selects = |sparse: &Sparse| !(0..self.layers.len()).any(|layer| sparse.is_dense(layer));
        let selects = self.sparse.as_ref().is_some_and(selects);
        let whole = |view: &ViewRows, slice: usize| {
            let first: usize = slices[..slice].iter().map(|slice| slice.tokens.len()).sum();
            let rows = first..first + slices[slice].tokens.len();
            view.whole.decode.iter().any(|row| rows.contains(&(row[0] as usize)))
        };
        // Views share the tables; where blocks are selected there is one.
        let streams = |slice: usize| {
            !selects || plan.views.iter().any(|view| view.chosen.is_empty() || whole(view, slice))
        };
        let stream = Stream::plan(ring, block_size, slices, plan, streams)?;
        if let Some(stream) = &stream {
            for view in &mut plan.views {
                stream.align(&mut view.all);
                stream.align(&mut view.whole);
            }
        }
        plan.stream = stream;
        Ok(())
    }

    /// An empty ring.
    pub(super) fn unloaded(&self) -> Loaded {
        let slots = self.kv.ring().map_or(0, Ring::slots);
        Loaded(vec![None; slots as usize])
    }

    /// Records the copies that bring chunk `number` of a layer into its slot, unless it is there.
    pub(super) fn fetch(
        &self,
        pass: &mut Pass,
        layer: usize,
        group: &Group,
        number: usize,
        loaded: &mut Loaded,
    ) {
        let Some(ring) = self.kv.ring() else { return };
        let slot = number % loaded.0.len();
        if loaded.0[slot].replace(number) == Some(number) {
            return;
        }
        let (device, words) = self.kv.attended(layer);
        let host = self.kv.host_attended(layer).expect("a ring comes with a host");
        let mut copy = |runs: &[Run], from: &[Buf<u32>]| {
            for run in runs {
                let range = run.from.start as usize * words..run.from.end as usize * words;
                for (from, to) in from.iter().zip(device) {
                    pass.copy(from, range.clone(), to, run.device as usize * words);
                }
            }
        };
        let chunk = &group.chunks[number];
        copy(&chunk.host, host);
        if let Some(staged) = &self.staged {
            copy(&chunk.rooms, staged.rooms(layer));
        }
        ring.count(chunk.host.iter().map(|run| u64::from(run.from.end - run.from.start)).sum());
    }
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}
