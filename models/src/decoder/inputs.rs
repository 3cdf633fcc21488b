//! The batch as the device sees it: flat lists, written once a step.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::paged_prefill::Tile;
use attn_kernels::rows::{Angle, BlockCopy, DecodeRow, PhysicalBlock};
use kvblock::BlockId;
use smallvec::SmallVec;

use super::buffers::GrowBuf;
use super::draws::Draws;
use super::head::HEAD_ROWS;
use super::keys::{Fresh, Stream, StreamLists};
use super::partitions::{Cut, Parts};
use super::rope_angles::RopeAngles;
use super::sparse::SelectingRows;
use super::views::View;
use super::{attention, options::DecoderOptions};
use crate::batch::{Phase, Sample, Slice};
use crate::cast::{f32_of, u32_of};
use crate::kv::ROWS;
use crate::{DecoderConfig, ModelError, Reach};

/// Device copies of the lists of a [`Plan`].
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) tokens: Buf<u32>,
    pub(super) cs: Buf<Angle>,
    /// Angles of layers that see a window, where they are others.
    pub(super) window_cs: Option<Buf<Angle>>,
    /// Factors on queries of layers that do not rotate, and 0.
    pub(super) temperatures: Buf<Angle>,
    pub(super) tables: GrowBuf<PhysicalBlock>,
    /// Block tables of rows whose keys pass through the ring.
    pub(super) stream_tables: GrowBuf<PhysicalBlock>,
    pub(super) stream_pairs: GrowBuf<BlockCopy>,
    pub(super) views: Vec<ViewInputs>,
    pub(super) host_slots: Buf<i32>,
    /// Rows whose logits are wanted: scored rows, then sampled rows.
    pub(super) gather: Buf<u32>,
    pub(super) targets: Buf<u32>,
}

/// Device copies of the lists of a [`ViewRows`].
#[derive(Debug)]
pub(super) struct ViewInputs {
    pub(super) slots: Buf<i32>,
    pub(super) all: RowBufs,
    /// Rows that attend to everything where others attend to a selection.
    pub(super) whole: RowBufs,
    /// Rows that attend to a selection.
    pub(super) selected: RowBufs,
}

/// Device copies of [`Rows`].
#[derive(Debug)]
pub(super) struct RowBufs {
    pub(super) decode: Buf<DecodeRow>,
    pub(super) tiles: Buf<Tile>,
}

/// Tiles of rows of prefills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefill {
    /// One by one, by the decode kernel; rows of selected blocks are in tiles all the same, which share lists.
    pub(super) by_rows: bool,
    /// Maximum number of rows of a tile.
    pub(super) tile_rows: u32,
    /// Maximum number of rows of a tile over selected blocks.
    pub(super) selected_rows: u32,
}

/// One step, laid out.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rows: u32,
    /// Leading rows that belong to decode slices; all that follow belong to prefills.
    pub(super) decode_until: u32,
    /// Longest KV of any row.
    pub(super) longest: u32,
    pub(super) tokens: Vec<u32>,
    pub(super) cs: Vec<Angle>,
    pub(super) window_cs: Vec<Angle>,
    pub(super) temperatures: Vec<Angle>,
    /// Block tables of all slices and groups, one after the other.
    pub(super) tables: Vec<PhysicalBlock>,
    pub(super) views: Vec<ViewRows>,
    /// Host slots of the keys and values of rows whose blocks lie on the host; -1 for the others.
    pub(super) host_slots: Option<Vec<i32>>,
    /// The blocks that these are in; where they have rooms on the device the slots are of those.
    pub(super) fresh: Fresh,
    /// Tables and copies of rows that go through keys that are not all on the device.
    pub(super) stream: StreamLists,
    /// Further inputs of compressed attention.
    pub(super) compressed: attention::Step,
    pub(super) gather: Vec<u32>,
    /// Targets of the scored rows; `None` where only logits are wanted.
    pub(super) scored: Vec<Option<u32>>,
    /// Scored rows whose logits are handed back, ascending.
    pub(super) wanted: Vec<Range<usize>>,
    pub(super) draws: Draws,
}

/// The rows of a step as the layers of one view see them.
#[derive(Debug, Default)]
pub(super) struct ViewRows {
    /// Slot of each row's keys and values.
    pub(super) slots: Vec<i32>,
    pub(super) all: Rows,
    /// `all` in two parts, where blocks are selected for any row.
    pub(super) whole: Rows,
    pub(super) selected: Rows,
    /// Rows that blocks are selected for.
    pub(super) selecting: Vec<SelectingRows>,
}

/// Work items of attention.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Rows that are attended one by one. Lists of selected blocks are in this order.
    pub(super) decode: Vec<DecodeRow>,
    /// Partitions of the rows that attend all that they see.
    pub(super) cut: Cut,
    /// Keys of the longest of them.
    pub(super) longest: u32,
    pub(super) tiles: Vec<Tile>,
    /// Parts of the keys of the tiles.
    pub(super) parts: Parts,
    /// Order in which they go through keys that are not all on the device.
    pub(super) stream: Option<Stream>,
}

/// Inputs of the layout of a step beside its slices.
pub(super) struct Layout<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) options: &'a DecoderOptions,
    pub(super) views: &'a [View],
    pub(super) prefill: Prefill,
    pub(super) angles: &'a RopeAngles,
    pub(super) window_angles: Option<&'a RopeAngles>,
}

/// Lays `slices` out.
pub(super) fn plan(
    layout: &Layout<'_>,
    slices: &[Slice<'_>],
    samples: &[Sample<'_>],
) -> Result<Plan, ModelError> {
    let Layout { config, options, views, prefill, angles, window_angles } = *layout;
    let mut plan = Plan::default();
    let choose = |view: &View| {
        let sparse = options.sparse.as_ref().filter(|_| view.reach == Reach::Full);
        let selecting = sparse.map_or_else(Vec::new, |sparse| sparse.choose(slices, view.group));
        ViewRows { selecting, ..ViewRows::default() }
    };
    plan.views = views.iter().map(choose).collect();
    let mut last_rows = Vec::with_capacity(slices.len());
    for (index, slice) in slices.iter().enumerate() {
        let mut tables: SmallVec<[u32; 4]> = SmallVec::new();
        for table in slice.tables {
            tables.push(u32_of(plan.tables.len()));
            plan.tables.extend(table.iter().map(|b| PhysicalBlock(b.get())));
        }
        for (view, rows) in views.iter().zip(&mut plan.views) {
            let select_block = options.select_block();
            rows.push(
                &Work { view, index, row: plan.rows, table: tables[view.group], prefill, select_block },
                slice,
            );
        }
        for (position, id) in (slice.first..).zip(slice.tokens) {
            if *id >= config.vocab_size {
                return Err(ModelError::Token { id: *id, position, vocab: config.vocab_size });
            }
            plan.tokens.push(*id);
            let temperature = config.temperature.map_or(1.0, |temperature| temperature.factor(position));
            plan.temperatures.push(Angle { cos: f32_of(temperature), sin: 0.0 });
        }
        let positions = slice.first..slice.first + u32_of(slice.tokens.len());
        angles.extend(positions.clone(), &mut plan.cs);
        if let Some(angles) = window_angles {
            angles.extend(positions, &mut plan.window_cs);
        }
        push_scored(&mut plan, slice, config.vocab_size)?;
        plan.rows += u32_of(slice.tokens.len());
        if slice.phase == Phase::Decode {
            // A decode slice behind a prefill takes the prefill's rows along: exact is always right.
            plan.decode_until = plan.rows;
        }
        last_rows.push(plan.rows - 1);
        plan.longest = plan.longest.max(slice.first + u32_of(slice.tokens.len()));
    }
    // Factors on queries lie behind the angles.
    let (same, scaled) = (Angle { cos: 1.0, sin: 0.0 }, config.temperature.is_some_and(|t| t.all_layers));
    let factors = plan.temperatures.iter().map(|factor| if scaled { *factor } else { same });
    plan.cs.extend(factors.clone());
    plan.window_cs.extend(factors.filter(|_| window_angles.is_some()));
    plan.gather.extend(samples.iter().map(|s| last_rows[s.slice]));
    plan.draws.push_samples(samples, config.vocab_size)?;
    assert!(plan.rows <= options.max_rows, "{} rows in a step of at most {}", plan.rows, options.max_rows);
    let most = options.max_seqs as usize;
    assert!(samples.len() <= most, "{} samples in a step of at most {most}", samples.len());
    Ok(plan)
}

impl Plan {
    /// Refuses block tables that name blocks beyond the pool, since kernels run without bounds checks.
    pub(super) fn check_blocks(&self, blocks: u32) -> Result<(), ModelError> {
        match self.tables.iter().map(|block| block.0).max() {
            Some(block) if block >= blocks => Err(ModelError::Block { block, blocks }),
            _ => Ok(()),
        }
    }
}

/// Inputs of the work items of a slice.
struct Work<'a> {
    view: &'a View,
    /// The slice.
    index: usize,
    /// Its first row in the step.
    row: u32,
    /// First entry of its block table.
    table: u32,
    prefill: Prefill,
    select_block: u32,
}

impl ViewRows {
    fn push(&mut self, work: &Work<'_>, slice: &Slice<'_>) {
        let rows = u32_of(slice.tokens.len());
        let blocks = slice.tables[work.view.group];
        let positions = slice.first..slice.first + rows;
        self.slots.extend(positions.map(|at| slot(blocks, at, work.view.block_size)));
        let in_tiles = slice.phase == Phase::Prefill && !work.prefill.by_rows;
        let tiles = |rows: u32| in_tiles.then(|| rows.min(work.prefill.tile_rows));
        let mut i = 0;
        while i < rows {
            i += self.all.push(work, slice, i, tiles(rows - i), 0);
        }
        let mut i = 0;
        while i < rows && !self.selecting.is_empty() {
            let position = slice.first + i;
            i += match self.list(work, slice, position) {
                None => self.whole.push(work, slice, i, tiles(rows - i), 0),
                // A tile has one list a KV head, and rows that share a list are in tiles.
                Some(list) if slice.phase == Phase::Prefill => {
                    let to_boundary = work.select_block - position % work.select_block;
                    let most = work.prefill.selected_rows.min(rows - i).min(to_boundary);
                    self.selected.push(work, slice, i, Some(most), list)
                }
                Some(list) => self.selected.push(work, slice, i, None, list),
            };
        }
    }

    /// Lists of selected blocks of the row at `position`; `None` where it attends to everything.
    fn list(&self, work: &Work<'_>, slice: &Slice<'_>, position: u32) -> Option<u32> {
        let mut chosen = self.selecting.iter().filter(|chosen| chosen.slice == work.index);
        match slice.phase {
            Phase::Prefill => chosen.next().map(|chosen| chosen.list_at(position, work.select_block)),
            Phase::Decode => chosen.find(|chosen| chosen.position == position).map(|chosen| chosen.list),
        }
    }
}

impl Rows {
    /// Adds the rows of `slice` from its row `i` on: one, or a tile. Returns how many.
    fn push(&mut self, work: &Work<'_>, slice: &Slice<'_>, i: u32, tile: Option<u32>, list: u32) -> u32 {
        let (row, position, table) = (work.row + i, slice.first + i, work.table);
        let Some(rows) = tile else {
            let first_key = work.view.reach.first_key(position);
            self.decode.push(DecodeRow { row, len: position + 1, table, first_key });
            self.longest = self.longest.max(position + 1);
            return 1;
        };
        self.tiles.push(Tile::new(row..row + rows, position, table).listed(list));
        rows
    }
}

/// Rows whose logits are wanted.
fn push_scored(plan: &mut Plan, slice: &Slice<'_>, vocab: u32) -> Result<(), ModelError> {
    let rows = slice.tokens.len();
    plan.draws.push_targets(slice, plan.scored.len(), vocab)?;
    let scored = if slice.logits > 0 { rows } else { slice.targets.len() };
    for i in 0..scored {
        plan.gather.push(plan.rows + u32_of(i));
        plan.scored.push(slice.targets.get(i).copied());
    }
    if slice.logits > 0 {
        let end = plan.scored.len();
        plan.wanted.push(end - slice.logits.min(rows)..end);
    }
    Ok(())
}

pub(super) fn slot(table: &[BlockId], position: u32, block_size: u32) -> i32 {
    let block = table[(position / block_size) as usize].get();
    i32::try_from(block * block_size + position % block_size).expect("a pool has under 2^31 slots")
}

impl RowBufs {
    fn new(gpu: &Gpu, rows: usize) -> Result<Self, ModelError> {
        Ok(Self { decode: gpu.buffer("decode_rows", rows)?, tiles: gpu.buffer("tiles", rows)? })
    }

    /// Room for the gaps between groups of rows that go through the ring.
    fn with_gaps(gpu: &Gpu, options: &DecoderOptions, rows: usize) -> Result<Self, ModelError> {
        let gaps = if options.offload.is_some() { options.max_seqs.max(1) * ROWS } else { 0 };
        Self::new(gpu, rows + gaps as usize)
    }

    fn write(&self, gpu: &Gpu, rows: &Rows) {
        gpu.write(&self.decode, 0, &rows.decode);
        gpu.write(&self.tiles, 0, &rows.tiles);
    }
}

impl Inputs {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        views: &[View],
    ) -> Result<Self, ModelError> {
        let (rows, seqs) = (options.max_rows as usize, options.max_seqs as usize);
        let pairs = config.rope.inv_freq().len();
        // Portions of the gather and target lists are bound at aligned offsets: one more portion never overruns.
        let lists = rows + seqs + HEAD_ROWS;
        let split = if options.sparse.is_some() { rows } else { 1 };
        Ok(Self {
            tokens: gpu.buffer("tokens", rows)?,
            cs: gpu.buffer("cs", rows * (pairs + 1))?,
            window_cs: match config.window_rope {
                Some(_) => Some(gpu.buffer("window_cs", rows * (pairs + 1))?),
                None => None,
            },
            temperatures: gpu.buffer("temperatures", rows)?,
            tables: GrowBuf::new(gpu, "tables", 1024)?,
            stream_tables: GrowBuf::new(gpu, "stream_tables", 1)?,
            stream_pairs: GrowBuf::new(gpu, "stream_pairs", 1)?,
            views: views
                .iter()
                .map(|_| {
                    Ok(ViewInputs {
                        slots: gpu.buffer("slots", rows)?,
                        all: RowBufs::with_gaps(gpu, options, rows)?,
                        whole: RowBufs::with_gaps(gpu, options, split)?,
                        selected: RowBufs::new(gpu, split)?,
                    })
                })
                .collect::<Result<_, ModelError>>()?,
            host_slots: gpu.buffer("host_slots", if options.offload.is_some() { rows } else { 1 })?,
            gather: gpu.buffer("gather", lists)?,
            targets: gpu.buffer("targets", lists)?,
        })
    }

    pub(super) fn write(&mut self, gpu: &Gpu, plan: &Plan) -> Result<(), ModelError> {
        gpu.write(&self.tokens, 0, &plan.tokens);
        gpu.write(&self.cs, 0, &plan.cs);
        if let Some(cs) = &self.window_cs {
            gpu.write(cs, 0, &plan.window_cs);
        }
        gpu.write(&self.temperatures, 0, &plan.temperatures);
        self.tables.write(gpu, &plan.tables)?;
        for (view, rows) in self.views.iter().zip(&plan.views) {
            gpu.write(&view.slots, 0, &rows.slots);
            view.all.write(gpu, &rows.all);
            if !rows.selecting.is_empty() {
                view.whole.write(gpu, &rows.whole);
                view.selected.write(gpu, &rows.selected);
            }
        }
        if let Some(slots) = &plan.host_slots {
            gpu.write(&self.host_slots, 0, slots);
        }
        self.stream_tables.write(gpu, &plan.stream.tables)?;
        self.stream_pairs.write(gpu, &plan.stream.pairs)?;
        gpu.write(&self.gather, 0, &plan.gather);
        let targets: Vec<u32> = plan.scored.iter().map(|t| t.unwrap_or(0)).collect();
        gpu.write(&self.targets, 0, &targets);
        Ok(())
    }
}
