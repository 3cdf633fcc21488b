//! Policies that rank blocks, in kernels: nothing of a layer is read back.
//!
//! A step takes in the pages that it writes (digests, hashes), scores the blocks of its decode rows from those alone, and
//! takes the best.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Pipeline};
use attn_kernels::kernel::top_k::{self, Output, TopKBuffers, TopKParams};
use attn_kernels::rows::TopRow;
use sparse_select::policy::num_blocks;
use sparse_select::{ByDigests, Policy, Ranking};

use super::bound::Bound;
use super::mass::{Mass, MassRoom};
use super::rank::{RankContext, Scorer};
use super::wish::Wishes;
use super::{Begin, Place, SelectingRows, Selector, Sparse, choosing};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::attention::LoadContext;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::inputs::ViewRows;
use crate::decoder::ops::Ctx;
use crate::sparse::Tally;

/// Kernels and buffers of a ranking.
#[derive(Debug)]
pub(super) struct Ranker {
    scorer: Scorer,
    pub(super) top_k: Arc<Pipeline>,
    /// Orders a row: one for all heads, or one for each KV head.
    pub(super) sets: u32,
    /// `[rows, sets, score_stride]`
    pub(super) scores: GrowBuf<f32>,
    pub(super) score_stride: u32,
    /// Rows of the step that select.
    pub(super) chosen: u32,
    /// Scores of every row and set.
    top_rows: GrowBuf<TopRow>,
    pub(super) tops: Vec<Option<Top>>,
    /// Blocks that the next step may select, where these are fetched ahead.
    pub(super) wishes: Option<Wishes>,
    /// Bound of the mass that is kept, where digests give one.
    pub(super) bound: Option<Bound>,
    /// Mass that decides how many blocks are kept, where no budget does.
    pub(super) mass: Option<Mass>,
}

/// Inputs of `top_k` in a layer.
#[derive(Clone, Debug)]
pub(super) struct Top {
    /// First of its rows.
    pub(super) first: usize,
    /// Blocks of each chosen row.
    pub(super) budgets: Vec<u32>,
}

/// Rows are bound at offsets that are multiples of this many.
pub(super) const ROWS_ALIGN: usize = 16;

impl Ranker {
    /// `None` where the policy's own code has to select. `selects` names the layers that do so themselves.
    pub(super) fn new(
        load: &LoadContext<'_>,
        policy: &dyn Policy,
        selects: &[bool],
    ) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, kv, .. } = *load;
        let Some(ranking) = policy.ranking() else { return Ok(None) };
        let Some(scorer) = Scorer::new(load, policy, selects)? else { return Ok(None) };
        Ok(Some(Self {
            scorer,
            top_k: gpu.pipeline(&top_k::variant(Output::List, gpu.top_k_level()))?,
            sets: match ranking {
                Ranking::Digests(ByDigests { one_set: true, .. }) | Ranking::Hashes(_) => 1,
                Ranking::Digests(_) | Ranking::Compressed(_) => config.num_kv_heads,
            },
            scores: GrowBuf::new(gpu, "scores", 1)?,
            score_stride: 0,
            chosen: 0,
            top_rows: GrowBuf::new(gpu, "top_rows", 1)?,
            tops: vec![None; config.num_layers as usize],
            wishes: match kv.page_slots() {
                0 => None,
                // What is kept depends on the keys of all that is kept: nothing is known ahead.
                _ if policy.mass().is_some() => None,
                _ => Some(Wishes::new(gpu)?),
            },
            bound: policy.certifies().then(|| Bound::new(gpu, policy.block_size().get())).transpose()?,
            mass: Mass::new(load, policy)?,
        }))
    }

    /// Pages that are about to be written.
    pub(super) fn forget(&mut self, pages: impl Iterator<Item = u32>) {
        self.scorer.forget(pages);
    }

    /// Returns bounds of the mass of blocks in the current layer, where a certificate asks for them.
    pub(super) fn bounds(&self) -> Option<&Buf<f32>> {
        self.scorer.bounds()
    }

    /// Lays out how many blocks each row takes in each layer; returns the entries from list to list. `layers` names for each
    /// layer the one whose selection it takes. Where pages are spare beside the selection, up to a quarter as many blocks
    /// more are wished for.
    fn budget(
        &mut self,
        step: &Begin<'_>,
        policy: &dyn Policy,
        layers: &[Option<usize>],
        chosen: &[SelectingRows],
    ) -> Result<u32, ModelError> {
        let Begin { gpu, config, kv, .. } = *step;
        let spare_blocks = step.spare_pages / (policy.block_size().get() / kv.shape().block_size);
        let longest = chosen.iter().map(SelectingRows::kv_len).max().unwrap_or(0);
        self.score_stride = num_blocks(longest, policy.block_size());
        self.chosen = u32_of(chosen.len());
        self.scorer.begin(gpu, config, chosen, self.score_stride)?;
        let (sets, score_stride) = (self.sets, self.score_stride);
        let mut rows: Vec<TopRow> = Vec::new();
        let mut last: Option<Top> = None;
        for (layer, selecting) in layers.iter().enumerate() {
            self.tops[layer] = None;
            let Some(selecting) = selecting else { continue };
            let budget = |chosen: &SelectingRows| policy.budget(Some(u32_of(*selecting)), chosen.kv_len());
            let budgets: Vec<u32> = chosen.iter().map(budget).collect();
            if last.as_ref().is_none_or(|last| last.budgets != budgets) {
                rows.resize(rows.len().next_multiple_of(ROWS_ALIGN), TopRow::default());
                last = Some(Top { first: rows.len(), budgets: budgets.clone() });
                for (i, (chosen, k)) in (0..).zip(chosen.iter().zip(&budgets)) {
                    let scores = num_blocks(chosen.kv_len(), policy.block_size());
                    let first = |set| (i * sets + set) * score_stride;
                    rows.extend((0..sets).map(|set| TopRow { first: first(set), scores, k: *k, table: 0 }));
                }
            }
            self.tops[layer].clone_from(&last);
        }
        self.top_rows.fit(gpu, rows.len() + ROWS_ALIGN)?;
        gpu.write(&self.top_rows, 0, &rows);
        self.scores.fit(gpu, chosen.len() * (sets * score_stride) as usize)?;
        let most = self.tops.iter().flatten().flat_map(|top| &top.budgets).max().copied().unwrap_or(0);
        if let Some(wishes) = &mut self.wishes {
            let spare = (spare_blocks / u32_of(chosen.len()).max(1)).saturating_sub(most);
            let lists = chosen.len() * config.num_kv_heads as usize;
            wishes.lay_out(gpu, rows, most, spare, lists)?;
        }
        Ok(1 + most)
    }
}

impl Sparse {
    /// Begins a step whose blocks kernels rank: what they read, and where their lists go.
    pub(super) fn begin_ranking(&mut self, step: &Begin<'_>) -> Result<(), ModelError> {
        let Begin { gpu, config, kv, plan, slices, .. } = *step;
        let selecting = |layer: usize| {
            let sparse = self.is_sparse_in(&plan.views[self.views.of_layers[layer]], layer);
            sparse.then(|| self.source[layer].unwrap_or(layer))
        };
        let layers: Vec<Option<usize>> = (0..self.placed.len()).map(selecting).collect();
        let Selector::Ranked(ranker) = &mut self.selector else { return Ok(()) };
        ranker.scorer.touch(gpu, kv, &self.views.all, slices)?;
        // All layers of full attention choose the same rows, whichever group they are in.
        let Some(view) = choosing(plan) else { return Ok(()) };
        let stride = ranker.budget(step, &*self.options.policy, &layers, &view.selecting)?;
        if let Some(bound) = &mut ranker.bound {
            let rows = view.selecting.len() * config.num_heads as usize;
            bound.fit(gpu, layers.iter().flatten().count(), rows, ranker.score_stride)?;
        }
        let blocks = ranker.score_stride;
        if let Some(mass) = &mut ranker.mass {
            mass.fit(
                gpu,
                config,
                &MassRoom { layers: self.placed.len(), rows: view.selecting.len(), blocks },
            )?;
        }
        let words = view.selecting.len() * self.num_kv_heads * stride as usize;
        for (layer, _) in layers.iter().enumerate().filter(|(_, selecting)| selecting.is_some()) {
            self.placed[layer] = Some(Place { first: 0, stride });
            self.count_budgets(view, layer);
        }
        self.lists.fit(gpu, words)?;
        self.trace(gpu, words)
    }

    /// Counts what kernels will take: exactly their budgets, unless a mass decides.
    fn count_budgets(&mut self, plan: &ViewRows, layer: usize) {
        let Selector::Ranked(ranker) = &self.selector else { return };
        let budgets = ranker.tops[layer].as_ref().filter(|_| ranker.mass.is_none()).map(|top| &top.budgets);
        let (block, heads) = (self.options.policy.block_size().get(), self.num_kv_heads as u64);
        for (chosen, budget) in plan.selecting.iter().zip(budgets.into_iter().flatten()) {
            let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
            let [blocks, visible] = [u64::from(*budget), chosen.visible(block)].map(|n| n * heads);
            attended.count(layer, Tally { blocks, visible });
        }
    }
}

impl Sparse {
    /// Records the selection of a layer by kernels: it takes in what was written, whether or not a row of this step selects;
    /// scores of all blocks; lists of the best.
    pub(super) fn rank(&self, ranker: &Ranker, ctx: &mut Ctx<'_>, layer: usize) {
        let view = ctx.views.of_layers[layer];
        let context = RankContext {
            layer,
            view,
            k: ctx.kv.home(layer).0,
            q: &ctx.act.q,
            tables: &ctx.inputs.tables,
            rows: &ctx.lists(layer).selected.decode,
            count: ranker.chosen,
        };
        ranker.scorer.take_in(ctx.pass, &context);
        let chosen = !ctx.view(layer).selecting.is_empty();
        let Some(top) = ranker.tops[layer].as_ref().filter(|_| chosen) else { return };
        let Some(Place { stride, .. }) = self.placed[layer] else { return };
        // Else the lists are still those of the layer before.
        if self.source[layer].is_none() {
            ranker.scorer.score(ctx.pass, &context, &ranker.scores);
        }
        if let Some(mass) = &ranker.mass {
            self.cut_by_mass(ctx, ranker, mass, &context);
        } else if self.source[layer].is_none() {
            let (rows, copies) = (context.count * ranker.sets, ctx.config.num_kv_heads / ranker.sets);
            let params = TopKParams { rows, out_stride: stride, copies, page_size: 1 };
            let buffers = TopKBuffers {
                scores: ranker.scores.bind(),
                rows: ranker.top_rows.bind_from(top.first),
                table: context.tables.bind(),
                out: self.lists.bind(),
            };
            ctx.pass.dispatch(&ranker.top_k, &params, buffers, top_k::grid(rows));
        }
        ranker.rank_wishes(ctx, layer);
        self.copy_trace(ctx.pass, layer);
    }
}
