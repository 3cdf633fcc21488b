//! Lists of a step of compressed attention, planned once on the host for all layers, and the slots that kernels list.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::prefix_slots::{self, PrefixSlotsBuffers, PrefixSlotsParams};
use attn_kernels::rows::{Angle, DecodeRow, NewEntry, SlotRow, Span};
use attn_kernels::split::{SplitPlan, SplitPlanner};

use super::caches::{CompressedCaches, EntryKind, States};
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::batch::{Batch, slot};
use crate::decoder::buffers::{GrowBuf, StepList};
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;
use crate::decoder::rope_cos_sin::RopeCosSin;
use crate::kv::split_planner;
use crate::{DecoderConfig, ModelError};

/// Lists of a step.
#[derive(Debug)]
pub(super) struct CompressedStep {
    /// (cos, sin) of each row's position in layers with entries, `[rows, pairs]`.
    pub(super) cos_sin: StepList<Angle>,
    /// Tokens of each row's window, one list per attention group.
    windows: Vec<Spans>,
    /// Number of entries from one row's list of window slots to the next.
    pub(super) window_stride: u32,
    /// Rows of layers without entries, in the format of `mla_decode`.
    pub(super) rows: StepList<SlotRow>,
    pub(super) kinds: Vec<KindStep>,
    /// Lists for each kind of states.
    pub(super) states: Vec<StateStep>,
    planner: SplitPlanner,
    /// Split of the keys of all rows.
    pub(super) split: SplitPlan,
    slots: Arc<Pipeline>,
}

/// Ranges of positions in the format of `prefix_slots`, and their slots.
#[derive(Debug)]
struct Spans {
    list: StepList<Span>,
    slots: GrowBuf<u32>,
}

/// Lists of one kind of entries.
#[derive(Debug)]
pub(super) struct KindStep {
    /// Rows in the format of `mla_decode`.
    pub(super) rows: StepList<SlotRow>,
    /// Entries that each row may see.
    seen: Spans,
    /// Maximum number of entries that a row may see.
    pub(super) longest: u32,
    /// Number of entries from one row's list of slots to the next: the maximum number of entries that a row attends.
    pub(super) stride: u32,
    /// Slots of the entries that the step completes.
    pub(super) slots: StepList<i32>,
    /// (cos, sin) of the positions of the entries that the step completes, `[entries, pairs]`.
    pub(super) cos_sin: StepList<Angle>,
}

/// Lists of one kind of states.
#[derive(Debug)]
pub(super) struct StateStep {
    /// Slot of each row's state.
    pub(super) slots: StepList<i32>,
    /// Entries that the step completes, in the format of `v4_compress`.
    pub(super) entries: StepList<NewEntry>,
}

/// Inputs of a step, apart from its slices.
pub(super) struct StepContext<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) caches: &'a CompressedCaches,
    /// Rope factors of layers with entries.
    pub(super) cos_sin: &'a RopeCosSin,
}

/// One row of a step.
struct StepRow<'a> {
    slice: &'a Slice<'a>,
    /// Position of the first entry of each of the slice's block tables, by cache group.
    tables: &'a [u32],
    row: u32,
    position: u32,
}

impl KindStep {
    fn new(gpu: &Gpu, rows: usize, pairs: usize) -> Result<Self, ModelError> {
        Ok(Self {
            rows: StepList::new(gpu, "rows", rows)?,
            seen: Spans::new(gpu, rows)?,
            longest: 0,
            stride: 0,
            slots: StepList::new(gpu, "entry_slots", rows)?,
            cos_sin: StepList::new(gpu, "entry_angles", rows * pairs)?,
        })
    }

    /// Whether some row sees more entries than it attends.
    pub(super) fn selects(&self) -> bool {
        self.longest > self.stride
    }

    /// Ranges of the entries that each row may see.
    pub(super) fn spans(&self) -> &[Span] {
        &self.seen.list
    }

    /// Slots of the entries that rows attend.
    pub(super) fn seen(&self) -> &Buf<u32> {
        &self.seen.slots
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.seen.list.clear();
        self.slots.clear();
        self.cos_sin.clear();
    }

    fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.rows.upload(gpu)?;
        self.slots.upload(gpu)?;
        self.cos_sin.upload(gpu)?;
        self.seen.upload(gpu, self.stride)
    }
}

impl Spans {
    fn new(gpu: &Gpu, rows: usize) -> Result<Self, ModelError> {
        Ok(Self { list: StepList::new(gpu, "spans", rows)?, slots: GrowBuf::new(gpu, "slots", 1)? })
    }

    /// Uploads the ranges, and allocates `stride` slots for each.
    fn upload(&mut self, gpu: &Gpu, stride: u32) -> Result<(), ModelError> {
        self.list.upload(gpu)?;
        self.slots.fit(gpu, self.list.len() * stride as usize)
    }

    fn record(&self, ctx: &mut Ctx<'_>, pipeline: &Arc<Pipeline>, block_size: u32) {
        let params = PrefixSlotsParams::new(block_size, bytemuck::cast_slice(&self.list));
        if params.max_tokens > 0 {
            let buffers = PrefixSlotsBuffers {
                spans: self.list.bind(),
                tables: ctx.batch.tables.bind(),
                slots: self.slots.bind(),
            };
            ctx.pass.dispatch(pipeline, &params, buffers);
        }
    }
}

impl CompressedStep {
    pub(super) fn new(
        load: &LoadContext<'_>,
        caches: &CompressedCaches,
        attn_groups: usize,
    ) -> Result<Self, ModelError> {
        let (gpu, rows) = (load.gpu, load.options.max_rows as usize);
        let rope = load.config.compressed.as_ref().map(|compressed| &compressed.rope);
        let pairs = rope.map_or(0, |rope| rope.rotary_dims as usize / 2);
        let of_states = |_: &States| {
            let slots = StepList::new(gpu, "state_slots", rows)?;
            Ok(StateStep { slots, entries: StepList::new(gpu, "entries", rows)? })
        };
        Ok(Self {
            cos_sin: StepList::new(gpu, "cos_sin", rows * pairs)?,
            windows: (0..attn_groups).map(|_| Spans::new(gpu, rows)).collect::<Result<_, _>>()?,
            window_stride: 0,
            rows: StepList::new(gpu, "rows", rows)?,
            kinds: caches.kinds.iter().map(|_| KindStep::new(gpu, rows, pairs)).collect::<Result<_, _>>()?,
            states: caches.states.iter().map(of_states).collect::<Result<_, ModelError>>()?,
            planner: split_planner(gpu, load.config, load.kv.shape(), false),
            split: SplitPlan::default(),
            slots: gpu.pipeline(&prefix_slots::variant())?,
        })
    }

    /// Plans a step, after its batch was planned.
    pub(super) fn plan(&mut self, context: &StepContext<'_>, slices: &[Slice<'_>], batch: &Batch) {
        let StepContext { config, caches, cos_sin } = *context;
        self.clear();
        for (kind, of_kind) in caches.kinds.iter().zip(&mut self.kinds) {
            of_kind.longest = batch.longest / kind.compressor.ratio;
            of_kind.stride = attended(config, kind, of_kind.longest);
        }
        let (mut row, mut table) = (0, 0);
        for slice in slices {
            let mut tables = Vec::with_capacity(slice.tables.len());
            for blocks in slice.tables {
                tables.push(table);
                table += u32_of(blocks.len());
            }
            let positions = slice.first..slice.first + u32_of(slice.tokens.len());
            cos_sin.extend(positions.clone(), &mut self.cos_sin);
            for position in positions {
                self.push(context, &StepRow { slice, tables: &tables, row, position });
                row += 1;
            }
        }
        self.push_windows(batch);
    }

    fn clear(&mut self) {
        self.cos_sin.clear();
        self.windows.iter_mut().for_each(|window| window.list.clear());
        self.rows.clear();
        self.kinds.iter_mut().for_each(KindStep::clear);
        for states in &mut self.states {
            states.slots.clear();
            states.entries.clear();
        }
    }

    /// Adds the entries and states of one row.
    fn push(&mut self, context: &StepContext<'_>, of_row: &StepRow<'_>) {
        let StepContext { config, caches, cos_sin } = *context;
        let StepRow { slice, tables, row, position } = *of_row;
        for (kind, step) in caches.kinds.iter().zip(&mut self.kinds) {
            let entries = kind.compressor.entries(position);
            let (to, table) = (row * step.stride, tables[kind.group]);
            step.seen.list.push(Span { first: 0, len: entries, to, table });
            step.rows.push(SlotRow::new(row, attended(config, kind, entries), 0));
        }
        for (group, step) in caches.states.iter().zip(&mut self.states) {
            step.slots.push(slot(slice.tables[group.group], position, group.block));
            let of_kind = &self.kinds[group.kind];
            if completes(&caches.kinds[group.kind], position) {
                let (table, to) = (tables[group.group], u32_of(of_kind.slots.len()));
                step.entries.push(NewEntry::new(position, table, to));
            }
        }
        for (kind, step) in caches.kinds.iter().zip(&mut self.kinds) {
            if completes(kind, position) {
                let entry = position / kind.compressor.ratio;
                step.slots.push(slot(slice.tables[kind.group], entry, kind.block));
                let first = entry * kind.compressor.ratio;
                cos_sin.extend(first..first + 1, &mut step.cos_sin);
            }
        }
    }

    /// Adds the windows to all rows, from the attention groups of the batch.
    fn push_windows(&mut self, batch: &Batch) {
        let rows = &batch.attn_groups[0].all.decode;
        self.window_stride = rows.iter().map(DecodeRow::keys).max().unwrap_or(0);
        let in_window = |row: &DecodeRow| SlotRow::new(row.row, row.keys(), row.keys());
        self.rows.extend(rows.iter().map(in_window));
        for kind in &mut self.kinds {
            for (row, of_window) in kind.rows.iter_mut().zip(self.rows.iter()) {
                row.keys += of_window.keys;
                row.in_window = of_window.keys;
            }
        }
        let stride = self.window_stride;
        let span = |(i, row): (u32, &DecodeRow)| Span {
            first: row.first_key,
            len: row.keys(),
            to: i * stride,
            table: row.table,
        };
        for (window, attn_group) in self.windows.iter_mut().zip(&batch.attn_groups) {
            window.list.extend((0..).zip(attn_group.all.decode.iter()).map(span));
        }
        let lists = std::iter::once(&self.rows).chain(self.kinds.iter().map(|kind| &kind.rows));
        let max = lists.flat_map(|list| list.iter()).map(|row| row.keys).max().unwrap_or(0);
        self.split = self.planner.latents(max);
    }

    /// Uploads the lists of a step.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.cos_sin.upload(gpu)?;
        self.rows.upload(gpu)?;
        let stride = self.window_stride;
        self.windows.iter_mut().try_for_each(|window| window.upload(gpu, stride))?;
        self.kinds.iter_mut().try_for_each(|kind| kind.upload(gpu))?;
        for states in &mut self.states {
            states.slots.upload(gpu)?;
            states.entries.upload(gpu)?;
        }
        Ok(())
    }

    /// Records the slots of all windows, and of entries of kinds whose rows attend all they see.
    pub(super) fn record(&self, ctx: &mut Ctx<'_>, caches: &CompressedCaches) {
        for (window, attn_group) in self.windows.iter().zip(&ctx.attn_groups.all) {
            window.record(ctx, &self.slots, attn_group.block_size);
        }
        for (step, kind) in self.kinds.iter().zip(&caches.kinds).filter(|(step, _)| !step.selects()) {
            step.seen.record(ctx, &self.slots, kind.block);
        }
    }

    /// Slots of the windows of an attention group.
    pub(super) fn window(&self, attn_group: usize) -> &Buf<u32> {
        &self.windows[attn_group].slots
    }
}

/// Returns the number of entries that a row attends, of the `entries` that it sees.
fn attended(config: &DecoderConfig, kind: &EntryKind, entries: u32) -> u32 {
    let selected =
        config.indexer.filter(|_| kind.compressor.indexed).map_or(u32::MAX, |indexer| indexer.top_k);
    entries.min(selected)
}

fn completes(kind: &EntryKind, position: u32) -> bool {
    (position + 1).is_multiple_of(kind.compressor.ratio)
}
