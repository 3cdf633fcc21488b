//! Device copies of a step's lists, and the slots that follow from them.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::prefix_slots::{self, PrefixSlotsBuffers, PrefixSlotsParams};
use attn_kernels::rows::{Angle, NewEntry, SlotRow, Span};

use super::places::{Places, States};
use super::step::Step;
use crate::ModelError;
use crate::decoder::attention::LoadContext;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::ops::Ctx;

/// Device copies of a [`Step`].
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) angles: Buf<Angle>,
    slots: Arc<Pipeline>,
    /// One entry for each view.
    windows: Vec<Spans>,
    pub(super) rows: Buf<SlotRow>,
    pub(super) kinds: Vec<KindLists>,
    pub(super) states: Vec<StateLists>,
}

/// Ranges of positions, and their slots.
#[derive(Debug)]
struct Spans {
    spans: Buf<Span>,
    slots: GrowBuf<u32>,
}

/// Device copies of what a step has of one kind of entries.
#[derive(Debug)]
pub(super) struct KindLists {
    pub(super) rows: Buf<SlotRow>,
    seen: Spans,
    pub(super) slots: Buf<i32>,
    pub(super) angles: Buf<Angle>,
}

/// Device copies of what a step has of one group of states.
#[derive(Debug)]
pub(super) struct StateLists {
    pub(super) slots: Buf<i32>,
    pub(super) entries: Buf<NewEntry>,
}

impl Lists {
    pub(super) fn new(load: &LoadContext<'_>, places: &Places, views: usize) -> Result<Self, ModelError> {
        let (gpu, rows) = (load.gpu, load.options.max_rows as usize);
        let rope = load.config.compressed.as_ref().map(|compressed| &compressed.rope);
        let pairs = rope.map_or(0, |rope| rope.rotary_dims as usize / 2);
        let of_kind = |_| {
            Ok(KindLists {
                rows: gpu.buffer("rows", rows)?,
                seen: Spans::new(gpu, rows)?,
                slots: gpu.buffer("entry_slots", rows)?,
                angles: gpu.buffer("entry_angles", rows * pairs)?,
            })
        };
        let of_states = |_: &States| {
            Ok(StateLists { slots: gpu.buffer("state_slots", rows)?, entries: gpu.buffer("entries", rows)? })
        };
        Ok(Self {
            angles: gpu.buffer("angles", rows * pairs)?,
            slots: gpu.pipeline(&prefix_slots::variant())?,
            windows: (0..views).map(|_| Spans::new(gpu, rows)).collect::<Result<_, _>>()?,
            rows: gpu.buffer("rows", rows)?,
            kinds: places.kinds.iter().map(of_kind).collect::<Result<_, ModelError>>()?,
            states: places.states.iter().map(of_states).collect::<Result<_, ModelError>>()?,
        })
    }

    /// Slots of the windows of a view.
    pub(super) fn window(&self, view: usize) -> &Buf<u32> {
        &self.windows[view].slots
    }

    pub(super) fn write(&mut self, gpu: &Gpu, step: &Step) -> Result<(), ModelError> {
        gpu.write(&self.angles, 0, &step.angles);
        gpu.write(&self.rows, 0, &step.rows);
        for (lists, spans) in self.windows.iter_mut().zip(&step.windows) {
            lists.write(gpu, spans, step.window_stride)?;
        }
        for (lists, of_kind) in self.kinds.iter_mut().zip(&step.kinds) {
            gpu.write(&lists.rows, 0, &of_kind.rows);
            gpu.write(&lists.slots, 0, &of_kind.slots);
            gpu.write(&lists.angles, 0, &of_kind.angles);
            lists.seen.write(gpu, &of_kind.seen, of_kind.stride)?;
        }
        for (lists, of_group) in self.states.iter().zip(&step.states) {
            gpu.write(&lists.slots, 0, &of_group.slots);
            gpu.write(&lists.entries, 0, &of_group.entries);
        }
        Ok(())
    }

    /// Records the slots of all windows, and of the entries of kinds whose rows attend all of them.
    pub(super) fn record(&self, ctx: &mut Ctx<'_>, places: &Places) {
        let step = &ctx.plan.compressed;
        for ((lists, spans), view) in self.windows.iter().zip(&step.windows).zip(&ctx.views.all) {
            lists.record(ctx, &self.slots, spans, view.block_size);
        }
        let kinds = self.kinds.iter().zip(&step.kinds).zip(&places.kinds);
        for ((lists, of_kind), kind) in kinds.filter(|((_, of_kind), _)| !of_kind.chooses()) {
            lists.seen.record(ctx, &self.slots, &of_kind.seen, kind.block);
        }
    }
}

impl KindLists {
    /// Slots of the entries that rows attend.
    pub(super) fn seen(&self) -> &Buf<u32> {
        &self.seen.slots
    }
}

impl Spans {
    fn new(gpu: &Gpu, rows: usize) -> Result<Self, ModelError> {
        Ok(Self { spans: gpu.buffer("spans", rows)?, slots: GrowBuf::new(gpu, "slots", 1)? })
    }

    fn write(&mut self, gpu: &Gpu, spans: &[Span], stride: u32) -> Result<(), ModelError> {
        gpu.write(&self.spans, 0, spans);
        self.slots.fit(gpu, spans.len() * stride as usize)
    }

    fn record(&self, ctx: &mut Ctx<'_>, pipeline: &Arc<Pipeline>, spans: &[Span], block_size: u32) {
        let grid = prefix_slots::grid(bytemuck::cast_slice(spans));
        if grid[0] > 0 {
            let params = PrefixSlotsParams { block_size };
            let buffers = PrefixSlotsBuffers {
                spans: self.spans.bind(),
                tables: ctx.inputs.tables.bind(),
                slots: self.slots.bind(),
            };
            ctx.pass.dispatch(pipeline, &params, buffers, grid);
        }
    }
}
