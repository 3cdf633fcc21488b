//! Policies that score on the CPU: queries and new keys are read back in every layer.

use std::ops::Range;

use attn_kernels::gpu::{Pass, PassResults, Timing};
use rustc_hash::FxHashMap;
use sparse_select::certificate::selection_mass;
use sparse_select::{Heads, Retrieved, Selection};

use super::account::Account;
use super::lists::{ALIGN, HostLists};
use super::measure::Measured;
use super::mirror::Mirror;
use super::retrievals::{Retrievals, RowRetrieval};
use super::{Lists, Rules, Select, SelectingRows, SelectionReads, SelectionStep};
use crate::ModelError;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;
use crate::sparse::SelectionPlace;

/// State of a policy that selects on the host.
#[derive(Debug)]
pub(super) struct OnHost {
    mirror: Mirror,
    /// Selections of the last layer that did not reuse the selections of another layer.
    last: Vec<Selection>,
    /// Retrievals of sequences, if rows do not select in all steps. The next field has the retrievals of the current
    /// rows.
    retrievals: Option<Retrievals>,
    row_retrievals: Vec<RowRetrieval>,
    /// Selections that sequences keep, each with the number of tokens that the sequence had at its retrieval, by layer
    /// and slot.
    kept: FxHashMap<(usize, u32), (usize, Selection)>,
    /// Lists of the current layer.
    buf: GrowBuf<u32>,
    /// Stride and maximum length of a layer's lists; `None` for layers without lists.
    placed: Vec<Option<(u32, u32)>>,
    /// Whether the step selects blocks. The next field says whether it certifies the attention mass that the selections
    /// keep.
    selects: bool,
    certifies: bool,
}

/// Queries of a step, `[rows, num_heads, head_dim]`.
struct Queries {
    values: Vec<f32>,
    /// Queries of the previous step, if decode rows select by them.
    previous: Option<Vec<f32>>,
    num_heads: usize,
    head_dim: usize,
    /// Times of the submission that was read back.
    timings: Vec<Timing>,
}

impl Queries {
    /// Returns `rows` of `values` in the order `[num_heads, rows, head_dim]`.
    fn of(&self, values: &[f32], rows: Range<usize>) -> Vec<f32> {
        let Self { num_heads, head_dim, .. } = *self;
        let of_head = |head| rows.clone().map(move |row| (row * num_heads + head) * head_dim);
        (0..num_heads).flat_map(of_head).flat_map(|at| values[at..at + head_dim].iter().copied()).collect()
    }
}

/// Queries and keys of selecting rows.
struct Tensors {
    q: Vec<f32>,
    /// Earlier queries that blocks are selected by, if they are not the rows' own.
    selects_by: Option<Vec<f32>>,
    k: Vec<f32>,
}

impl OnHost {
    pub(super) fn new(load: &LoadContext<'_>, rules: &Rules) -> Result<Self, ModelError> {
        let (gpu, num_layers) = (load.gpu, rules.num_layers());
        Ok(Self {
            mirror: Mirror::new(*load.kv.shape(), num_layers),
            last: Vec::new(),
            retrievals: Retrievals::new(load, rules),
            row_retrievals: Vec::new(),
            kept: FxHashMap::default(),
            buf: GrowBuf::new(gpu, "lists", ALIGN)?,
            placed: vec![None; num_layers],
            selects: false,
            certifies: false,
        })
    }

    /// Submits the pass so far, and reads back the queries of the step and the keys that the mirror lacks.
    fn read_queries(
        &mut self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        layer: usize,
        rows: &[SelectingRows],
    ) -> Result<Queries, ModelError> {
        let tables = rows.iter().flat_map(|selecting| {
            let len = selecting.kv_len().div_ceil(ctx.kv.shape().block_size as usize);
            bytemuck::cast_slice(&ctx.batch.tables[selecting.table.start..selecting.table.start + len])
        });
        let missing = self.mirror.read_missing(ctx.pass, ctx.kv, layer, tables);
        let [num_heads, head_dim] = [ctx.config.num_heads, ctx.config.head_dim].map(|n| n as usize);
        let q = ctx.pass.read(&ctx.act.q, 0..ctx.rows() as usize * num_heads * head_dim);
        let previous = rules.previous.as_ref().and_then(|queries| queries[layer].as_ref());
        let previous = previous.map(|queries| ctx.pass.read(queries, 0..queries.len()));
        let so_far = std::mem::replace(ctx.pass, Pass::new("step"));
        let mut done = ctx.gpu.submit(so_far)?.wait()?;
        let timings = std::mem::take(&mut done.timings);
        for (block, read) in missing {
            self.mirror.insert(layer, block, &done.get(read));
        }
        let previous = previous.map(|read| done.get(read));
        Ok(Queries { values: done.get(q), previous, num_heads, head_dim, timings })
    }

    /// Runs the policy's own code for the selecting row `index`, with the selection that its sequence keeps.
    fn select(
        &mut self,
        rules: &Rules,
        layer: usize,
        index: usize,
        selecting: &SelectingRows,
        tensors: (Heads<'_>, Heads<'_>),
    ) -> Result<Selection, ModelError> {
        let retrieval = self
            .row_retrievals
            .get(index)
            .and_then(|retrieval| Some((retrieval.retrieves(), (layer, retrieval.slot?))));
        let kept = retrieval.filter(|(retrieves, _)| !retrieves).and_then(|(_, place)| self.kept.get(&place));
        let retrieved = kept.map(|(kv_len, selection)| Retrieved { kv_len: *kv_len, selection });
        let selection = rules.options.select(selecting, layer, Some(tensors), rules.digests, retrieved)?;
        if let Some((true, place)) = retrieval {
            self.kept.insert(place, (selecting.kv_len(), selection.clone()));
        }
        Ok(selection)
    }

    /// Returns queries `[num_heads, rows, head_dim]` and keys `[num_kv_heads, kv_len, head_dim]` of selecting rows.
    fn tensors(&self, selecting: &SelectingRows, queries: &Queries, layer: usize, batch: &Batch) -> Tensors {
        let q = queries.of(&queries.values, selecting.row..selecting.row + selecting.rows);
        let previous = queries.previous.as_ref().filter(|_| selecting.is_decode());
        let row = selecting.q_row as usize;
        let selects_by = previous.map(|values| queries.of(values, row..row + 1));
        let table = bytemuck::cast_slice(&batch.tables[selecting.table.clone()]);
        Tensors { q, selects_by, k: self.mirror.keys(layer, table, selecting.kv_len()) }
    }
}

impl Select for OnHost {
    fn forget(&mut self, blocks: &mut dyn Iterator<Item = u32>) {
        let blocks: Vec<u32> = blocks.collect();
        self.retrievals.iter_mut().for_each(|retrievals| retrievals.forget(&blocks));
        self.mirror.forget(blocks.into_iter());
    }

    fn begin(&mut self, rules: &Rules, step: &SelectionStep<'_>, _: &mut Account) -> Result<(), ModelError> {
        self.placed.fill(None);
        self.selects = !rules.selecting_rows(step.batch).is_empty();
        self.certifies = rules.certifies(step.slices);
        let plan =
            |retrievals: &mut Retrievals| retrievals.plan(step.slices, rules.selecting_rows(step.batch));
        self.row_retrievals = self.retrievals.as_mut().map(plan).unwrap_or_default();
        let block_size = step.kv.shape().block_size;
        for attn_group in &step.batch.attn_groups {
            self.mirror.forget(step.offload_plan.written_blocks(attn_group, block_size));
        }
        Ok(())
    }

    /// Returns the numbers that the step's commands depend on; `None` for steps that select, which wait in every
    /// layer. Steps of a phase that the policy leaves dense can be repeated.
    fn shape(&self) -> Option<Vec<usize>> {
        (!self.selects).then(Vec::new)
    }

    /// Runs the policy's own code, after the pass so far was submitted.
    fn record(
        &mut self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        layer: usize,
        account: &mut Account,
    ) -> Result<(), ModelError> {
        if !rules.selects_in(ctx.batch, layer) {
            return Ok(());
        }
        let rows = rules.own(ctx.group_rows(layer));
        let mut queries = self.read_queries(rules, ctx, layer, rows)?;
        account.timings.append(&mut queries.timings);
        let mut selections = Vec::with_capacity(rows.len());
        for (index, selecting) in rows.iter().enumerate() {
            let tensors = self.tensors(selecting, &queries, layer, ctx.batch);
            let q = Heads::new("q", &tensors.q, [queries.num_heads, selecting.rows, queries.head_dim])?;
            let k = Heads::new("k", &tensors.k, [rules.num_kv_heads, selecting.kv_len(), queries.head_dim])?;
            let selects_by = tensors.selects_by.as_deref().unwrap_or(&tensors.q);
            let selects_by =
                Heads::new("q", selects_by, [queries.num_heads, selecting.rows, queries.head_dim])?;
            let selection = match rules.source[layer] {
                Some(_) => self.last[index].clone(),
                None => self.select(rules, layer, index, selecting, (selects_by, k))?,
            };
            if rules.options.measure {
                let measured = Measured { selecting, selection: &selection, layer, q, k };
                rules.options.measure_into(account.of(selecting), &measured)?;
            }
            if self.certifies {
                let block = rules.options.policy.block_size();
                account.of(selecting).lower_mass([selection_mass(&selection, &q, &k, block, rules.digests)?]);
            }
            selections.push(selection);
        }
        let HostLists { words, stride, blocks } = rules.lay_out(rows, &selections, |blocks| blocks);
        self.placed[layer] = Some((stride, blocks));
        self.buf.write(ctx.gpu, &words)?;
        self.last.clone_from(&selections);
        account.count_selections(rules, rows, layer, selections);
        Ok(())
    }

    fn lists(&self, layer: usize) -> Option<Lists> {
        let (stride, blocks) = self.placed[layer]?;
        Some(Lists { bind: self.buf.bind(), stride, blocks })
    }

    fn read(&self, _: &mut Pass, _: &Batch) -> SelectionReads {
        SelectionReads::default()
    }

    fn take(&self, _: &Rules, _: &Batch, _: SelectionReads, _: &PassResults, _: &mut Account) {}

    fn place(&self) -> SelectionPlace {
        SelectionPlace::Host
    }
}
