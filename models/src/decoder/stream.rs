//! The ring pipeline: a step whose keys do not all lie on the device goes through them chunk by chunk.
//!
//! Chunks follow positions, and partitions and tiles continue from one to the next: so neither the size of the ring nor
//! its number of slots changes the order of arithmetic of the decode kernel.

use attn_kernels::gpu::Pass;
use attn_kernels::kernel::paged_decode::partition_of;
use kvblock::BlockId;
use rustc_hash::FxHashMap;

use super::Decoder;
use super::inputs::Plan;
use crate::ModelError;
use crate::batch::Slice;
use crate::kv::{Place, Ring, Run, runs};

/// How a step goes through its keys.
#[derive(Debug)]
pub(super) struct Stream {
    /// Tokens of a chunk, whole partitions.
    pub(super) chunk_tokens: u32,
    /// Copies from the host into the ring, by chunk.
    chunks: Vec<Vec<Run>>,
    /// Where keys and values of rows go whose blocks lie on the host; -1 for the others.
    pub(super) host_slots: Vec<i32>,
}

impl Stream {
    /// Plans the stream of a step, and has the step's tables and slots name blocks of the device. `None` where all
    /// blocks are resident.
    pub(super) fn plan(
        ring: &Ring,
        block_size: u32,
        slices: &[Slice<'_>],
        plan: &mut Plan,
    ) -> Result<Option<Self>, ModelError> {
        let tables: Vec<&[BlockId]> = slices.iter().map(|slice| reached(slice, block_size)).collect();
        let on_host = |id: &BlockId| matches!(ring.place(id.get()), Place::Host(_));
        if !tables.iter().any(|table| table.iter().any(on_host)) {
            return Ok(None);
        }
        let longest = tables.iter().map(|table| table.len()).max().unwrap_or(0);
        let unit = (partition_of(u32_of(longest) * block_size) / block_size) as usize;
        let fits = |blocks: &usize| largest(&tables, *blocks, ring) <= ring.slot_blocks() as usize;
        let most = (ring.slot_blocks() as usize / unit).min(longest.div_ceil(unit)).max(1);
        let chunk = (1..=most).rev().map(|units| units * unit).find(fits).ok_or_else(|| {
            ModelError::Ring { needed: largest(&tables, unit, ring), slot_blocks: ring.slot_blocks() }
        })?;
        let mut at = 0;
        let mut chunks: Vec<FxHashMap<u32, u32>> = vec![FxHashMap::default(); longest.div_ceil(chunk)];
        let mut copies: Vec<Vec<(u32, u32)>> = vec![Vec::new(); chunks.len()];
        for (slice, table) in slices.iter().zip(&tables) {
            for (index, id) in table.iter().enumerate() {
                let Place::Host(host) = ring.place(id.get()) else { continue };
                let number = index / chunk;
                let taken = u32_of(chunks[number].len());
                let slot = *chunks[number].entry(host).or_insert_with(|| {
                    let slot = ring.slot_block(u32_of(number), taken);
                    copies[number].push((host, slot));
                    slot
                });
                plan.tables[at + index] = slot;
            }
            at += slice.tables[0].len();
        }
        let host_slots = host_slots(ring, block_size, plan);
        let chunks = copies.iter().map(|copies| runs(copies)).collect();
        Ok(Some(Self { chunk_tokens: u32_of(chunk) * block_size, chunks, host_slots }))
    }
}

/// The blocks that the rows of a slice attend to.
fn reached<'a>(slice: &Slice<'a>, block_size: u32) -> &'a [BlockId] {
    let end = slice.first + u32_of(slice.tokens.len());
    &slice.tables[0][..end.div_ceil(block_size) as usize]
}

/// Most blocks on the host that one chunk of `chunk` blocks a table has, shared ones counted each time.
fn largest(tables: &[&[BlockId]], chunk: usize, ring: &Ring) -> usize {
    let longest = tables.iter().map(|table| table.len()).max().unwrap_or(0);
    let of_chunk = |start: usize| {
        let part =
            |table: &&[BlockId]| table[start.min(table.len())..(start + chunk).min(table.len())].to_vec();
        let blocks = tables.iter().flat_map(part);
        blocks.filter(|id| matches!(ring.place(id.get()), Place::Host(_))).count()
    };
    (0..longest).step_by(chunk).map(of_chunk).max().unwrap_or(0)
}

/// Splits the slots of a step: those on the host leave the lists of the views.
fn host_slots(ring: &Ring, block_size: u32, plan: &mut Plan) -> Vec<i32> {
    let place = |slot: i32| ring.place(slot.cast_unsigned() / block_size);
    let on_host = |slot: &i32| match place(*slot) {
        Place::Host(block) => (block * block_size + slot.cast_unsigned() % block_size).cast_signed(),
        Place::Device(_) => -1,
    };
    let all = plan.views.first().map_or(&[][..], |view| &view.slots);
    let host: Vec<i32> = all.iter().map(on_host).collect();
    for view in &mut plan.views {
        for (slot, host) in view.slots.iter_mut().zip(&host) {
            *slot = if *host < 0 { *slot } else { -1 };
        }
    }
    host
}

/// What the slots of a layer's ring hold while its attention is recorded.
pub(super) struct Loaded(Vec<Option<usize>>);

impl Decoder {
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
        stream: &Stream,
        number: usize,
        loaded: &mut Loaded,
    ) {
        let Some(ring) = self.kv.ring() else { return };
        let slot = number % loaded.0.len();
        if loaded.0[slot].replace(number) == Some(number) {
            return;
        }
        let words = self.kv.shape().block_bytes() / 4;
        let (k, v) = self.kv.layer(layer);
        let (host_k, host_v) = self.kv.host_layer(layer).expect("a ring comes with a host");
        for run in &stream.chunks[number] {
            let range = run.host.start as usize * words..run.host.end as usize * words;
            for (host, device) in [(host_k, k), (host_v, v)] {
                pass.copy(host, range.clone(), device, run.device as usize * words);
            }
            ring.count(u64::from(run.host.end - run.host.start));
        }
    }
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}
