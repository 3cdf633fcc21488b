//! Rows that attend a selection of blocks: the lists that the attention kernels read, layer by layer.
//!
//! A list is `count, block, block, ...`, ascending, one for each KV head of a decode row or query block. [`Select`] is what
//! makes lists: by positions, by kernels that rank, estimate or threshold blocks, or by the policy's own code on the host. A
//! selector owns its scores, its lists and what it reads back; what holds for all of them, and never changes, is in
//! [`Rules`].

mod account;
mod budgets;
mod chunks;
mod counter;
mod estimator;
mod kept;
mod lists;
mod mass;
mod measure;
mod mirror;
mod next_blocks;
mod on_host;
mod phased;
mod positions;
mod previous;
mod rank;
mod ranker;
mod retrievals;
mod rules;
mod select;
mod shares;
mod thresholder;

use std::fmt::Debug;

use attn_kernels::gpu::{Bind, Gpu, Pass, PassResults};
use attn_kernels::kernel::attention::{Attention as AttentionSpec, Pages};
use attn_kernels::kernel::paged_decode::PagedDecodeParams;
use attn_kernels::rows::DecodeRow;

use super::attention_groups::AttentionGroups;
use super::batch::Batch;
use super::kernels::{Forms, HeadKernels, LoadContext};
use super::ops::Ctx;
use super::selecting::{Lists, SelectingRows};
use crate::batch::{Phase, Slice, StepOutput};
use crate::sparse::{SelectionPlace, SparseOptions};
use crate::{ModelError, Reach};
use account::Account;
use chunks::Chunks;
use estimator::Estimator;
use on_host::OnHost;
use phased::Phased;
use positions::Positions;
use previous::Previous;
use ranker::Ranker;
use rules::Rules;
use select::{ListedRows, Select};
use thresholder::Thresholder;

pub(super) use select::{SelectionReads, SelectionStep};

/// Attention to selected blocks: rules, selector, kernels, and counts of the blocks that were attended.
#[derive(Debug)]
pub(super) struct Sparse {
    rules: Rules,
    selector: Box<dyn Select>,
    /// Kernels that attend listed blocks.
    kernels: HeadKernels,
    account: Account,
    /// Queries of the previous step, if decode rows select by them.
    previous: Option<Previous>,
}

/// Blocks that are attended in a layer.
pub(super) struct Selected<'a> {
    sparse: &'a Sparse,
    pub(super) kernels: &'a HeadKernels,
    /// Lists of decode rows, if there are any.
    pub(super) lists: Lists,
    /// Lists of prompt chunks, if there are any.
    pub(super) chunk_lists: Lists,
    block: u32,
}

impl Sparse {
    pub(super) fn new(
        load: &LoadContext<'_>,
        options: &SparseOptions,
        forms: Forms,
    ) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, kv, attn_groups, .. } = *load;
        let shape = kv.shape();
        options.check(shape.block_size)?;
        let limited = |layer: usize| attn_groups.of_layer(layer).reach != Reach::Full;
        let dense: Vec<bool> =
            (0..attn_groups.of_layers.len()).map(|l| limited(l) || options.is_dense(l)).collect();
        let pages = if kv.page_slots() > 0 { Pages::OfHeads } else { Pages::Shared };
        let spec = AttentionSpec {
            pages,
            sinks: config.sinks,
            ..AttentionSpec::blocks(options.policy.block_size().get())
        };
        let kernels = HeadKernels::new(gpu, shape, config.num_heads, forms, &spec)?;
        let mut rules = Rules {
            options: options.clone(),
            num_heads: config.num_heads as usize,
            num_kv_heads: shape.num_kv_heads as usize,
            attn_groups: attn_groups.clone(),
            digests: mirror::digests(shape),
            source: options.sources(&dense),
            dense,
            phase: None,
            slack: kernels.slack(),
            previous: None,
        };
        let previous = Previous::new(load, options, attn_groups.full_group(), &rules.selecting_layers())?;
        rules.previous = previous.as_ref().map(|previous| previous.queries.clone());
        let selector = selector(load, &rules)?;
        Ok(Self { selector, rules, kernels, account: Account::default(), previous })
    }

    /// Sets whether steps return the selections themselves.
    pub(super) fn trace(&mut self, on: bool) {
        self.rules.options.trace = on;
    }

    /// Stops selecting blocks and storing data about keys.
    pub(super) fn rest(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.selector = Box::new(Positions::new(gpu, self.rules.num_layers())?);
        (self.previous, self.rules.previous) = (None, None);
        gpu.forget_bind_groups();
        Ok(())
    }

    /// Invalidates the state of blocks that are written outside of a step.
    pub(super) fn forget(&mut self, mut blocks: impl Iterator<Item = u32>) {
        self.selector.forget(&mut blocks);
    }

    /// Plans which queries a step keeps. Returns the row of the earlier query of each slice; `None` if decode rows do not
    /// select by earlier queries.
    pub(super) fn plan(&mut self, slices: &[Slice<'_>]) -> Option<Vec<Option<u32>>> {
        self.previous.as_mut().map(|previous| previous.plan(slices, self.selector.at_once()))
    }

    /// Starts a step, and plans for all layers everything that does not depend on queries.
    pub(super) fn begin(&mut self, step: &SelectionStep<'_>) -> Result<(), ModelError> {
        self.account.begin(&self.rules, step.batch, step.slices);
        self.previous.iter_mut().for_each(Previous::begin);
        self.selector.begin(&self.rules, step, &mut self.account)
    }

    /// Switches between the current step and the next one, on the assumption that all sequences go on.
    pub(super) fn swap_next(&mut self) {
        self.selector.swap_next();
    }

    /// Returns the numbers that the step's commands depend on; `None` if the step cannot be repeated.
    pub(super) fn shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.selector.shape()?;
        shape.extend(self.previous.iter().map(Previous::shape));
        Some(shape)
    }

    /// Records, before a layer computes its queries, the summaries of blocks that earlier steps completed.
    pub(super) fn summarise(&self, ctx: &mut Ctx<'_>, layer: usize) {
        self.selector.summarise(&self.rules, ctx, layer);
    }

    /// Returns the queries of the previous step, if decode rows select by them.
    pub(super) fn previous(&self) -> Option<&Previous> {
        self.previous.as_ref()
    }

    /// Records the selection of a layer, after its keys are written and before its attention.
    pub(super) fn select(&mut self, ctx: &mut Ctx<'_>, layer: usize) -> Result<(), ModelError> {
        self.selector.record(&self.rules, ctx, layer, &mut self.account)
    }

    /// Returns the blocks that are attended in a layer; `None` if it is dense.
    pub(super) fn selected(&self, layer: usize) -> Option<Selected<'_>> {
        let (lists, chunk_lists) = match (self.selector.lists(layer), self.selector.chunk_lists(layer)) {
            (Some(rows), Some(chunks)) => (rows, chunks),
            (Some(lists), None) | (None, Some(lists)) => (lists.clone(), lists),
            (None, None) => return None,
        };
        let block = self.rules.block();
        Some(Selected { sparse: self, kernels: &self.kernels, lists, chunk_lists, block })
    }

    /// Number of tokens of the longest list of a layer's decode rows; `None` if the layer is dense.
    pub(super) fn list_tokens(&self, layer: usize) -> Option<u32> {
        Some(self.selected(layer)?.tokens())
    }

    /// Returns the attention group of a layer.
    pub(super) fn group_of(&self, layer: usize) -> usize {
        self.rules.attn_groups.of_layers[layer]
    }

    /// Returns lists of blocks that the next step may select in a layer, if they are prefetched.
    pub(super) fn prefetch_lists(&self, layer: usize) -> Option<Lists> {
        self.selector.prefetch_lists(layer)
    }

    /// Whether every layer selects in some step.
    pub(super) fn selects_everywhere(&self) -> bool {
        !(0..self.rules.num_layers()).any(|layer| self.rules.options.is_dense(layer))
    }

    /// Returns where blocks are scored.
    pub(super) fn selects_on(&self) -> SelectionPlace {
        self.selector.place()
    }

    /// Records the readbacks of a step.
    pub(super) fn read(&self, pass: &mut Pass, batch: &Batch) -> SelectionReads {
        self.selector.read(pass, batch)
    }

    /// Ends a step: processes its readbacks, and outputs the blocks that each slice attended.
    pub(super) fn take(
        &mut self,
        batch: &Batch,
        reads: Option<SelectionReads>,
        done: &PassResults,
        output: &mut StepOutput,
    ) {
        self.previous.iter_mut().for_each(Previous::end);
        if let Some(reads) = reads {
            self.selector.take(&self.rules, batch, reads, done, &mut self.account);
        }
        self.account.hand_out(output);
    }
}

impl Selected<'_> {
    /// Number of tokens of the longest list of decode rows.
    pub(super) fn tokens(&self) -> u32 {
        self.lists.blocks * self.block
    }

    /// Number of tokens of the longest list of prompt chunks.
    pub(super) fn chunk_tokens(&self) -> u32 {
        self.chunk_lists.blocks * self.block
    }

    /// Records a correction for the blocks that the lists of prompt chunks leave out, after the chunks attended their
    /// lists.
    pub(super) fn correct(&self, ctx: &mut Ctx<'_>, layer: usize) {
        self.sparse.selector.correct(&self.sparse.rules, ctx, layer);
    }

    /// Records a bound of the attention mass that the lists of `count` rows keep, after the rows attended them, in steps
    /// that request it.
    pub(super) fn certify(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        rows: &Bind<DecodeRow>,
        params: &PagedDecodeParams,
        count: u32,
    ) {
        let rows = ListedRows { lists: &self.lists, rows, count, params };
        self.sparse.selector.certify(&self.sparse.rules, ctx, layer, &rows);
    }
}

/// Returns the selector of a policy.
fn selector(load: &LoadContext<'_>, rules: &Rules) -> Result<Box<dyn Select>, ModelError> {
    let options = &rules.options;
    let policy = &*options.policy;
    if policy.phases().is_some() {
        return Ok(Box::new(Phased::new(load, rules, selector)?));
    }
    if options.place == SelectionPlace::Device && !options.measure {
        if let Some(ranker) = Ranker::new(load, rules)? {
            return Ok(Box::new(ranker));
        }
        if let Some(estimator) = Estimator::new(load, policy)? {
            return Ok(Box::new(Chunks::new(load, policy, estimator)?));
        }
        if let Some(thresholder) = Thresholder::new(load, policy)? {
            return Ok(Box::new(Chunks::new(load, policy, thresholder)?));
        }
    }
    Ok(match policy.support().query || options.measure {
        true => Box::new(OnHost::new(load, rules)?),
        false => Box::new(Positions::new(load.gpu, rules.num_layers())?),
    })
}
