//! Device copies of a step's lists, and the slots that follow from them.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::prefix_slots::{self, PrefixSlotsParams};

use super::places::{Places, States};
use super::step::Step;
use crate::ModelError;
use crate::decoder::inputs::View;

/// Device copies of a [`Step`].
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) turns: Buf<[f32; 2]>,
    slots: Arc<Pipeline>,
    /// By view.
    windows: Vec<Spans>,
    pub(super) rows: Buf<[u32; 4]>,
    pub(super) kinds: Vec<KindLists>,
    pub(super) states: Vec<StateLists>,
}

/// Ranges of positions, and their slots.
#[derive(Debug)]
struct Spans {
    spans: Buf<[u32; 4]>,
    slots: Buf<u32>,
}

/// Device copies of what a step has of one kind of entries.
#[derive(Debug)]
pub(super) struct KindLists {
    pub(super) rows: Buf<[u32; 4]>,
    seen: Spans,
    pub(super) slots: Buf<i32>,
    pub(super) turns: Buf<[f32; 2]>,
}

/// Device copies of what a step has of one group of states.
#[derive(Debug)]
pub(super) struct StateLists {
    pub(super) slots: Buf<i32>,
    pub(super) entries: Buf<[u32; 4]>,
}

impl Lists {
    pub(super) fn new(
        gpu: &Gpu,
        places: &Places,
        views: usize,
        [rows, pairs]: [usize; 2],
    ) -> Result<Self, ModelError> {
        let of_kind = |_| {
            Ok(KindLists {
                rows: gpu.buffer("rows", rows)?,
                seen: Spans::new(gpu, rows)?,
                slots: gpu.buffer("entry_slots", rows)?,
                turns: gpu.buffer("entry_turns", rows * pairs)?,
            })
        };
        let of_states = |_: &States| {
            Ok(StateLists { slots: gpu.buffer("state_slots", rows)?, entries: gpu.buffer("entries", rows)? })
        };
        Ok(Self {
            turns: gpu.buffer("turns", rows * pairs)?,
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
        gpu.write(&self.turns, 0, &step.turns);
        gpu.write(&self.rows, 0, &step.rows);
        for (lists, spans) in self.windows.iter_mut().zip(&step.windows) {
            lists.write(gpu, spans, step.window_stride)?;
        }
        for (lists, of_kind) in self.kinds.iter_mut().zip(&step.kinds) {
            gpu.write(&lists.rows, 0, &of_kind.rows);
            gpu.write(&lists.slots, 0, &of_kind.slots);
            gpu.write(&lists.turns, 0, &of_kind.turns);
            lists.seen.write(gpu, &of_kind.seen, of_kind.stride)?;
        }
        for (lists, of_group) in self.states.iter().zip(&step.states) {
            gpu.write(&lists.slots, 0, &of_group.slots);
            gpu.write(&lists.entries, 0, &of_group.entries);
        }
        Ok(())
    }

    /// Records the slots of all windows, and of the entries of kinds whose rows attend all of them.
    pub(super) fn record(
        &self,
        pass: &mut Pass,
        (places, views): (&Places, &[View]),
        tables: &Buf<u32>,
        step: &Step,
    ) {
        for ((lists, spans), view) in self.windows.iter().zip(&step.windows).zip(views) {
            lists.record(pass, &self.slots, spans, (tables, view.block_size));
        }
        let kinds = self.kinds.iter().zip(&step.kinds).zip(&places.kinds);
        for ((lists, of_kind), kind) in kinds.filter(|((_, of_kind), _)| !of_kind.chooses()) {
            lists.seen.record(pass, &self.slots, &of_kind.seen, (tables, kind.block));
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
        Ok(Self { spans: gpu.buffer("spans", rows)?, slots: gpu.buffer("slots", 1)? })
    }

    fn write(&mut self, gpu: &Gpu, spans: &[[u32; 4]], stride: u32) -> Result<(), ModelError> {
        gpu.write(&self.spans, 0, spans);
        let slots = spans.len() * stride as usize;
        if self.slots.len() < slots {
            self.slots = gpu.buffer("slots", slots.next_power_of_two())?;
            gpu.forget_bind_groups();
        }
        Ok(())
    }

    fn record(
        &self,
        pass: &mut Pass,
        pipeline: &Arc<Pipeline>,
        spans: &[[u32; 4]],
        (tables, block_size): (&Buf<u32>, u32),
    ) {
        let grid = prefix_slots::grid(spans);
        if grid[0] > 0 {
            let params = PrefixSlotsParams { block_size, pad0: 0, pad1: 0, pad2: 0 };
            let bindings: [Bind; 3] = [(&self.spans).into(), tables.into(), (&self.slots).into()];
            pass.dispatch(pipeline, &params, &bindings, grid);
        }
    }
}
