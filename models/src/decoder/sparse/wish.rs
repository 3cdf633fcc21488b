//! What the next step may select: lists that go on where the selection of this one ends.

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass};
use attn_kernels::kernel::top_k::{self, TopKParams};

use super::device::{ROWS_ALIGN, Ranker};
use super::{Lists, fit};
use crate::ModelError;
use crate::decoder::Decoder;

/// Of a ranking.
#[derive(Debug)]
pub(super) struct Wishes {
    /// As `top_rows`, with more blocks to take.
    rows: Buf<[u32; 4]>,
    /// Of even and of odd layers: those of one layer are read while those of the next are made.
    lists: [Buf<u32>; 2],
    /// Entries from list to list; 0 where the step wishes for nothing.
    stride: u32,
}

impl Wishes {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, ModelError> {
        Ok(Self {
            rows: gpu.buffer("wish_rows", 1)?,
            lists: [gpu.buffer("wishes", 1)?, gpu.buffer("wishes", 1)?],
            stride: 0,
        })
    }

    /// Lays out a step whose `rows` take up to `most` blocks each into `lists` lists: up to a quarter as many more, of the
    /// `spare` ones that there is room for.
    pub(super) fn lay_out(
        &mut self,
        gpu: &Gpu,
        mut rows: Vec<[u32; 4]>,
        most: u32,
        spare: u32,
        lists: usize,
    ) -> Result<(), ModelError> {
        let more = most.div_ceil(4).min(spare);
        self.stride = if more > 0 { 1 + most + more } else { 0 };
        rows.iter_mut().filter(|row| row[2] > 0).for_each(|row| row[2] += more);
        fit(gpu, &mut self.rows, rows.len() + ROWS_ALIGN)?;
        gpu.write(&self.rows, 0, &rows);
        self.lists.iter_mut().try_for_each(|buf| fit(gpu, buf, lists * self.stride as usize))
    }
}

impl Decoder {
    /// Records lists of what a layer selects and, behind it, what it would select next: beside the selection itself, which
    /// reads the same scores.
    pub(super) fn rank_wishes(&self, pass: &mut Pass, layer: usize) {
        let Some((ranker, wishes)) = self.wishes() else { return };
        let Some(top) = ranker.tops[layer].as_ref() else { return };
        let sets = ranker.sets;
        let rows = u32::try_from(top.budgets.len()).expect("rows of a step fit in 32 bits") * sets;
        let copies = self.config.num_kv_heads / sets;
        let params = TopKParams { rows, out_stride: wishes.stride, copies, page_size: 1 };
        let bindings: [Bind; 4] = [
            (&ranker.scores).into(),
            Bind::at(wishes.rows.raw(), top.first as u64 * 16),
            (&self.inputs.tables).into(),
            (&wishes.lists[layer % 2]).into(),
        ];
        pass.dispatch(&ranker.top_k, &params, &bindings, top_k::grid(rows));
    }

    /// The lists that [`rank_wishes`](Self::rank_wishes) makes of a layer.
    pub(in crate::decoder) fn wish_lists(&self, layer: usize) -> Option<Lists> {
        let (ranker, wishes) = self.wishes()?;
        ranker.tops[layer].as_ref()?;
        Some(Lists { bind: (&wishes.lists[layer % 2]).into(), stride: wishes.stride })
    }

    fn wishes(&self) -> Option<(&Ranker, &Wishes)> {
        let ranker = self.sparse.as_ref()?.ranker.as_ref()?;
        Some((ranker, ranker.wishes.as_ref().filter(|wishes| wishes.stride > 0)?))
    }
}
