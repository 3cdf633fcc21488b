//! Interface of selectors, and what a step passes to them.

use std::fmt::Debug;

use attn_kernels::gpu::{Bind, Gpu, Pass, PassResults, Read};
use attn_kernels::kernel::paged_decode::PagedDecodeParams;
use attn_kernels::rows::DecodeRow;

use super::account::Account;
use super::rules::Rules;
use crate::batch::Slice;
use crate::decoder::batch::Batch;
use crate::decoder::keys::OffloadPlan;
use crate::decoder::ops::Ctx;
use crate::decoder::selecting::Lists;
use crate::sparse::SelectionPlace;
use crate::{DecoderConfig, KvPool, ModelError};

/// A way to select blocks. A step calls `begin`; for each layer `summarise`, `record`, `lists` and `certify`; then `read` and,
/// after the device is done, `take`.
pub(super) trait Select: Debug + Send + Sync {
    /// Invalidates the state of blocks that are written outside of a step.
    fn forget(&mut self, blocks: &mut dyn Iterator<Item = u32>);

    /// Plans the lists of a step, and uploads what they are made from.
    fn begin(
        &mut self,
        rules: &Rules,
        step: &SelectionStep<'_>,
        account: &mut Account,
    ) -> Result<(), ModelError>;

    /// Returns the numbers that the step's commands depend on, if nothing on the host interrupts the step. Steps with equal
    /// numbers record equal commands.
    fn shape(&self) -> Option<Vec<usize>>;

    /// Switches between the current step and the next one, on the assumption that all sequences go on.
    fn swap_next(&mut self) {}

    /// Records, before a layer computes its queries, the summaries of blocks that earlier steps completed.
    fn summarise(&self, _rules: &Rules, _ctx: &mut Ctx<'_>, _layer: usize) {}

    /// Records the selection of a layer, after its keys are written and before its attention.
    fn record(
        &mut self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        layer: usize,
        account: &mut Account,
    ) -> Result<(), ModelError>;

    /// Returns the lists of a layer; `None` if it attends everything.
    fn lists(&self, layer: usize) -> Option<Lists>;

    /// Returns the lists of a layer's prompt chunks; by default, they are those of decode rows.
    fn chunk_lists(&self, layer: usize) -> Option<Lists> {
        self.lists(layer)
    }

    /// Records, after prompt chunks attended their lists, a correction for the blocks that the lists leave out.
    fn correct(&self, _rules: &Rules, _ctx: &mut Ctx<'_>, _layer: usize) {}

    /// Records, after listed rows were attended, a bound of the attention mass that their lists keep, in steps that request it.
    fn certify(&self, _rules: &Rules, _ctx: &mut Ctx<'_>, _layer: usize, _rows: &ListedRows<'_>) {}

    /// Returns lists of blocks that the next step may select in a layer, if they are prefetched.
    fn prefetch_lists(&self, _layer: usize) -> Option<Lists> {
        None
    }

    /// Records the readbacks of a step.
    fn read(&self, pass: &mut Pass, batch: &Batch) -> SelectionReads;

    /// Adds the readbacks to the account.
    fn take(
        &self,
        rules: &Rules,
        batch: &Batch,
        reads: SelectionReads,
        done: &PassResults,
        account: &mut Account,
    );

    /// Whether decode steps of single tokens select in all layers before the first layer runs.
    fn at_once(&self) -> bool {
        false
    }

    /// Returns where blocks are scored. Scoring on the host needs a readback in every layer, except for positions.
    fn place(&self) -> SelectionPlace {
        SelectionPlace::Device
    }
}

/// Readbacks at the end of a step.
#[derive(Debug, Default)]
pub(in crate::decoder) struct SelectionReads {
    pub(super) masses: Option<Read<f32>>,
    pub(super) counts: Option<Read<u32>>,
    pub(super) traced: Option<Read<u32>>,
    /// Readbacks of prompt chunks, if another policy selects for them.
    pub(super) of_prefill: Option<Box<Self>>,
}

/// Inputs of the selections of a step.
pub(in crate::decoder) struct SelectionStep<'a> {
    pub(in crate::decoder) gpu: &'a Gpu,
    pub(in crate::decoder) config: &'a DecoderConfig,
    pub(in crate::decoder) kv: &'a KvPool,
    pub(in crate::decoder) batch: &'a Batch,
    pub(in crate::decoder) offload_plan: &'a OffloadPlan,
    pub(in crate::decoder) slices: &'a [Slice<'a>],
    /// Number of pages of each KV head that fit on the device, if blocks are on the host.
    pub(in crate::decoder) spare_pages: u32,
}

/// Rows that have attended lists.
pub(super) struct ListedRows<'a> {
    pub(super) lists: &'a Lists,
    pub(super) rows: &'a Bind<DecodeRow>,
    pub(super) count: u32,
    pub(super) params: &'a PagedDecodeParams,
}
