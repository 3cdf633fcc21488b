//! Selection by kernels for chunks of prompts: nothing of a layer is read back, and the blocks in lists are counted on the
//! device.

use std::fmt::Debug;

use attn_kernels::gpu::{Bind, Gpu, Pass, PassResults};
use attn_kernels::rows::{KvWord, ListSpan, PhysicalBlock};
use kvblock::BlockSize;
use sparse_select::Policy;
use sparse_select::policy::num_blocks;

use super::account::Account;
use super::counter::Counter;
use super::lists::{self, DeviceLists};
use super::{Lists, Rules, Select, SelectingRows, SelectionReads, SelectionStep};
use crate::ModelError;
use crate::decoder::activations::Activations;
use crate::decoder::batch::Batch;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;

/// Kernels that list the blocks of chunks.
pub(super) trait ListChunks: Debug + Send + Sync {
    /// Allocates the buffers of a chunk of the step, whose lists of `stride` entries begin with list `first`.
    fn fit(
        &mut self,
        gpu: &Gpu,
        batch: &Batch,
        chunk: &PromptChunk<'_>,
        stride: u32,
        first: u32,
    ) -> Result<(), ModelError>;

    /// Records the lists of a chunk in a layer.
    fn list(&self, pass: &mut Pass, chunk: &PromptChunk<'_>, from: &Inputs, to: &DeviceLists);

    /// Records a correction for the blocks that the lists of a chunk leave out, after its attention.
    fn correct(&self, _pass: &mut Pass, _chunk: &PromptChunk<'_>, _act: &Activations, _lists: &DeviceLists) {}
}

/// A prompt chunk, and its number in the step.
#[derive(Clone, Copy)]
pub(super) struct PromptChunk<'a> {
    pub(super) rows: &'a SelectingRows,
    pub(super) number: usize,
}

impl<'a> PromptChunk<'a> {
    fn all(selecting: &'a [SelectingRows]) -> impl Iterator<Item = Self> {
        selecting.iter().enumerate().map(|(number, rows)| Self { rows, number })
    }
}

/// Queries, keys and block tables of a layer.
pub(super) struct Inputs {
    pub(super) q: Bind<f32>,
    pub(super) k: Bind<KvWord>,
    pub(super) v: Bind<KvWord>,
    pub(super) tables: Bind<PhysicalBlock>,
}

/// A selector of the blocks of prompt chunks.
#[derive(Debug)]
pub(super) struct Chunks<L> {
    by: L,
    block: BlockSize,
    num_kv_heads: u32,
    lists: DeviceLists,
    counter: Counter,
}

impl<L: ListChunks> Chunks<L> {
    pub(super) fn new(load: &LoadContext<'_>, policy: &dyn Policy, by: L) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, kv, .. } = *load;
        Ok(Self {
            by,
            block: policy.block_size(),
            num_kv_heads: kv.shape().num_kv_heads,
            lists: DeviceLists::new(gpu, config.num_layers as usize)?,
            counter: Counter::new(gpu)?,
        })
    }
}

impl<L: ListChunks> Select for Chunks<L> {
    fn forget(&mut self, _: &mut dyn Iterator<Item = u32>) {}

    fn begin(&mut self, rules: &Rules, step: &SelectionStep<'_>, _: &mut Account) -> Result<(), ModelError> {
        self.lists.clear();
        self.counter.clear();
        let selecting = rules.selecting_rows(step.batch);
        if selecting.is_empty() {
            return Ok(());
        }
        let longest = selecting.iter().map(SelectingRows::kv_len).max().unwrap_or(0);
        let blocks = num_blocks(longest, self.block);
        self.lists.fit(step.gpu, rules, step.batch, blocks)?;
        let mut spans = Vec::new();
        for chunk in PromptChunk::all(selecting) {
            let [first, lists] = [chunk.rows.list, chunk.rows.lists].map(|lists| lists * self.num_kv_heads);
            let span = ListSpan { first, lists };
            self.by.fit(step.gpu, step.batch, &chunk, lists::stride(blocks), span.first)?;
            spans.push(span);
        }
        self.counter.fit(step.gpu, &spans, self.lists.layers.len())
    }

    /// Returns the numbers that the step's commands depend on; `None` for steps with chunks, which all differ.
    fn shape(&self) -> Option<Vec<usize>> {
        self.counter.is_empty().then(Vec::new)
    }

    fn record(
        &mut self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        layer: usize,
        _: &mut Account,
    ) -> Result<(), ModelError> {
        if !self.lists.layers[layer] {
            return Ok(());
        }
        let [k, v] = ctx.kv.whole(layer);
        let tables = ctx.batch.tables.bind();
        let from = Inputs { q: ctx.act.q.bind(), k: k.bind(), v: v.bind(), tables };
        for chunk in PromptChunk::all(rules.own(ctx.group_rows(layer))) {
            self.by.list(ctx.pass, &chunk, &from, &self.lists);
        }
        self.counter.count(ctx.pass, &self.lists, layer);
        self.lists.keep(ctx.pass, layer);
        Ok(())
    }

    fn lists(&self, layer: usize) -> Option<Lists> {
        self.lists.of(layer)
    }

    fn correct(&self, rules: &Rules, ctx: &mut Ctx<'_>, layer: usize) {
        if self.lists.layers[layer] {
            let act = ctx.act;
            for chunk in PromptChunk::all(rules.own(ctx.group_rows(layer))) {
                self.by.correct(ctx.pass, &chunk, act, &self.lists);
            }
        }
    }

    fn read(&self, pass: &mut Pass, _: &Batch) -> SelectionReads {
        let counts = self.counter.read(pass, self.lists.layers.len());
        SelectionReads { counts, traced: self.lists.read(pass), ..SelectionReads::default() }
    }

    fn take(
        &self,
        rules: &Rules,
        batch: &Batch,
        reads: SelectionReads,
        done: &PassResults,
        account: &mut Account,
    ) {
        self.lists.take_reads(rules, batch, reads, done, account);
    }
}
