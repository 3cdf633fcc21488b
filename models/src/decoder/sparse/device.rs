//! Policies that rank by digests of pages, in kernels: nothing of a layer is read back.
//!
//! Digests lie beside the cache, one of every page and layer that selects. A step digests the pages that it writes, scores
//! the blocks of its decode rows from digests alone, and takes the best.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::top_k::{self, Output, TopKParams};
use bytemuck::Zeroable;
use rustc_hash::FxHashSet;
use sparse_select::policy::num_blocks;
use sparse_select::{DigestKind, Policy, Ranking};

use super::bound::Bound;
use super::wish::Wishes;
use super::{Chosen, Place, Sparse, choosing, fit, u32_of};
use crate::batch::Slice;
use crate::decoder::Decoder;
use crate::decoder::inputs::{Plan, View, ViewRows};
use crate::sparse::Tally;
use crate::{DecoderConfig, KvPool, ModelError, Reach};

/// Kernels and buffers of a ranking.
#[derive(Debug)]
pub(super) struct Ranker {
    ranking: Ranking,
    digest: Digest,
    pub(super) pipelines: [Arc<Pipeline>; 3],
    /// Digests of each layer, `None` where it is dense.
    pub(super) pools: Vec<Option<Buf<f32>>>,
    /// Tokens of a block.
    block: u32,
    /// Pages whose digests are out of date.
    stale: FxHashSet<u32>,
    /// `(page, tokens)` to digest, by view.
    touched: Vec<Touched>,
    pub(super) scores: Buf<f32>,
    /// Rows of the step that select.
    pub(super) chosen: u32,
    /// Of the step: the same in all its layers.
    pub(super) score_params: BlockScoreParams,
    /// `(first score, scores, blocks to take, 0)` of every row and set, and where those of a layer begin.
    top_rows: Buf<[u32; 4]>,
    pub(super) tops: Vec<Option<Top>>,
    /// What the next step may select, where that is fetched ahead.
    pub(super) wishes: Option<Wishes>,
    /// Where digests bound the mass that is kept.
    pub(super) bound: Option<Bound>,
}

/// Pages that a step digests in the layers of one view.
#[derive(Debug)]
struct Touched {
    count: u32,
    pages: Buf<[u32; 2]>,
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
    pub(super) fn new(
        gpu: &Gpu,
        policy: &dyn Policy,
        config: &DecoderConfig,
        kv: &KvPool,
        views: &[View],
    ) -> Result<Option<Self>, ModelError> {
        let Some(ranking) = policy.ranking() else { return Ok(None) };
        let digest = match ranking.digest {
            DigestKind::MinMax => Digest::MinMax,
            DigestKind::Mean => Digest::Mean,
        };
        let shape = kv.shape();
        let pool = |layer: u32| {
            let limited = config.layers[layer as usize].reach != Reach::Full;
            let dense = limited || policy.keeps_all(Some(layer), usize::MAX);
            let len = digest.pool_len(shape, kv.num_blocks() as usize);
            (!dense).then(|| gpu.buffer("digests", len)).transpose()
        };
        let block = policy.block_size().get();
        let touched = |_: &View| Ok(Touched { count: 0, pages: gpu.buffer("touched", 1)? });
        Ok(Some(Self {
            ranking,
            digest,
            block,
            pipelines: [
                gpu.pipeline(&block_digest::variant(shape, digest))?,
                gpu.pipeline(&block_score::variant(shape, config.num_heads, digest, block))?,
                gpu.pipeline(&top_k::variant(Output::List, gpu.level()))?,
            ],
            pools: (0..config.num_layers).map(pool).collect::<Result<_, _>>()?,
            stale: FxHashSet::default(),
            touched: views.iter().map(touched).collect::<Result<_, ModelError>>()?,
            scores: gpu.buffer("scores", 1)?,
            chosen: 0,
            score_params: BlockScoreParams::zeroed(),
            top_rows: gpu.buffer("top_rows", 1)?,
            tops: vec![None; config.num_layers as usize],
            wishes: match kv.page_slots() {
                0 => None,
                _ => Some(Wishes::new(gpu)?),
            },
            bound: policy.certifies().then(|| Bound::new(gpu, shape, block)).transpose()?,
        }))
    }

    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32>) {
        self.stale.extend(blocks);
    }

    /// Lays out what the step digests: pages that were written, once they are behind the block of a sequence's last token.
    /// That block is always taken, so that nobody asks for its digest: most steps of decode digest nothing.
    pub(super) fn touch(
        &mut self,
        gpu: &Gpu,
        shape: &KvShape,
        num_pages: u32,
        views: &[View],
        slices: &[Slice<'_>],
    ) -> Result<(), ModelError> {
        let first_page = |token: u32| (token / self.block * (self.block / shape.block_size)) as usize;
        let mut digested = vec![FxHashSet::default(); views.len()];
        let mut unfinished = FxHashSet::default();
        let full = |view: &View| view.reach == Reach::Full;
        for (view, digested) in views.iter().zip(&mut digested).filter(|(view, _)| full(view)) {
            for slice in slices {
                let (table, end) = (slice.tables[view.group], slice.first + u32_of(slice.tokens.len()));
                let last = first_page(end - 1);
                // The block before the slice was unfinished until now.
                let behind = &table[first_page(slice.first.saturating_sub(1))..last];
                digested.extend(behind.iter().map(|page| page.get()));
                let pages = &table[last..end.div_ceil(shape.block_size) as usize];
                unfinished.extend(pages.iter().map(|page| page.get()));
            }
        }
        let touched = views.iter().zip(digested).zip(&mut self.touched);
        for ((_, mut digested), touched) in touched.filter(|((view, _), _)| full(view)) {
            digested.extend(self.stale.difference(&unfinished));
            let mut pages: Vec<[u32; 2]> =
                digested.into_iter().map(|page| [page, shape.block_size]).collect();
            pages.sort_unstable();
            block_digest::check(shape, &pages, num_pages)?;
            fit(gpu, &mut touched.pages, pages.len())?;
            gpu.write(&touched.pages, 0, &pages);
            touched.count = u32_of(pages.len());
        }
        // Sequences that are not of the next step leave theirs behind, for others with the same prefix.
        self.stale = unfinished;
        Ok(())
    }

    /// Lays out how many blocks each row takes in each layer; returns the entries from list to list. Where pages are spare
    /// beside the selection, up to a quarter as many blocks more are wished for.
    pub(super) fn budget(
        &mut self,
        gpu: &Gpu,
        policy: &dyn Policy,
        config: &DecoderConfig,
        layers: impl Iterator<Item = (usize, bool)>,
        chosen: &[Chosen],
        spare_blocks: u32,
    ) -> Result<u32, ModelError> {
        let params = self.params(config, policy, chosen);
        self.score_params = params;
        self.chosen = u32_of(chosen.len());
        let sets = params.num_heads / params.heads_a_set;
        let mut rows: Vec<[u32; 4]> = Vec::new();
        let mut last: Option<Top> = None;
        for (layer, sparse) in layers {
            self.tops[layer] = None;
            if !sparse {
                continue;
            }
            let budgets: Vec<u32> =
                chosen.iter().map(|chosen| policy.budget(Some(u32_of(layer)), chosen.kv_len())).collect();
            if last.as_ref().is_none_or(|last| last.budgets != budgets) {
                rows.resize(rows.len().next_multiple_of(ROWS_ALIGN), [0; 4]);
                last = Some(Top { first: rows.len(), budgets: budgets.clone() });
                for (i, (chosen, k)) in (0..).zip(chosen.iter().zip(&budgets)) {
                    let blocks = num_blocks(chosen.kv_len(), policy.block_size());
                    rows.extend((0..sets).map(|set| [(i * sets + set) * params.score_stride, blocks, *k, 0]));
                }
            }
            self.tops[layer].clone_from(&last);
        }
        fit(gpu, &mut self.top_rows, rows.len() + ROWS_ALIGN)?;
        gpu.write(&self.top_rows, 0, &rows);
        fit(gpu, &mut self.scores, block_score::scores_len(&params, chosen.len()))?;
        let most = self.tops.iter().flatten().flat_map(|top| &top.budgets).max().copied().unwrap_or(0);
        if let Some(wishes) = &mut self.wishes {
            let spare = (spare_blocks / u32_of(chosen.len()).max(1)).saturating_sub(most);
            wishes.lay_out(gpu, rows, most, spare, chosen.len() * config.num_kv_heads as usize)?;
        }
        Ok(1 + most)
    }

    fn params(&self, config: &DecoderConfig, policy: &dyn Policy, chosen: &[Chosen]) -> BlockScoreParams {
        let longest = chosen.iter().map(Chosen::kv_len).max().unwrap_or(0);
        let group = config.num_heads / config.num_kv_heads;
        BlockScoreParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            q_stride: config.num_heads * config.head_dim,
            heads_a_set: if self.ranking.one_set { config.num_heads } else { group },
            score_stride: num_blocks(longest, policy.block_size()),
            sink_blocks: self.ranking.sink_blocks,
            recent_blocks: self.ranking.recent_blocks,
            recent_full: u32::from(self.ranking.recent_full),
            scale: 1.0,
            infinity: f32::INFINITY,
            pad0: 0,
            pad1: 0,
        }
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
        let sparse_in: Vec<bool> = (0..self.placed.len())
            .map(|layer| self.is_sparse_in(&plan.views[self.view_of[layer]], layer))
            .collect();
        let ranker = self.ranker.as_mut().expect("kernels select");
        ranker.touch(gpu, kv.shape(), kv.num_blocks(), &self.views, slices)?;
        // All layers of full attention choose the same rows, whichever group they are in.
        let Some(view) = choosing(plan) else { return Ok(()) };
        let layers = sparse_in.iter().copied().enumerate();
        let policy = &*self.options.policy;
        let spare = spare_pages / (policy.block_size().get() / kv.shape().block_size);
        let stride = ranker.budget(gpu, policy, config, layers, &view.chosen, spare)?;
        if let Some(bound) = &mut ranker.bound {
            let rows = view.chosen.len() * config.num_heads as usize;
            let layers = sparse_in.iter().filter(|sparse| **sparse).count();
            bound.fit(gpu, [layers, rows], ranker.score_params.score_stride)?;
        }
        let words = view.chosen.len() * self.num_kv_heads * stride as usize;
        for (layer, _) in sparse_in.iter().enumerate().filter(|(_, sparse)| **sparse) {
            self.placed[layer] = Some(Place { first: 0, stride });
            self.count_budgets(view, layer);
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
    /// Records the selection of a layer by kernels: digests of what was written, whether or not a row of this step
    /// selects; scores of all blocks; lists of the best.
    pub(super) fn select_on_device(&self, pass: &mut Pass, layer: usize, plan: &ViewRows) {
        let Some(sparse) = &self.sparse else { return };
        let Some(ranker) = &sparse.ranker else { return };
        let Some(pool) = &ranker.pools[layer] else { return };
        let (view, shape) = (self.layers[layer].view, self.kv.shape());
        let touched = &ranker.touched[view];
        if touched.count > 0 {
            let (num_kv_heads, touched_pages) = (shape.num_kv_heads, touched.count);
            let params = BlockDigestParams { num_kv_heads, touched: touched_pages, pad0: 0, pad1: 0 };
            let (k, _) = self.kv.home(layer);
            let bindings = [(&touched.pages).into(), k.into(), pool.into()];
            pass.dispatch(&ranker.pipelines[0], &params, &bindings, block_digest::grid(shape, touched_pages));
        }

        let Some(top) = ranker.tops[layer].as_ref().filter(|_| !plan.chosen.is_empty()) else { return };
        let params = ranker.score_params;
        let rows = u32_of(plan.chosen.len());
        let bindings: [Bind; 5] = [
            (&self.activations.q).into(),
            pool.into(),
            (&self.inputs.tables).into(),
            (&self.inputs.views[view].selected.decode).into(),
            (&ranker.scores).into(),
        ];
        pass.dispatch(
            &ranker.pipelines[1],
            &params,
            &bindings,
            block_score::grid(ranker.digest, &params, rows),
        );

        let Some(Place { stride, .. }) = sparse.placed[layer] else { return };
        let sets = params.num_heads / params.heads_a_set;
        let copies = self.config.num_kv_heads / sets;
        let params = TopKParams { rows: rows * sets, out_stride: stride, copies, page_size: 1 };
        let bindings: [Bind; 4] = [
            (&ranker.scores).into(),
            Bind::at(ranker.top_rows.raw(), top.first as u64 * 16),
            (&self.inputs.tables).into(),
            (&sparse.lists).into(),
        ];
        pass.dispatch(&ranker.pipelines[2], &params, &bindings, top_k::grid(rows * sets));
        self.rank_wishes(pass, layer);
        sparse.copy_trace(pass, layer);
    }
}
