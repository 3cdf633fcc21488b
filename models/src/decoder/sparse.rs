//! Rows that attend to a selection of blocks: the lists that the attention kernels read, layer by layer.
//!
//! A list is `count, block, block, ...`, ascending, one for each KV head of a decode row or query block.

mod bound;
mod choose;
mod device;
mod estimate;
mod host;
mod mass;
mod measure;
mod mirror;
mod rank;
mod readback;
mod wish;

use attn_kernels::gpu::{Bind, Buf, Gpu, Timing};
use attn_kernels::kernel::attention::{Attention as Kind, Pages};
use kvblock::BlockIdx;
use sparse_select::Selection;
use sparse_select::digest::DigestFormat;
use sparse_select::policy::num_blocks;

use super::attention::{Forms, HeadKernels, LoadContext};
use super::buffers::GrowBuf;
use super::inputs::{Plan, ViewRows};
use super::views::Views;
use crate::batch::{Phase, Slice, StepOutput};
use crate::sparse::{Attended, Place as Where, SparseOptions, Tally};
use crate::{DecoderConfig, KvPool, ModelError, Reach};
pub(super) use choose::SelectingRows;
use device::Ranker;
use estimate::Estimator;
use host::OnHost;
pub(super) use readback::Reads;

/// State that a sparse decoder keeps from layer to layer.
#[derive(Debug)]
pub(super) struct Sparse {
    pub(super) options: SparseOptions,
    num_heads: usize,
    num_kv_heads: usize,
    views: Views,
    /// Attention to listed blocks.
    pub(super) kernels: HeadKernels,
    digests: DigestFormat,
    /// The layer before, where a layer takes the selection of one.
    source: Vec<Option<usize>>,
    /// Lists of the layer at hand, or of several where nothing has to be read back in between.
    lists: GrowBuf<u32>,
    /// Lists of each layer; `None` where it is dense.
    placed: Vec<Option<Place>>,
    selector: Selector,
    /// Lists of every layer, kept for the end of a step that is traced.
    traced: Option<Buf<u32>>,
    /// Blocks that each slice attended; `None` where the policy does not act.
    attended: Vec<Option<Attended>>,
    timings: Vec<Timing>,
}

/// Selector of blocks.
#[derive(Debug)]
enum Selector {
    /// The policy's own code, by positions alone: for all layers at the begin of a step.
    ByPosition,
    /// The policy's own code, by queries and keys: these are read back in every layer.
    OnHost(OnHost),
    /// Kernels that rank blocks for decode rows.
    Ranked(Box<Ranker>),
    /// Kernels that estimate blocks for chunks of prompts.
    Estimated(Box<Estimator>),
}

impl Selector {
    /// The selector of a policy; `selects` names the layers that select themselves.
    fn new(load: &LoadContext<'_>, options: &SparseOptions, selects: &[bool]) -> Result<Self, ModelError> {
        let policy = &*options.policy;
        if options.place == Where::Device && !options.measure {
            if let Some(ranker) = Ranker::new(load, policy, selects)? {
                return Ok(Self::Ranked(Box::new(ranker)));
            }
            if let Some(estimator) = Estimator::new(load, policy)? {
                return Ok(Self::Estimated(Box::new(estimator)));
            }
        }
        Ok(match policy.support().query || options.measure {
            true => Self::OnHost(OnHost::new(*load.kv.shape(), selects.len())),
            false => Self::ByPosition,
        })
    }
}

/// Position of the lists of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    first: usize,
    stride: u32,
}

/// Lists of one layer, as a kernel reads them.
pub(super) struct Lists {
    pub(super) bind: Bind<u32>,
    /// Entries from one list to the next: one more than the blocks of the longest.
    pub(super) stride: u32,
}

/// Blocks that are attended in a layer.
pub(super) struct Selected<'a> {
    sparse: &'a Sparse,
    pub(super) kernels: &'a HeadKernels,
    pub(super) lists: Lists,
    /// Tokens of the longest list.
    pub(super) tokens: u32,
}

/// Inputs of the selections of a step.
pub(super) struct Begin<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) config: &'a DecoderConfig,
    pub(super) kv: &'a KvPool,
    pub(super) plan: &'a Plan,
    pub(super) slices: &'a [Slice<'a>],
    /// Pages of each KV head that have room on the device, where blocks live on the host.
    pub(super) spare_pages: u32,
}

/// Lists are bound at offsets that are multiples of this many entries.
const ALIGN: usize = 64;

impl Sparse {
    pub(super) fn new(
        load: &LoadContext<'_>,
        options: &SparseOptions,
        forms: Forms,
    ) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, kv, views, .. } = *load;
        let shape = kv.shape();
        options.check(shape.block_size)?;
        let num_layers = views.of_layers.len();
        let limited = |layer: usize| views.of_layer(layer).reach != Reach::Full;
        let dense: Vec<bool> = (0..num_layers).map(|l| limited(l) || options.is_dense(l)).collect();
        let source = options.sources(&dense);
        let selects: Vec<bool> = dense.iter().zip(&source).map(|(d, s)| !d && s.is_none()).collect();
        let pages = if kv.page_slots() > 0 { Pages::OfHeads } else { Pages::Shared };
        let kind = Kind { pages, sinks: config.sinks, ..Kind::blocks(options.policy.block_size().get()) };
        Ok(Self {
            selector: Selector::new(load, options, &selects)?,
            options: options.clone(),
            num_heads: config.num_heads as usize,
            num_kv_heads: shape.num_kv_heads as usize,
            views: views.clone(),
            kernels: HeadKernels::new(gpu, shape, config.num_heads, forms, &kind)?,
            digests: mirror::digests(shape),
            source,
            traced: None,
            lists: GrowBuf::new(gpu, "lists", ALIGN)?,
            placed: vec![None; num_layers],
            attended: Vec::new(),
            timings: Vec::new(),
        })
    }

    /// Blocks that are about to be written.
    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32>) {
        match &mut self.selector {
            Selector::OnHost(host) => host.mirror.forget(blocks),
            Selector::Ranked(ranker) => ranker.forget(blocks),
            Selector::ByPosition | Selector::Estimated(_) => {}
        }
    }

    /// Begins a step. Whatever needs no query is laid out here, for all layers, so that nothing stops in between.
    pub(super) fn begin(&mut self, step: &Begin<'_>) -> Result<(), ModelError> {
        let Begin { gpu, plan, slices, .. } = *step;
        let acts = |slice: &Slice<'_>| self.options.acts_on(slice.phase).then(Attended::default);
        self.attended = slices.iter().map(acts).collect();
        self.placed.fill(None);
        self.traced = None;
        for layer in 0..self.placed.len() {
            if self.views.of_layer(layer).reach == Reach::Full {
                self.count_unchosen(&plan.views[self.views.of_layers[layer]], slices, layer);
            }
        }
        match &mut self.selector {
            Selector::Ranked(_) => self.begin_ranking(step),
            Selector::Estimated(_) => self.begin_estimate(gpu, plan),
            Selector::ByPosition => self.place_by_position(gpu, plan),
            Selector::OnHost(host) => {
                let block_size = step.kv.shape().block_size;
                for view in &plan.views {
                    host.mirror.forget(plan.written_blocks(view, block_size));
                }
                Ok(())
            }
        }
    }

    /// Selects for all layers by position.
    fn place_by_position(&mut self, gpu: &Gpu, plan: &Plan) -> Result<(), ModelError> {
        let mut words: Vec<u32> = Vec::new();
        for layer in 0..self.placed.len() {
            let plan = &plan.views[self.views.of_layers[layer]];
            if !self.is_sparse_in(plan, layer) {
                continue;
            }
            let select = |chosen: &SelectingRows| self.options.select(chosen, layer, None, self.digests);
            let selections: Vec<Selection> = plan.selecting.iter().map(select).collect::<Result<_, _>>()?;
            let (lists, stride) = self.lay_out(plan, &selections);
            self.count(plan, layer, selections, None);
            // Layers mostly agree.
            let last = self.placed[..layer].iter().rev().flatten().next();
            let same = last.filter(|last| last.stride == stride && words[last.first..].starts_with(&lists));
            self.placed[layer] = same.copied().or_else(|| {
                let first = words.len();
                words.extend(lists);
                Some(Place { first, stride })
            });
        }
        self.upload(gpu, &words)
    }

    /// Whether blocks are selected in a layer.
    pub(super) fn is_sparse_in(&self, plan: &ViewRows, layer: usize) -> bool {
        !plan.selecting.is_empty() && !self.is_dense(layer)
    }

    /// Takes the lists of `layer` that were selected on the host.
    fn place(
        &mut self,
        gpu: &Gpu,
        plan: &ViewRows,
        layer: usize,
        selections: &[Selection],
    ) -> Result<(), ModelError> {
        let (words, stride) = self.lay_out(plan, selections);
        self.placed[layer] = Some(Place { first: 0, stride });
        self.upload(gpu, &words)
    }

    fn upload(&mut self, gpu: &Gpu, words: &[u32]) -> Result<(), ModelError> {
        self.lists.write(gpu, words)
    }

    /// Returns the blocks that are attended in a layer; `None` where it is dense.
    pub(super) fn selected(&self, layer: usize) -> Option<Selected<'_>> {
        let Place { first, stride } = self.placed[layer]?;
        let lists = Lists { bind: self.lists.bind_from(first), stride };
        let tokens = (stride - 1) * self.options.policy.block_size().get();
        Some(Selected { sparse: self, kernels: &self.kernels, lists, tokens })
    }

    /// Whether every layer selects in some step.
    pub(super) fn selects_everywhere(&self) -> bool {
        !(0..self.placed.len()).any(|layer| self.is_dense(layer))
    }

    /// Whether a layer attends to everything whatever the step.
    fn is_dense(&self, layer: usize) -> bool {
        self.options.is_dense(layer)
    }

    /// Returns the place where the policy selects. On the host means readbacks in every layer: positions need none.
    pub(super) fn selects_on(&self) -> Where {
        if matches!(self.selector, Selector::OnHost(_)) { Where::Host } else { Where::Device }
    }

    /// Lists of all groups and KV heads, and the entries from one to the next.
    fn lay_out(&self, plan: &ViewRows, selections: &[Selection]) -> (Vec<u32>, u32) {
        let mut lists = Vec::new();
        for (chosen, selection) in plan.selecting.iter().zip(selections) {
            for list in 0..chosen.lists as usize {
                let heads = 0..self.num_kv_heads;
                lists.extend(heads.map(|head| self.options.blocks(chosen, selection, head, list)));
            }
        }
        let stride = 1 + lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut words = Vec::with_capacity((lists.len() * stride).next_multiple_of(ALIGN));
        for list in lists {
            let end = words.len() + stride;
            words.push(u32::try_from(list.len()).expect("blocks fit in 32 bits"));
            words.extend(list);
            words.resize(end, 0);
        }
        words.resize(words.len().next_multiple_of(ALIGN), 0);
        (words, u32::try_from(stride).expect("blocks fit in 32 bits"))
    }

    /// Counts what the selections of a layer attend.
    fn count(&mut self, plan: &ViewRows, layer: usize, selections: Vec<Selection>, masses: Option<&[f64]>) {
        let remembers = !self.options.policy.support().query;
        for (i, (chosen, selection)) in plan.selecting.iter().zip(selections).enumerate() {
            let mut blocks = Vec::new();
            for list in 0..chosen.lists as usize {
                for head in 0..self.num_kv_heads {
                    blocks.extend(self.options.blocks(chosen, &selection, head, list));
                }
            }
            let block = self.options.policy.block_size().get();
            let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
            let visible = chosen.visible(block) * self.num_kv_heads as u64;
            attended.count(layer, Tally { blocks: blocks.len() as u64, visible });
            attended.lower_mass(masses.map(|masses| masses[i]));
            if remembers {
                blocks.extend(attended.accessed.iter().map(|b| b.get()));
                blocks.sort_unstable();
                blocks.dedup();
                attended.accessed = blocks.into_iter().map(BlockIdx::new).collect();
            }
            if self.options.trace {
                attended.selections.push((u32::try_from(layer).expect("layers fit in 32 bits"), selection));
            }
        }
    }

    /// Counts the rows that attend to everything in a layer, of slices that the policy acts on.
    fn count_unchosen(&mut self, plan: &ViewRows, slices: &[Slice<'_>], layer: usize) {
        let block = self.options.policy.block_size();
        let sparse = self.is_sparse_in(plan, layer);
        for (index, (slice, attended)) in slices.iter().zip(&mut self.attended).enumerate() {
            let Some(attended) = attended else { continue };
            let chosen = plan.selecting.iter().filter(|chosen| sparse && chosen.slice == index);
            let rows = slice.tokens.len() - chosen.map(|chosen| chosen.rows).sum::<usize>();
            let end = slice.first as usize + rows;
            let lists: u64 = match slice.phase {
                Phase::Decode => {
                    (slice.first as usize..end).map(|at| u64::from(num_blocks(at + 1, block))).sum()
                }
                Phase::Prefill if rows > 0 => u64::from(num_blocks(end, block)),
                Phase::Prefill => 0,
            };
            let all = lists * self.num_kv_heads as u64;
            attended.count(layer, Tally { blocks: all, visible: all });
        }
    }

    /// Ends a step: what each slice attended, and the times of what was submitted on the way.
    pub(super) fn finish(&mut self, output: &mut StepOutput) {
        output.attended = std::mem::take(&mut self.attended);
        output.timings.append(&mut self.timings);
    }
}

/// A view whose rows blocks are selected for: all layers of full attention choose the same rows, whichever group they are in.
fn choosing(plan: &Plan) -> Option<&ViewRows> {
    plan.views.iter().find(|view| !view.selecting.is_empty())
}
