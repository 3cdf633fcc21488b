//! One step as compressed attention sees it: laid out on the host once, for all layers.

use attn_kernels::kernel::mla_decode::PARTITION;
use attn_kernels::rows::{Angle, DecodeRow, NewEntry, SlotRow, Span};

use super::places::{Kind, Places};
use crate::DecoderConfig;
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::inputs::{Plan, ViewRows, slot};
use crate::decoder::rope_angles::RopeAngles;

/// Lists of a step.
#[derive(Debug, Default)]
pub(in crate::decoder) struct Step {
    /// (cos, sin) of each row's position in layers with entries, `[rows, pairs]`.
    pub(super) angles: Vec<Angle>,
    /// Tokens of each row's window, as `prefix_slots` takes them, for each view.
    pub(super) windows: Vec<Vec<Span>>,
    /// Slots from one row's list of the window to the next.
    pub(super) window_stride: u32,
    /// Rows of layers without entries, as `mla_decode` takes them.
    pub(super) rows: Vec<SlotRow>,
    pub(super) kinds: Vec<KindStep>,
    /// One entry for each group of states.
    pub(super) states: Vec<StateStep>,
    /// Maximum number of partitions of a row.
    pub(in crate::decoder) max_partitions: u32,
}

/// Entries of one kind.
#[derive(Debug, Default)]
pub(super) struct KindStep {
    /// Rows as `mla_decode` takes them.
    pub(super) rows: Vec<SlotRow>,
    /// Entries that each row may see, as `prefix_slots` takes them.
    pub(super) seen: Vec<Span>,
    /// Entries that the last of them sees.
    pub(super) longest: u32,
    /// Slots from one row's list to the next: entries that a row attends at most.
    pub(super) stride: u32,
    /// Slots of the entries that the step completes.
    pub(super) slots: Vec<i32>,
    /// (cos, sin) of their positions, `[entries, pairs]`.
    pub(super) angles: Vec<Angle>,
}

impl KindStep {
    /// Whether some row sees more entries than it attends.
    pub(super) fn chooses(&self) -> bool {
        self.longest > self.stride
    }
}

/// States of one group.
#[derive(Debug, Default)]
pub(super) struct StateStep {
    /// Slot of each row's state.
    pub(super) slots: Vec<i32>,
    /// Entries that the step completes, as `v4_compress` takes them.
    pub(super) entries: Vec<NewEntry>,
}

/// Inputs of a step beside its slices.
pub(super) struct StepContext<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) places: &'a Places,
    /// Angles of layers with entries.
    pub(super) angles: &'a RopeAngles,
}

/// One row.
struct Row<'a> {
    slice: &'a Slice<'a>,
    /// First entries of the slice's block tables, by group.
    tables: &'a [u32],
    row: u32,
    position: u32,
}

impl Step {
    /// Lays a step out, after `plan`.
    pub(super) fn new(context: &StepContext<'_>, slices: &[Slice<'_>], plan: &Plan) -> Self {
        let StepContext { config, places, angles } = *context;
        let mut step = Self {
            kinds: places.kinds.iter().map(|_| KindStep::default()).collect(),
            states: places.states.iter().map(|_| StateStep::default()).collect(),
            ..Self::default()
        };
        for (kind, of_kind) in places.kinds.iter().zip(&mut step.kinds) {
            of_kind.longest = plan.longest / kind.compressor.ratio;
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
            angles.extend(positions.clone(), &mut step.angles);
            for position in positions {
                step.push(context, &Row { slice, tables: &tables, row, position });
                row += 1;
            }
        }
        step.windows(plan);
        step
    }

    /// Adds the entries and states of one row.
    fn push(&mut self, context: &StepContext<'_>, of_row: &Row<'_>) {
        let StepContext { config, places, angles } = *context;
        let Row { slice, tables, row, position } = *of_row;
        for (kind, step) in places.kinds.iter().zip(&mut self.kinds) {
            let entries = kind.compressor.entries(position);
            let (to, table) = (row * step.stride, tables[kind.group]);
            step.seen.push(Span { first: 0, len: entries, to, table });
            step.rows.push(SlotRow::new(row, attended(config, kind, entries), 0));
        }
        for (group, step) in places.states.iter().zip(&mut self.states) {
            step.slots.push(slot(slice.tables[group.group], position, group.block));
            let of_kind = &self.kinds[group.kind];
            if completes(&places.kinds[group.kind], position) {
                let (table, to) = (tables[group.group], u32_of(of_kind.slots.len()));
                step.entries.push(NewEntry::new(position, table, to));
            }
        }
        for (kind, step) in places.kinds.iter().zip(&mut self.kinds) {
            if completes(kind, position) {
                let entry = position / kind.compressor.ratio;
                step.slots.push(slot(slice.tables[kind.group], entry, kind.block));
                let first = entry * kind.compressor.ratio;
                angles.extend(first..first + 1, &mut step.angles);
            }
        }
    }

    /// Adds the windows, which the views of `plan` know, to all rows.
    fn windows(&mut self, plan: &Plan) {
        let rows = &plan.views[0].all.decode;
        self.window_stride = rows.iter().map(DecodeRow::keys).max().unwrap_or(0);
        let in_window = |row: &DecodeRow| SlotRow::new(row.row, row.keys(), row.keys());
        self.rows = rows.iter().map(in_window).collect();
        for kind in &mut self.kinds {
            for (row, of_window) in kind.rows.iter_mut().zip(&self.rows) {
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
        let spans = |view: &ViewRows| (0..).zip(&view.all.decode).map(span).collect();
        self.windows = plan.views.iter().map(spans).collect();
        let lists = std::iter::once(&self.rows).chain(self.kinds.iter().map(|kind| &kind.rows));
        let most = lists.flatten().map(|row| row.keys).max().unwrap_or(0);
        self.max_partitions = most.div_ceil(PARTITION);
    }
}

/// Entries that a row attends of those that it may see.
fn attended(config: &DecoderConfig, kind: &Kind, entries: u32) -> u32 {
    let chosen = config.indexer.filter(|_| kind.compressor.indexed).map_or(u32::MAX, |indexer| indexer.top_k);
    entries.min(chosen)
}

fn completes(kind: &Kind, position: u32) -> bool {
    (position + 1).is_multiple_of(kind.compressor.ratio)
}
