//! Policies that rank blocks, in kernels: nothing of a layer is read back.
//!
//! A step takes in the pages that it writes (digests, hashes), scores the blocks of its decode rows from those alone, and
//! takes the best.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::top_k::{self, Output, TopKParams};
use sparse_select::policy::num_blocks;
use sparse_select::{ByDigests, Policy, Ranking};

use super::bound::Bound;
use super::mass::Mass;
use super::rank::{Scorer, Site};
use super::wish::Wishes;
use super::{Chosen, Place, Sparse, choosing, fit, u32_of};
use crate::batch::Slice;
use crate::decoder::Decoder;
use crate::decoder::inputs::{Plan, ViewRows};
use crate::sparse::Tally;
use crate::{DecoderConfig, KvPool, ModelError};

/// Kernels and buffers of a ranking.
#[derive(Debug)]
pub(super) struct Ranker {
    scorer: Scorer,
    pub(super) top_k: Arc<Pipeline>,
    /// Orders a row: one for all heads, or one for each KV head.
    pub(super) sets: u32,
    /// `[rows, sets, score_stride]`
    pub(super) scores: Buf<f32>,
    pub(super) score_stride: u32,
    /// Rows of the step that select.
    pub(super) chosen: u32,
    /// `(first score, scores, blocks to take, 0)` of every row and set, and where those of a layer begin.
    top_rows: Buf<[u32; 4]>,
    pub(super) tops: Vec<Option<Top>>,
    /// What the next step may select, where that is fetched ahead.
    pub(super) wishes: Option<Wishes>,
    /// Where digests bound the mass that is kept.
    pub(super) bound: Option<Bound>,
    /// Where a mass and no budget decides how many blocks are kept.
    pub(super) mass: Option<Mass>,
}

/// What `top_k` takes in a layer.
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
        gpu: &Gpu,
        policy: &dyn Policy,
        (config, kv): (&DecoderConfig, &KvPool),
        selects: &[bool],
        views: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(ranking) = policy.ranking() else { return Ok(None) };
        let Some(scorer) = Scorer::new(gpu, policy, (config, kv), selects, views)? else { return Ok(None) };
        Ok(Some(Self {
            scorer,
            top_k: gpu.pipeline(&top_k::variant(Output::List, gpu.top_k_level()))?,
            sets: match ranking {
                Ranking::Digests(ByDigests { one_set: true, .. }) | Ranking::Hashes(_) => 1,
                Ranking::Digests(_) | Ranking::Compressed(_) => config.num_kv_heads,
            },
            scores: gpu.buffer("scores", 1)?,
            score_stride: 0,
            chosen: 0,
            top_rows: gpu.buffer("top_rows", 1)?,
            tops: vec![None; config.num_layers as usize],
            wishes: match kv.page_slots() {
                0 => None,
                // What is kept depends on the keys of all that is kept: nothing is known ahead.
                _ if policy.mass().is_some() => None,
                _ => Some(Wishes::new(gpu)?),
            },
            bound: policy.certifies().then(|| Bound::new(gpu, policy.block_size().get())).transpose()?,
            mass: Mass::new(gpu, policy, (config, kv))?,
        }))
    }

    /// Pages that are about to be written.
    pub(super) fn forget(&mut self, pages: impl Iterator<Item = u32>) {
        self.scorer.forget(pages);
    }

    /// What the blocks of the layer at hand may hold, where a certificate asks for it.
    pub(super) fn bounds(&self) -> Option<&Buf<f32>> {
        self.scorer.bounds()
    }

    /// Lays out how many blocks each row takes in each layer; returns the entries from list to list. `layers` names for each
    /// layer the one whose selection it takes. Where pages are spare beside the selection, up to a quarter as many blocks
    /// more are wished for.
    fn budget(
        &mut self,
        gpu: &Gpu,
        policy: &dyn Policy,
        config: &DecoderConfig,
        layers: &[Option<usize>],
        chosen: &[Chosen],
        spare_blocks: u32,
    ) -> Result<u32, ModelError> {
        let longest = chosen.iter().map(Chosen::kv_len).max().unwrap_or(0);
        self.score_stride = num_blocks(longest, policy.block_size());
        self.chosen = u32_of(chosen.len());
        self.scorer.begin(gpu, config, chosen, self.score_stride)?;
        let (sets, score_stride) = (self.sets, self.score_stride);
        let mut rows: Vec<[u32; 4]> = Vec::new();
        let mut last: Option<Top> = None;
        for (layer, selecting) in layers.iter().enumerate() {
            self.tops[layer] = None;
            let Some(selecting) = selecting else { continue };
            let budget = |chosen: &Chosen| policy.budget(Some(u32_of(*selecting)), chosen.kv_len());
            let budgets: Vec<u32> = chosen.iter().map(budget).collect();
            if last.as_ref().is_none_or(|last| last.budgets != budgets) {
                rows.resize(rows.len().next_multiple_of(ROWS_ALIGN), [0; 4]);
                last = Some(Top { first: rows.len(), budgets: budgets.clone() });
                for (i, (chosen, k)) in (0..).zip(chosen.iter().zip(&budgets)) {
                    let blocks = num_blocks(chosen.kv_len(), policy.block_size());
                    rows.extend((0..sets).map(|set| [(i * sets + set) * score_stride, blocks, *k, 0]));
                }
            }
            self.tops[layer].clone_from(&last);
        }
        fit(gpu, &mut self.top_rows, rows.len() + ROWS_ALIGN)?;
        gpu.write(&self.top_rows, 0, &rows);
        fit(gpu, &mut self.scores, chosen.len() * (sets * score_stride) as usize)?;
        let most = self.tops.iter().flatten().flat_map(|top| &top.budgets).max().copied().unwrap_or(0);
        if let Some(wishes) = &mut self.wishes {
            let spare = (spare_blocks / u32_of(chosen.len()).max(1)).saturating_sub(most);
            wishes.lay_out(gpu, rows, most, spare, chosen.len() * config.num_kv_heads as usize)?;
        }
        Ok(1 + most)
    }
}

impl Sparse {
    /// Begins a step whose blocks kernels select: what they read, and where their lists go.
    pub(super) fn begin_on_device(
        &mut self,
        gpu: &Gpu,
        (config, kv): (&DecoderConfig, &KvPool),
        plan: &Plan,
        slices: &[Slice<'_>],
        spare_pages: u32,
    ) -> Result<(), ModelError> {
        let selecting = |layer: usize| {
            let sparse = self.is_sparse_in(&plan.views[self.view_of[layer]], layer);
            sparse.then(|| self.source[layer].unwrap_or(layer))
        };
        let layers: Vec<Option<usize>> = (0..self.placed.len()).map(selecting).collect();
        let ranker = self.ranker.as_mut().expect("kernels select");
        ranker.scorer.touch(gpu, kv, &self.views, slices)?;
        // All layers of full attention choose the same rows, whichever group they are in.
        let Some(view) = choosing(plan) else { return Ok(()) };
        let policy = &*self.options.policy;
        let spare = spare_pages / (policy.block_size().get() / kv.shape().block_size);
        let stride = ranker.budget(gpu, policy, config, &layers, &view.chosen, spare)?;
        if let Some(bound) = &mut ranker.bound {
            let rows = view.chosen.len() * config.num_heads as usize;
            bound.fit(gpu, [layers.iter().flatten().count(), rows], ranker.score_stride)?;
        }
        let blocks = ranker.score_stride;
        if let Some(mass) = &mut ranker.mass {
            mass.fit(gpu, config, [self.placed.len(), view.chosen.len()], blocks)?;
        }
        let words = view.chosen.len() * self.num_kv_heads * stride as usize;
        for (layer, _) in layers.iter().enumerate().filter(|(_, selecting)| selecting.is_some()) {
            self.placed[layer] = Some(Place { first: 0, stride });
            if self.ranker.as_ref().is_some_and(|ranker| ranker.mass.is_none()) {
                self.count_budgets(view, layer);
            }
        }
        fit(gpu, &mut self.lists, words)?;
        self.trace(gpu, words)
    }

    /// Counts what kernels will take: exactly their budgets.
    fn count_budgets(&mut self, plan: &ViewRows, layer: usize) {
        let budgets =
            self.ranker.as_ref().and_then(|ranker| ranker.tops[layer].as_ref()).map(|top| &top.budgets);
        let (block, heads) = (self.options.policy.block_size().get(), self.num_kv_heads as u64);
        for (chosen, budget) in plan.chosen.iter().zip(budgets.into_iter().flatten()) {
            let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
            let [blocks, visible] = [u64::from(*budget), chosen.visible(block)].map(|n| n * heads);
            attended.count(layer, Tally { blocks, visible });
        }
    }
}

impl Decoder {
    /// Records the selection of a layer by kernels: it takes in what was written, whether or not a row of this step selects;
    /// scores of all blocks; lists of the best.
    pub(super) fn select_on_device(&self, pass: &mut Pass, layer: usize, plan: &ViewRows) {
        let Some(sparse) = &self.sparse else { return };
        let Some(ranker) = &sparse.ranker else { return };
        let view = self.layers[layer].view;
        let site = Site {
            layer,
            view,
            k: self.kv.home(layer).0,
            q: &self.activations.q,
            tables: &self.inputs.tables,
            rows: &self.inputs.views[view].selected.decode,
            count: ranker.chosen,
        };
        ranker.scorer.take_in(pass, &site);
        let Some(top) = ranker.tops[layer].as_ref().filter(|_| !plan.chosen.is_empty()) else { return };
        let Some(Place { stride, .. }) = sparse.placed[layer] else { return };
        // Else the lists are still those of the layer before.
        if sparse.source[layer].is_none() {
            ranker.scorer.score(pass, &site, &ranker.scores);
        }
        if let Some(mass) = &ranker.mass {
            self.cut_by_mass(pass, sparse, mass, &site);
        } else if sparse.source[layer].is_none() {
            let (rows, copies) = (site.count * ranker.sets, self.config.num_kv_heads / ranker.sets);
            let params = TopKParams { rows, out_stride: stride, copies, page_size: 1 };
            let bindings: [Bind; 4] = [
                (&ranker.scores).into(),
                Bind::at(ranker.top_rows.raw(), top.first as u64 * 16),
                (&self.inputs.tables).into(),
                (&sparse.lists).into(),
            ];
            pass.dispatch(&ranker.top_k, &params, &bindings, top_k::grid(rows));
        }
        self.rank_wishes(pass, layer);
        sparse.copy_trace(pass, layer);
    }
}
