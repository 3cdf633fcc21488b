//! Policies that rank blocks, in kernels: nothing of a layer is read back.
//!
//! A step summarises the blocks that it writes (digests, hashes), scores the blocks of its decode rows by the summaries alone,
//! and selects the best.

use std::sync::Arc;

use attn_kernels::gpu::{Pass, PassResults, Pipeline};
use attn_kernels::kernel::top_k::{self, Output, TopKBuffers, TopKParams};
use attn_kernels::rows::{DecodeRow, TopRow};
use sparse_select::policy::num_blocks;
use sparse_select::{ByDigests, Ranking};

use super::account::Account;
use super::kept::KeptLists;
use super::lists::{DeviceLists, score_stride};
use super::mass::{Mass, MassExtent, Ranked};
use super::next_blocks::PrefetchLists;
use super::rank::{RankContext, Scorer};
use super::shares::{Bounds, Shares};
use super::{ListedRows, Lists, Rules, Select, SelectingRows, SelectionReads, SelectionStep};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::{GrowBuf, OfLayers, StepList};
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;

/// Kernels, scores and lists of a ranking.
#[derive(Debug)]
pub(super) struct Ranker {
    scorer: Scorer,
    pub(super) top_k: Arc<Pipeline>,
    /// Number of rankings per row: one for all heads, or one for each KV head.
    pub(super) sets: u32,
    /// Scores of blocks, `[rows, sets, score_stride]`.
    pub(super) scores: OfLayers<f32>,
    pub(super) score_stride: u32,
    /// Number of selecting rows of the step.
    selecting: u32,
    /// Position of the scores of every row and set.
    pub(super) top_rows: GrowBuf<TopRow>,
    pub(super) tops: Vec<Option<Top>>,
    pub(super) lists: DeviceLists,
    /// Whether all blocks that a step summarises were complete before it.
    summarises_early: bool,
    /// Whether all layers select at the start of a step that summarises only blocks completed before it.
    at_once: bool,
    /// Rows whose queries select blocks, by attention group, if they are not the rows that attend the lists.
    rows: Option<Vec<StepList<DecodeRow>>>,
    /// Lists that rows keep from one selection to the next; `None` if rows select in every step.
    pub(super) kept: Option<KeptLists>,
    /// Blocks that the next step may select, if they are prefetched.
    pub(super) prefetch_lists: Option<PrefetchLists>,
    /// Lower bounds of the attention mass that lists keep; `None` if the digests give no bounds.
    shares: Option<Shares>,
    /// Selection by certified attention mass; `None` if a budget determines the number of blocks.
    mass: Option<Mass>,
}

/// Inputs of `top_k` in a layer.
#[derive(Clone, Debug)]
pub(super) struct Top {
    /// Index of the layer's first row.
    pub(super) first: usize,
    /// Number of blocks of each selecting row.
    pub(super) budgets: Vec<u32>,
}

impl Ranker {
    /// Creates the ranking of a policy; `None` if the policy's own code has to select.
    pub(super) fn new(load: &LoadContext<'_>, rules: &Rules) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, kv, attn_groups, .. } = *load;
        let (policy, selects) = (&*rules.options.policy, &rules.selecting_layers());
        let Some(ranking) = policy.ranking() else { return Ok(None) };
        let Some(scorer) = Scorer::new(load, policy, selects, rules.previous.is_some())? else {
            return Ok(None);
        };
        let num_layers = config.num_layers as usize;
        let at_once = rules.previous.is_some().then_some(num_layers);
        let sets = match ranking {
            Ranking::Digests(ByDigests { one_set: true, .. }) | Ranking::Hashes(_) => 1,
            Ranking::Digests(_) | Ranking::Compressed(_) => config.num_kv_heads,
        };
        let kept = KeptLists::new(load, rules, selects, sets)?;
        let own_rows = rules.previous.is_some() || kept.is_some();
        let rows = || attn_groups.all.iter().map(|_| StepList::new(gpu, "query_rows", 1)).collect();
        Ok(Some(Self {
            scorer,
            top_k: gpu.pipeline(&top_k::best(gpu.profile(), Output::List))?,
            sets,
            scores: OfLayers::new(gpu, "scores", 1, at_once)?,
            score_stride: 0,
            selecting: 0,
            top_rows: GrowBuf::new(gpu, "top_rows", 1)?,
            tops: vec![None; num_layers],
            lists: DeviceLists::of_layers(gpu, num_layers, at_once.is_some())?,
            summarises_early: false,
            // Keys of blocks on disk are on the board one layer at a time.
            at_once: rules.previous.is_some() && kv.board().is_empty(),
            rows: own_rows.then(rows).transpose()?,
            kept,
            prefetch_lists: match kv.page_slots() {
                0 => None,
                // The number of kept blocks depends on their keys: nothing can be prefetched.
                _ if policy.mass().is_some() => None,
                // The next step selects by this step's queries: its pages are fetched when it begins.
                _ if rules.previous.is_some() => None,
                _ => Some(PrefetchLists::new(gpu, policy)?),
            },
            shares: policy.certifies().then(|| Shares::new(gpu)).transpose()?,
            mass: Mass::new(load, policy)?,
        }))
    }

    /// Lists the rows whose queries select blocks, if they are not the rows that attend. For a row that keeps its lists,
    /// the listed row sees no keys.
    fn list_rows(&mut self, rules: &Rules, step: &SelectionStep<'_>) -> Result<(), ModelError> {
        for (attn_group, rows) in step.batch.attn_groups.iter().zip(self.rows.iter_mut().flatten()) {
            rows.clear();
            let keeps = |index| self.kept.as_ref().is_some_and(|kept| kept.then(index).is_some());
            rows.extend(rules.own(attn_group).iter().enumerate().map(|(index, selecting)| DecodeRow {
                row: selecting.q_row,
                len: if keeps(index) { 0 } else { u32_of(selecting.kv_len()) },
                table: u32_of(selecting.table.start),
                first_key: 0,
            }));
            rows.upload(step.gpu)?;
        }
        Ok(())
    }

    /// Returns the inputs of the kernels that score in a layer.
    fn context<'a>(&'a self, rules: &'a Rules, ctx: &Ctx<'a>, layer: usize) -> RankContext<'a> {
        let attn_group = ctx.attn_groups.of_layers[layer];
        let previous = rules.previous.as_ref().and_then(|queries| queries[layer].as_ref());
        let rows = match &self.rows {
            Some(rows) => rows[attn_group].on_device(),
            None => ctx.group_rows(layer).selected.decode.on_device(),
        };
        RankContext {
            layer,
            attn_group,
            kv: ctx.kv,
            q: previous.unwrap_or(&ctx.act.q),
            tables: ctx.batch.tables.on_device(),
            rows,
            count: self.selecting,
        }
    }

    /// Whether any row of the step selects.
    pub(super) fn selects(&self) -> bool {
        self.kept.as_ref().is_none_or(KeptLists::retrieves)
    }

    /// Records storing and restoring a layer's kept lists, if rows keep some.
    fn keep_lists(&self, ctx: &mut Ctx<'_>, layer: usize) {
        if self.tops[layer].is_some() {
            self.kept.iter().for_each(|kept| kept.record(ctx, layer, &self.lists));
        }
    }

    /// Records the selections of all layers, in passes whose dispatches run concurrently: each layer has its own buffers.
    fn select_at_once(&self, rules: &Rules, ctx: &mut Ctx<'_>) {
        let layers = 0..self.tops.len();
        let with_lists = || layers.clone().filter_map(|layer| Some((layer, self.tops[layer].as_ref()?)));
        let own = || with_lists().filter(|(layer, _)| rules.source[*layer].is_none() && self.selects());
        ctx.pass.split();
        for layer in layers.clone() {
            let context = self.context(rules, ctx, layer);
            self.scorer.summarise(ctx.pass, &context);
        }
        ctx.pass.split();
        for (layer, _) in own() {
            let context = self.context(rules, ctx, layer);
            self.scorer.prepare(ctx.pass, &context);
        }
        ctx.pass.split();
        for (layer, _) in own() {
            let context = self.context(rules, ctx, layer);
            self.scorer.score(ctx.pass, &context, self.scores.of(layer));
        }
        ctx.pass.split();
        for (layer, top) in own() {
            self.list_best(ctx, layer, top);
        }
        ctx.pass.split();
        for layer in layers.clone() {
            self.keep_lists(ctx, layer);
        }
        ctx.pass.split();
        if ctx.keys.pages().is_none() {
            return;
        }
        for (layer, _) in with_lists() {
            let lists = self.lists.of(layer);
            ctx.on_pages(|pages, context| {
                lists.iter().for_each(|lists| pages.assign_ahead(context, layer, lists));
            });
        }
        ctx.pass.split();
        ctx.on_pages(|pages, context| pages.fetch_ahead(context, 0));
    }

    /// Records the lists of the best blocks of a layer.
    fn list_best(&self, ctx: &mut Ctx<'_>, layer: usize, top: &Top) {
        let (rows, copies) = (self.selecting * self.sets, ctx.config.num_kv_heads / self.sets);
        let params = TopKParams { rows, out_stride: self.lists.stride, copies, page_size: 1 };
        let buffers = TopKBuffers {
            scores: self.scores.of(layer).bind(),
            rows: self.top_rows.bind_from(top.first),
            table: ctx.batch.tables.bind(),
            out: self.lists.bind_of(layer),
        };
        ctx.pass.dispatch(&self.top_k, &params, buffers);
    }
}

impl Ranker {
    /// Records lists that contain a layer's selection and then the blocks that the layer would select next. They are made
    /// concurrently with the selection itself, from the same scores.
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
        ctx.pass.dispatch(&self.top_k, &params, buffers);
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

impl Select for Ranker {
    fn forget(&mut self, blocks: &mut dyn Iterator<Item = u32>) {
        let blocks: Vec<u32> = blocks.collect();
        self.kept.iter_mut().for_each(|kept| kept.forget(&blocks));
        self.scorer.forget(blocks.into_iter());
    }

    fn begin(
        &mut self,
        rules: &Rules,
        step: &SelectionStep<'_>,
        account: &mut Account,
    ) -> Result<(), ModelError> {
        let SelectionStep { gpu, config, kv, batch, slices, .. } = *step;
        self.tops.fill(None);
        self.lists.clear();
        self.selecting = 0;
        self.shares.iter_mut().for_each(Shares::clear);
        let selecting = rules.selecting_rows(batch);
        self.kept.iter_mut().for_each(|kept| kept.plan(slices, selecting));
        self.summarises_early =
            self.scorer.touch(gpu, kv, &rules.attn_groups.all, slices, !selecting.is_empty())?;
        self.list_rows(rules, step)?;
        if selecting.is_empty() {
            return Ok(());
        }
        self.selecting = u32_of(selecting.len());
        let longest = selecting.iter().map(SelectingRows::kv_len).max().unwrap_or(0);
        self.score_stride = score_stride(num_blocks(longest, rules.options.policy.block_size()));
        let certifies = rules.certifies(slices);
        self.scorer.begin(gpu, config, selecting, self.score_stride, certifies || self.mass.is_some())?;
        let blocks = self.budget(rules, step, selecting)?;
        self.lists.fit(gpu, rules, batch, blocks)?;
        self.kept.as_mut().map_or(Ok(()), |kept| kept.upload(gpu, rules, self.lists.stride))?;
        let layers = self.tops.iter().flatten().count();
        if let Some(shares) = self.shares.as_mut().filter(|_| certifies) {
            shares.fit(gpu, layers, selecting.len() * rules.num_heads, self.score_stride)?;
        }
        if let Some(mass) = &mut self.mass {
            let extent =
                MassExtent { layers: self.tops.len(), rows: selecting.len(), blocks: self.score_stride };
            return mass.fit(gpu, config, &extent);
        }
        for layer in 0..self.tops.len() {
            self.count_budgets(rules, selecting, layer, account);
        }
        Ok(())
    }

    fn shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.lists.shape()?;
        let numbers = [self.selecting, self.score_stride].map(|n| n as usize);
        shape.extend(numbers);
        shape.extend([usize::from(self.summarises_early)]);
        shape.extend([self.scores.of(0).len(), self.top_rows.len()]);
        shape.extend(self.rows.iter().flatten().map(|rows| rows.on_device().len()));
        shape.extend(self.tops.iter().map(|top| top.as_ref().map_or(0, |top| top.first + 1)));
        self.scorer.shape(&mut shape);
        self.kept.iter().for_each(|kept| kept.shape(&mut shape));
        shape.extend(self.shares.iter().flat_map(Shares::shape));
        shape.extend(self.mass.iter().flat_map(Mass::shape));
        Some(shape)
    }

    fn swap_next(&mut self) {
        self.kept.iter_mut().for_each(KeptLists::swap_next);
    }

    fn summarise(&self, rules: &Rules, ctx: &mut Ctx<'_>, layer: usize) {
        let at_once = self.at_once && self.summarises_early;
        if !self.selects() && !at_once {
            self.keep_lists(ctx, layer);
        }
        if !self.summarises_early {
            return;
        }
        if !self.at_once {
            let context = self.context(rules, ctx, layer);
            self.scorer.summarise(ctx.pass, &context);
        } else if layer == 0 {
            self.select_at_once(rules, ctx);
        }
    }

    /// Records the selection of a layer by kernels: summaries of written blocks, even if no row of this step selects; scores of
    /// all blocks; lists of the best.
    fn record(
        &mut self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        layer: usize,
        _: &mut Account,
    ) -> Result<(), ModelError> {
        let context = self.context(rules, ctx, layer);
        if !self.summarises_early {
            self.scorer.summarise(ctx.pass, &context);
        }
        let Some(top) = &self.tops[layer] else { return Ok(()) };
        // Otherwise the lists exist already: those of the layer before, or of all layers.
        let at_once = self.at_once && self.summarises_early;
        let selects_now = rules.source[layer].is_none() && !at_once && self.selects();
        if selects_now {
            self.scorer.prepare(ctx.pass, &context);
            self.scorer.score(ctx.pass, &context, self.scores.of(layer));
        }
        let (scores, score_stride, lists) = (self.scores.of(layer), self.score_stride, &self.lists);
        let ranked = Ranked { scores, score_stride, lists };
        match (&self.mass, self.scorer.bounds()) {
            (Some(mass), Some(bounds)) => mass.cut(rules, ctx, &ranked, bounds, &context),
            _ if selects_now => {
                self.list_best(ctx, layer, top);
                self.keep_lists(ctx, layer);
            }
            _ => {}
        }
        self.rank_prefetch(ctx, layer);
        self.lists.keep(ctx.pass, layer);
        Ok(())
    }

    fn lists(&self, layer: usize) -> Option<Lists> {
        self.lists.of(layer)
    }

    fn certify(&self, rules: &Rules, ctx: &mut Ctx<'_>, layer: usize, rows: &ListedRows<'_>) {
        let (Some(shares), Some(bounds)) = (&self.shares, self.scorer.bounds()) else { return };
        let before = u32_of(self.tops[..layer].iter().flatten().count());
        shares.record(rules, ctx, rows, &Bounds { bounds, stride: self.score_stride, before });
    }

    fn prefetch_lists(&self, layer: usize) -> Option<Lists> {
        self.next_lists(layer)
    }

    fn at_once(&self) -> bool {
        self.at_once && self.scorer.completes_before()
    }

    fn read(&self, pass: &mut Pass, _: &Batch) -> SelectionReads {
        let rows = self.selecting as usize;
        let counts = self.mass.as_ref().filter(|_| rows > 0);
        SelectionReads {
            masses: self.shares.as_ref().and_then(|shares| shares.read(pass)),
            counts: counts.map(|mass| pass.read(&mass.counts, 0..self.tops.len() * rows)),
            traced: self.lists.read(pass),
            ..SelectionReads::default()
        }
    }

    fn take(
        &self,
        rules: &Rules,
        batch: &Batch,
        mut reads: SelectionReads,
        done: &PassResults,
        account: &mut Account,
    ) {
        if let Some(read) = reads.masses.take() {
            let masses: Vec<f32> = done.get(read);
            for (selecting, masses) in
                rules.selecting_rows(batch).iter().zip(masses.chunks_exact(rules.num_heads))
            {
                account.of(selecting).lower_mass(masses.iter().map(|mass| f64::from(*mass)));
            }
        }
        self.lists.take_reads(rules, batch, reads, done, account);
    }
}
