//! Lists that decode rows keep between the steps that select, in kernels: a step in which no row selects reads no digests, and
//! has its lists before its queries.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::keep_lists::{self, KeepListsBuffers, KeepListsParams};
use attn_kernels::rows::KeptRow;
use sparse_select::policy::num_blocks;

use super::lists::{self, DeviceLists};
use super::retrievals::{Retrievals, RowRetrieval};
use super::{Rules, SelectingRows, Slice};
use crate::ModelError;
use crate::batch::Phase;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;

/// Lists that sequences keep between retrievals, by layer, and the rows of a step that retrieve.
#[derive(Debug)]
pub(super) struct KeptLists {
    retrievals: Retrievals,
    keep: Arc<Pipeline>,
    /// Lists of each layer that selects, `[slots, sets]`.
    lists: Vec<Option<Buf<u32>>>,
    /// Parameters of the step, the same in all its layers.
    params: KeepListsParams,
    rows: GrowBuf<KeptRow>,
    row_retrievals: Vec<RowRetrieval>,
    /// Whether a row of the current step retrieves, and whether a row of the next step does if all sequences go on.
    retrieves: [bool; 2],
}

impl KeptLists {
    /// Creates the lists that rows keep; `None` for policies that select in every step. A row has `sets` lists.
    pub(super) fn new(
        load: &LoadContext<'_>,
        rules: &Rules,
        selects: &[bool],
        sets: u32,
    ) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, kv, .. } = *load;
        let Some(retrievals) = Retrievals::new(load, rules) else { return Ok(None) };
        let policy = rules.options.of(Phase::Decode);
        let pool = kv.num_blocks() as usize * kv.shape().block_size as usize;
        let longest = pool.min(config.context_length as usize);
        let budget = |layer| policy.budget(Some(rules.options.in_model(layer)), longest);
        let max = (0..selects.len()).filter(|layer| selects[*layer]).map(budget).max().unwrap_or(0);
        let kept_stride = lists::stride(max + retrievals.begun(rules.block()));
        let len = (retrievals.slots() * sets * kept_stride) as usize;
        let of_layer = |selects: &bool| selects.then(|| gpu.buffer("kept_lists", len)).transpose();
        let copies = config.num_kv_heads / sets;
        Ok(Some(Self {
            retrievals,
            keep: gpu.pipeline(&keep_lists::variant())?,
            lists: selects.iter().map(of_layer).collect::<Result<_, _>>()?,
            params: KeepListsParams { rows: 0, sets, copies, list_stride: 0, kept_stride },
            rows: GrowBuf::new(gpu, "kept_rows", 1)?,
            row_retrievals: Vec::new(),
            retrieves: [false; 2],
        }))
    }

    /// Forgets sequences whose last block is written outside of a step.
    pub(super) fn forget(&mut self, blocks: &[u32]) {
        self.retrievals.forget(blocks);
    }

    /// Plans which of the selecting rows retrieve; there may be no rows.
    pub(super) fn plan(&mut self, slices: &[Slice<'_>], selecting: &[SelectingRows]) {
        self.row_retrievals = self.retrievals.plan(slices, selecting);
        let now = self.row_retrievals.iter().any(RowRetrieval::retrieves);
        self.retrieves = [now, self.retrievals.retrieves_next(&self.row_retrievals)];
    }

    /// Uploads the plan, for lists of `list_stride` entries.
    pub(super) fn upload(&mut self, gpu: &Gpu, rules: &Rules, list_stride: u32) -> Result<(), ModelError> {
        let blocks = |tokens: u32| num_blocks(tokens as usize, rules.options.policy.block_size());
        let row = |retrieval: &RowRetrieval| KeptRow {
            slot: retrieval.slot.unwrap_or(KeptRow::NONE),
            then: blocks(retrieval.then),
            blocks: blocks(retrieval.tokens),
            made: u32::from(retrieval.retrieves()),
        };
        let rows: Vec<KeptRow> = self.row_retrievals.iter().map(row).collect();
        self.params = KeepListsParams { rows: u32_of(rows.len()), list_stride, ..self.params };
        self.rows.write(gpu, &rows)
    }

    /// Returns the number of tokens that the sequence of row `index` had when the selection that the row reuses was made;
    /// `None` if the row makes its own.
    pub(super) fn then(&self, index: usize) -> Option<u32> {
        let retrieval = &self.row_retrievals[index];
        (!retrieval.retrieves()).then_some(retrieval.then)
    }

    /// Maximum number of blocks of a list in addition to its budget: those that begin between two retrievals.
    pub(super) fn more(&self, block: u32) -> u32 {
        self.retrievals.begun(block)
    }

    /// Whether any row of the step selects.
    pub(super) fn retrieves(&self) -> bool {
        self.retrieves[0]
    }

    /// Switches between the current step and the next one, on the assumption that all sequences go on.
    pub(super) fn swap_next(&mut self) {
        self.retrieves.swap(0, 1);
    }

    /// Adds the numbers that the step's commands depend on to `shape`.
    pub(super) fn shape(&self, shape: &mut Vec<usize>) {
        shape.extend([usize::from(self.retrieves()), self.row_retrievals.len(), self.rows.len()]);
    }

    /// Records that the lists of a layer are stored for rows that select, and restored for rows that keep theirs.
    pub(super) fn record(&self, ctx: &mut Ctx<'_>, layer: usize, lists: &DeviceLists) {
        let Some(kept) = &self.lists[layer] else { return };
        let buffers =
            KeepListsBuffers { rows: self.rows.bind(), kept: kept.bind(), lists: lists.bind_of(layer) };
        ctx.pass.dispatch(&self.keep, &self.params, buffers);
    }
}
