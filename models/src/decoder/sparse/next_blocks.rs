//! Blocks that the next step may select: lists that continue after the selection of this step.

use attn_kernels::gpu::Gpu;
use attn_kernels::rows::TopRow;
use sparse_select::Policy;

use super::lists::{ROWS_ALIGN, default_blocks};
use crate::ModelError;
use crate::decoder::buffers::GrowBuf;

/// Lists of the blocks that a ranking would select next.
#[derive(Debug)]
pub(super) struct PrefetchLists {
    /// The rows of `top_rows`, with the budget raised by the blocks to prefetch.
    pub(super) rows: GrowBuf<TopRow>,
    /// Lists of even and of odd layers: those of one layer are read while those of the next are made.
    pub(super) lists: [GrowBuf<u32>; 2],
    /// Number of entries from one list to the next; 0 if the step prefetches nothing.
    pub(super) stride: u32,
    /// Number of blocks to prefetch beyond the selection, if the policy states it.
    stated: Option<u32>,
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

    /// Plans a step whose `rows` take up to `max` blocks each into `lists` lists. The step prefetches as many further
    /// blocks as the policy states, or else a quarter of `max`, but at most `spare`.
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
