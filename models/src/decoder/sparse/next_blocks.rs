//! Blocks that the next step may select: lists that continue after the selection of this step.

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::top_k::{self, TopKBuffers, TopKParams};
use attn_kernels::rows::TopRow;
use sparse_select::Policy;

use super::Lists;
use super::ranker::{ROWS_ALIGN, Ranker};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::ops::Ctx;

/// Lists of the blocks that a ranking would select next.
#[derive(Debug)]
pub(super) struct PrefetchLists {
    /// Rows like `top_rows`, with more blocks to take.
    rows: GrowBuf<TopRow>,
    /// Lists of even and of odd layers: those of one layer are read while those of the next are made.
    lists: [GrowBuf<u32>; 2],
    /// Entries from one list to the next; 0 if the step prefetches nothing.
    stride: u32,
    /// Number of blocks beyond the selection, if the policy gives it.
    stated: Option<u32>,
}

/// Returns how many blocks are prefetched beyond a selection of up to `max` blocks, if the policy does not say.
pub(super) fn default_blocks(max: u32) -> u32 {
    max.div_ceil(4)
}

impl PrefetchLists {
    pub(super) fn new(gpu: &Gpu, policy: &dyn Policy) -> Result<Self, ModelError> {
        Ok(Self {
            rows: GrowBuf::new(gpu, "prefetch_rows", 1)?,
            lists: [GrowBuf::new(gpu, "prefetch_lists", 1)?, GrowBuf::new(gpu, "prefetch_lists", 1)?],
            stride: 0,
            stated: policy.deployment().ahead_blocks,
        })
    }

    /// Plans a step whose `rows` take up to `max` blocks each into `lists` lists. As many more as the policy says, or else up to
    /// a quarter, are prefetched, if they fit into `spare`.
    pub(super) fn lay_out(
        &mut self,
        gpu: &Gpu,
        mut rows: Vec<TopRow>,
        max: u32,
        spare: u32,
        lists: usize,
    ) -> Result<(), ModelError> {
        let more = self.stated.unwrap_or(default_blocks(max)).min(spare);
        self.stride = if more > 0 { 1 + max + more } else { 0 };
        rows.iter_mut().filter(|row| row.k > 0).for_each(|row| row.k += more);
        self.rows.fit(gpu, rows.len() + ROWS_ALIGN)?;
        gpu.write(&self.rows, 0, &rows);
        self.lists.iter_mut().try_for_each(|buf| buf.fit(gpu, lists * self.stride as usize))
    }
}

impl Ranker {
    /// Records lists of a layer's selection followed by the blocks it would select next. They are made concurrently with the
    /// selection itself, from the same scores.
    pub(super) fn rank_prefetch(&self, ctx: &mut Ctx<'_>, layer: usize) {
        let (Some(prefetch_lists), Some(top)) = (self.active_prefetch(), &self.tops[layer]) else { return };
        let rows = u32_of(top.budgets.len()) * self.sets;
        let copies = ctx.config.num_kv_heads / self.sets;
        let params = TopKParams { rows, out_stride: prefetch_lists.stride, copies, page_size: 1 };
        let buffers = TopKBuffers {
            scores: self.scores.of(layer).bind(),
            rows: prefetch_lists.rows.bind_from(top.first),
            table: ctx.batch.tables.bind(),
            out: prefetch_lists.lists[layer % 2].bind(),
        };
        ctx.pass.dispatch(&self.top_k, &params, buffers, top_k::grid(rows));
    }

    fn active_prefetch(&self) -> Option<&PrefetchLists> {
        self.prefetch_lists.as_ref().filter(|prefetch_lists| prefetch_lists.stride > 0 && self.selects())
    }

    /// Returns lists of blocks that the next step may select in a layer, if they are prefetched.
    pub(super) fn next_lists(&self, layer: usize) -> Option<Lists> {
        let prefetch_lists = self.active_prefetch()?;
        self.tops[layer].as_ref()?;
        let (bind, stride) = (prefetch_lists.lists[layer % 2].bind(), prefetch_lists.stride);
        Some(Lists { bind, stride, blocks: stride - 1 })
    }
}
