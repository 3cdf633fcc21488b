//! Policies that rank by digests of pages, in kernels: nothing of a layer is read back.
//!
//! Digests lie beside the cache, one of every page and layer that selects. A step digests the pages that it writes, scores
//! the blocks of its decode rows from digests alone, and takes the best.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline, Read};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::mass_bound::{self, MassBoundParams};
use attn_kernels::kernel::paged_decode::PagedDecodeParams;
use attn_kernels::kernel::top_k::{self, Output, TopKParams};
use bytemuck::Zeroable;
use rustc_hash::FxHashSet;
use sparse_select::policy::num_blocks;
use sparse_select::{DigestKind, Policy, Ranking, Selection};

use super::{Chosen, Lists, Place, Sparse, fit};
use crate::batch::Slice;
use crate::decoder::Decoder;
use crate::decoder::inputs::{Plan, View, ViewRows};
use crate::{DecoderConfig, KvPool, ModelError, Reach};

/// Kernels and buffers of a ranking.
#[derive(Debug)]
pub(super) struct Ranker {
    ranking: Ranking,
    pipelines: [Arc<Pipeline>; 3],
    /// Digests of each layer, `None` where it is dense.
    pools: Vec<Option<Buf<f32>>>,
    /// Pages whose digests are out of date, because something other than a step wrote them.
    stale: FxHashSet<u32>,
    /// `(page, tokens)` to digest, by view.
    touched: Vec<Touched>,
    scores: Buf<f32>,
    /// Of the step: the same in all its layers.
    score_params: BlockScoreParams,
    /// `(first score, scores, blocks to take, 0)` of every row and set, and where those of a layer begin.
    top_rows: Buf<[u32; 4]>,
    tops: Vec<Option<Top>>,
    /// What bounds the mass that is kept, where digests do: the kernel, and the least bound of each row and query head.
    bound: Option<(Arc<Pipeline>, Buf<f32>)>,
    /// Lists of every layer, kept for the end of the step where they are traced.
    traced: Option<Buf<u32>>,
}

/// Pages that a step digests in the layers of one view.
#[derive(Debug)]
struct Touched {
    count: u32,
    pages: Buf<[u32; 2]>,
}

/// What `top_k` takes in a layer.
#[derive(Clone, Debug)]
struct Top {
    /// First of its rows.
    first: usize,
    /// Blocks of each chosen row.
    budgets: Vec<u32>,
}

/// Rows are bound at offsets that are multiples of this many.
const ROWS_ALIGN: usize = 16;

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
            pipelines: [
                gpu.pipeline(&block_digest::variant(shape, digest))?,
                gpu.pipeline(&block_score::variant(shape, config.num_heads, digest, block))?,
                gpu.pipeline(&top_k::variant(Output::List, gpu.level()))?,
            ],
            pools: (0..config.num_layers).map(pool).collect::<Result<_, _>>()?,
            stale: FxHashSet::default(),
            touched: views.iter().map(touched).collect::<Result<_, ModelError>>()?,
            scores: gpu.buffer("scores", 1)?,
            score_params: BlockScoreParams::zeroed(),
            top_rows: gpu.buffer("top_rows", 1)?,
            tops: vec![None; config.num_layers as usize],
            bound: match policy.certifies() {
                true => Some((gpu.pipeline(&mass_bound::variant(shape, block))?, gpu.buffer("masses", 1)?)),
                false => None,
            },
            traced: None,
        }))
    }

    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32>) {
        self.stale.extend(blocks);
    }

    /// Lays out what the step digests.
    pub(super) fn touch(
        &mut self,
        gpu: &Gpu,
        shape: &KvShape,
        num_pages: u32,
        views: &[View],
        slices: &[Slice<'_>],
    ) -> Result<(), ModelError> {
        for (view, touched) in
            views.iter().zip(&mut self.touched).filter(|(view, _)| view.reach == Reach::Full)
        {
            let mut pages: Vec<[u32; 2]> = Vec::new();
            for slice in slices {
                let (first, end) = (slice.first, slice.first + u32_of(slice.tokens.len()));
                for index in first / shape.block_size..end.div_ceil(shape.block_size) {
                    let page = slice.tables[view.group][index as usize].get();
                    pages.push([page, shape.block_size.min(end - index * shape.block_size)]);
                }
            }
            // Slices of one sequence may meet in a page: the later one has seen more of it.
            pages.sort_unstable_by_key(|[page, tokens]| (*page, std::cmp::Reverse(*tokens)));
            pages.dedup_by_key(|[page, _]| *page);
            let written: FxHashSet<u32> = pages.iter().map(|[page, _]| *page).collect();
            pages.extend(
                self.stale
                    .iter()
                    .filter(|page| !written.contains(page))
                    .map(|page| [*page, shape.block_size]),
            );
            block_digest::check(shape, &pages, num_pages)?;
            fit(gpu, &mut touched.pages, pages.len())?;
            gpu.write(&touched.pages, 0, &pages);
            touched.count = u32_of(pages.len());
        }
        self.stale.clear();
        Ok(())
    }

    /// Lays out how many blocks each row takes in each layer; returns the entries from list to list.
    pub(super) fn budget(
        &mut self,
        gpu: &Gpu,
        policy: &dyn Policy,
        config: &DecoderConfig,
        layers: impl Iterator<Item = (usize, bool)>,
        chosen: &[Chosen],
    ) -> Result<u32, ModelError> {
        let params = self.params(config, policy, chosen);
        self.score_params = params;
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
    ) -> Result<(), ModelError> {
        let sparse_in: Vec<bool> = (0..self.placed.len())
            .map(|layer| self.is_sparse_in(&plan.views[self.view_of[layer]], layer))
            .collect();
        let ranker = self.ranker.as_mut().expect("kernels select");
        ranker.touch(gpu, kv.shape(), kv.num_blocks(), &self.views, slices)?;
        // All layers of full attention choose the same rows, whichever group they are in.
        let Some(view) = choosing(plan) else { return Ok(()) };
        let layers = sparse_in.iter().copied().enumerate();
        let stride = ranker.budget(gpu, &*self.options.policy, config, layers, &view.chosen)?;
        if let Some((_, masses)) = &mut ranker.bound {
            let ones = vec![1.0; view.chosen.len() * config.num_heads as usize];
            fit(gpu, masses, ones.len())?;
            gpu.write(masses, 0, &ones);
        }
        let words = view.chosen.len() * self.num_kv_heads * stride as usize;
        if self.options.trace {
            ranker.traced = Some(gpu.buffer("traced", words * self.placed.len())?);
        }
        for (layer, _) in sparse_in.iter().enumerate().filter(|(_, sparse)| **sparse) {
            self.placed[layer] = Some(Place { first: 0, stride });
            self.count_budgets(view, layer);
        }
        fit(gpu, &mut self.lists, words)
    }

    /// Counts what kernels will take: exactly their budgets.
    fn count_budgets(&mut self, plan: &ViewRows, layer: usize) {
        let budgets =
            self.ranker.as_ref().and_then(|ranker| ranker.tops[layer].as_ref()).map(|top| &top.budgets);
        let block = self.options.policy.block_size().get();
        for (chosen, budget) in plan.chosen.iter().zip(budgets.into_iter().flatten()) {
            let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
            attended.blocks += u64::from(*budget) * self.num_kv_heads as u64;
            attended.visible += chosen.visible(block) * self.num_kv_heads as u64;
        }
    }

    /// Records the readback of the bounds of a step.
    pub(in crate::decoder) fn read_masses(&self, pass: &mut Pass, plan: &Plan) -> Option<Read<f32>> {
        let (_, masses) = self.ranker.as_ref()?.bound.as_ref()?;
        let chosen = choosing(plan)?.chosen.len();
        Some(pass.read(masses, 0..chosen * self.num_heads))
    }

    /// Takes the bounds of a step.
    pub(in crate::decoder) fn take_masses(&mut self, plan: &Plan, masses: &[f32]) {
        let chosen = choosing(plan).into_iter().flat_map(|view| &view.chosen);
        for (chosen, masses) in chosen.zip(masses.chunks_exact(self.num_heads)) {
            let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
            attended.lower_mass(masses.iter().map(|mass| f64::from(*mass)));
        }
    }

    /// Records the readback of all lists of a step that is traced.
    pub(in crate::decoder) fn read_trace(&self, pass: &mut Pass) -> Option<Read<u32>> {
        let traced = self.ranker.as_ref()?.traced.as_ref()?;
        Some(pass.read(traced, 0..traced.len()))
    }

    /// Turns the lists of a step into selections.
    pub(in crate::decoder) fn take_trace(&mut self, plan: &Plan, words: &[u32]) {
        let Some(view) = choosing(plan) else { return };
        let block = self.options.policy.block_size();
        let per_layer = words.len() / self.placed.len();
        for (layer, lists) in words.chunks_exact(per_layer).enumerate() {
            let Some(Place { stride, .. }) = self.placed[layer] else { continue };
            let mut lists = lists.chunks_exact(stride as usize);
            for chosen in &view.chosen {
                let mut selection = Selection::new();
                selection.begin(num_blocks(chosen.kv_len(), block), self.num_kv_heads, 1);
                for list in lists.by_ref().take(self.num_kv_heads) {
                    selection.push_row(list[1..=list[0] as usize].iter().copied());
                }
                let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
                attended.selections.push((u32_of(layer), selection));
            }
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
        let params =
            BlockDigestParams { num_kv_heads: shape.num_kv_heads, touched: touched.count, pad0: 0, pad1: 0 };
        let (k, _) = self.kv.layer(layer);
        let bindings = [(&touched.pages).into(), k.into(), pool.into()];
        pass.dispatch(&ranker.pipelines[0], &params, &bindings, block_digest::grid(shape, touched.count));

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
        pass.dispatch(&ranker.pipelines[1], &params, &bindings, block_score::grid(&params, rows));

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
        if let Some(traced) = &ranker.traced {
            let words = traced.len() / self.layers.len();
            pass.copy(&sparse.lists, 0..words, traced, layer * words);
        }
    }

    /// Records the bound of the mass that listed rows keep, behind the attention that left their stats.
    pub(in crate::decoder) fn bound_mass(
        &self,
        pass: &mut Pass,
        layer: usize,
        (rows, lists): (Bind, &Lists),
        params: &PagedDecodeParams,
        count: u32,
    ) {
        let Some(ranker) = self.sparse.as_ref().and_then(|sparse| sparse.ranker.as_ref()) else { return };
        let (Some((kernel, masses)), Some(pool)) = (&ranker.bound, &ranker.pools[layer]) else { return };
        let bound = MassBoundParams {
            num_heads: params.num_heads,
            num_kv_heads: params.num_kv_heads,
            q_stride: params.q_stride,
            list_stride: params.list_stride,
            max_partitions: params.max_partitions,
            scale: params.scale,
            first_list: params.first_list,
            pad0: 0,
        };
        let bindings: [Bind; 7] = [
            (&self.activations.q).into(),
            pool.into(),
            (&self.inputs.tables).into(),
            rows,
            lists.bind.clone(),
            (&self.activations.stats).into(),
            masses.into(),
        ];
        pass.dispatch(kernel, &bound, &bindings, mass_bound::grid(params.num_heads, count));
    }
}

/// A view whose rows blocks are selected for.
fn choosing(plan: &Plan) -> Option<&ViewRows> {
    plan.views.iter().find(|view| !view.chosen.is_empty())
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}
