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
use bytemuck::Pod;
use kvblock::BlockIdx;
use sparse_select::Selection;
use sparse_select::policy::num_blocks;

use super::Decoder;
use super::inputs::{Plan, View, ViewRows};
use crate::batch::{Phase, Slice, StepOutput};
use crate::sparse::{Attended, Place as Where, SparseOptions, Tally};
use crate::{DecoderConfig, KvPool, ModelError, Reach};
pub(super) use choose::Chosen;
use device::Ranker;
use estimate::Estimator;
use mirror::Mirror;
pub(super) use readback::Reads;

/// What a sparse decoder keeps from layer to layer.
#[derive(Debug)]
pub(super) struct Sparse {
    pub(super) options: SparseOptions,
    num_heads: usize,
    num_kv_heads: usize,
    views: Vec<View>,
    /// View of each layer.
    view_of: Vec<usize>,
    /// The layer before, where a layer takes the selection of one.
    source: Vec<Option<usize>>,
    /// Lists of the layer at hand, or of several where nothing has to be read back in between.
    lists: Buf<u32>,
    /// Lists of each layer; `None` where it is dense.
    placed: Vec<Option<Place>>,
    mirror: Mirror,
    /// What the last layer that the policy's own code selected for selected.
    last: Vec<Selection>,
    /// Kernels that rank blocks for decode rows, or estimate them for chunks; neither where the policy's own code selects.
    ranker: Option<Ranker>,
    estimator: Option<Estimator>,
    /// Lists of every layer, kept for the end of a step that is traced.
    traced: Option<Buf<u32>>,
    /// By slice; `None` where the policy does not act.
    attended: Vec<Option<Attended>>,
    timings: Vec<Timing>,
}

/// Where the lists of a layer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    first: usize,
    stride: u32,
}

/// Lists of one layer, as a kernel reads them.
pub(super) struct Lists {
    pub(super) bind: Bind,
    /// Entries from one list to the next: one more than the blocks of the longest.
    pub(super) stride: u32,
}

/// Lists are bound at offsets that are multiples of this many entries.
const ALIGN: usize = 64;

impl Sparse {
    pub(super) fn new(
        gpu: &Gpu,
        options: &SparseOptions,
        config: &DecoderConfig,
        (views, view_of): (&[View], &[usize]),
        kv: &KvPool,
        coop: bool,
    ) -> Result<Self, ModelError> {
        options.check(kv.shape().block_size)?;
        let num_layers = view_of.len();
        let limited = |layer: usize| views[view_of[layer]].reach != Reach::Full;
        let dense: Vec<bool> = (0..num_layers).map(|l| limited(l) || options.is_dense(l)).collect();
        let source = options.sources(&dense);
        let (mut ranker, mut estimator) = (None, None);
        if options.place == Where::Device && !options.measure {
            let selects: Vec<bool> = dense.iter().zip(&source).map(|(d, s)| !d && s.is_none()).collect();
            ranker = Ranker::new(gpu, &*options.policy, (config, kv), &selects, views.len())?;
            estimator = Estimator::new(gpu, &*options.policy, config, kv, coop)?;
        }
        Ok(Self {
            options: options.clone(),
            num_heads: config.num_heads as usize,
            num_kv_heads: kv.shape().num_kv_heads as usize,
            views: views.to_vec(),
            view_of: view_of.to_vec(),
            source,
            ranker,
            estimator,
            traced: None,
            lists: gpu.buffer("lists", ALIGN)?,
            placed: vec![None; num_layers],
            mirror: Mirror::new(*kv.shape(), num_layers),
            last: Vec::new(),
            attended: Vec::new(),
            timings: Vec::new(),
        })
    }

    /// Blocks that are about to be written.
    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32> + Clone) {
        self.mirror.forget(blocks.clone());
        if let Some(ranker) = &mut self.ranker {
            ranker.forget(blocks);
        }
    }

    /// Begins a step; where blocks live on the host, `spare_pages` pages of each KV head have room on the device. Whatever
    /// needs no query is laid out here, for all layers, so that nothing stops in between.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        (config, kv): (&DecoderConfig, &KvPool),
        plan: &Plan,
        slices: &[Slice<'_>],
        spare_pages: u32,
    ) -> Result<(), ModelError> {
        let acts = |slice: &Slice<'_>| self.options.acts_on(slice.phase).then(Attended::default);
        self.attended = slices.iter().map(acts).collect();
        self.placed.fill(None);
        self.traced = None;
        for layer in 0..self.placed.len() {
            let view = self.view_of[layer];
            if self.views[view].reach == Reach::Full {
                self.count_unchosen(&plan.views[view], slices, layer);
            }
        }
        if self.ranker.is_some() {
            return self.begin_on_device(gpu, (config, kv), plan, slices, spare_pages);
        }
        if self.estimator.is_some() {
            return self.begin_estimate(gpu, plan);
        }
        let block_size = self.mirror.block_size();
        for view in &plan.views {
            self.mirror.forget(plan.written_blocks(view, block_size));
        }
        if self.reads_tensors() { Ok(()) } else { self.place_by_position(gpu, plan) }
    }

    /// Selects for all layers by position.
    fn place_by_position(&mut self, gpu: &Gpu, plan: &Plan) -> Result<(), ModelError> {
        let mut words: Vec<u32> = Vec::new();
        for layer in 0..self.placed.len() {
            let plan = &plan.views[self.view_of[layer]];
            if !self.is_sparse_in(plan, layer) {
                continue;
            }
            let select = |chosen: &Chosen| self.options.select(chosen, layer, None, self.mirror.digests());
            let selections: Vec<Selection> = plan.chosen.iter().map(select).collect::<Result<_, _>>()?;
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
        !plan.chosen.is_empty() && !self.is_dense(layer)
    }

    /// Whether queries and keys of a layer have to be asked for.
    fn asks_in(&self, plan: &ViewRows, layer: usize) -> bool {
        let on_device = self.ranker.is_some() || self.estimator.is_some();
        !on_device && self.reads_tensors() && self.is_sparse_in(plan, layer)
    }

    /// Whether the host's part asks for queries and keys.
    fn reads_tensors(&self) -> bool {
        self.options.policy.support().query || self.options.measure
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
        fit(gpu, &mut self.lists, words.len())?;
        gpu.write(&self.lists, 0, words);
        Ok(())
    }

    /// The lists of a layer; `None` where it is dense.
    pub(super) fn lists(&self, layer: usize) -> Option<Lists> {
        let Place { first, stride } = self.placed[layer]?;
        Some(Lists { bind: Bind::at(self.lists.raw(), first as u64 * 4), stride })
    }

    /// Whether a layer attends to everything whatever the step.
    pub(super) fn is_dense(&self, layer: usize) -> bool {
        self.options.is_dense(layer)
    }

    /// Lists of all groups and KV heads, and the entries from one to the next.
    fn lay_out(&self, plan: &ViewRows, selections: &[Selection]) -> (Vec<u32>, u32) {
        let mut lists = Vec::new();
        for (chosen, selection) in plan.chosen.iter().zip(selections) {
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
        for (i, (chosen, selection)) in plan.chosen.iter().zip(selections).enumerate() {
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
            let chosen = plan.chosen.iter().filter(|chosen| sparse && chosen.slice == index);
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

impl Decoder {
    /// Where a sparse policy selects; `None` without one. On the host means readbacks in every layer: positions need none.
    #[must_use]
    pub fn selects_on(&self) -> Option<Where> {
        let sparse = self.sparse.as_ref()?;
        let asks = sparse.reads_tensors() && sparse.ranker.is_none() && sparse.estimator.is_none();
        Some(if asks { Where::Host } else { Where::Device })
    }

    /// Whether steps hand back the selections of the sparse policy from now on; see [`SparseOptions::trace`].
    pub fn trace_selections(&mut self, on: bool) {
        if let Some(sparse) = &mut self.sparse {
            sparse.options.trace = on;
        }
    }
}

/// Makes room for `len` elements.
pub(super) fn fit<T: Pod>(gpu: &Gpu, buf: &mut Buf<T>, len: usize) -> Result<(), ModelError> {
    if buf.len() < len {
        *buf = gpu.buffer("selection", len.next_power_of_two())?;
        gpu.forget_bind_groups();
    }
    Ok(())
}

/// A view whose rows blocks are selected for: all layers of full attention choose the same rows, whichever group they are in.
fn choosing(plan: &Plan) -> Option<&ViewRows> {
    plan.views.iter().find(|view| !view.chosen.is_empty())
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}
