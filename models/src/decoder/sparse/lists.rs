//! Lists of selected blocks on the device, and their readback if they are traced.

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, PassResults, Read};
use sparse_select::Selection;
use sparse_select::policy::num_blocks;

use super::account::Account;
use super::{Lists, Rules, SelectingRows, SelectionReads, SelectionStep};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::OfLayers;

/// Lists made on the host.
pub(super) struct HostLists {
    pub(super) words: Vec<u32>,
    /// Number of entries from one list to the next.
    pub(super) stride: u32,
    /// Number of blocks of the longest list, rounded up.
    pub(super) blocks: u32,
}

/// Alignment of lists for a binding, in entries.
pub(super) const ALIGN: usize = 64;

/// Granularity of the distance between lists: growing lists keep their positions for a while, so that steps have the same
/// commands.
const STEP: u32 = 32;

/// Returns the number of entries from one list to the next, for lists of at most `blocks` blocks.
pub(super) fn stride(blocks: u32) -> u32 {
    (1 + blocks).next_multiple_of(STEP)
}

/// Granularity of the longest list's length, in tokens.
const GROWTH: u32 = 64;

/// Rounds the length of the longest list, given in `blocks` blocks of `block` tokens, up to whole multiples of
/// [`GROWTH`] tokens, so that consecutive steps have the same commands.
pub(super) fn longest(blocks: u32, block: u32) -> u32 {
    blocks.next_multiple_of((GROWTH / block).max(1))
}

/// Returns the stride of rows of `len` scores, rounded up for rows that grow from step to step.
pub(super) fn score_stride(len: u32) -> u32 {
    len.next_multiple_of(64)
}

/// Returns the number of blocks that are prefetched beyond a selection of up to `max` blocks, if the policy does not
/// state it.
pub(super) fn default_blocks(max: u32) -> u32 {
    max.div_ceil(4)
}

/// Alignment of rows for a binding.
pub(super) const ROWS_ALIGN: usize = 16;

impl SelectionStep<'_> {
    /// Rounds up `blocks`, the length of the longest list of `rows` decode rows, so that commands stay the same while
    /// lists grow. Returns `blocks` itself if the pages of the rounded lists and of prefetched blocks do not fit on the
    /// device.
    pub(super) fn longest(&self, rules: &Rules, rows: usize, blocks: u32) -> u32 {
        let longest = longest(blocks, rules.block());
        let pages = (longest + default_blocks(longest)) * (rules.block() / self.kv.shape().block_size);
        if self.kv.page_slots() == 0 || pages * u32_of(rows) <= self.spare_pages { longest } else { blocks }
    }
}

/// Lists that kernels make: layers use the same lists in turn, or all layers have theirs at the same time.
#[derive(Debug)]
pub(super) struct DeviceLists {
    bufs: OfLayers<u32>,
    /// The layer whose lists each layer reads.
    sources: Vec<usize>,
    /// Number of entries from one list to the next.
    pub(super) stride: u32,
    /// Number of blocks of the longest list.
    blocks: u32,
    /// Whether each layer has lists in this step.
    pub(super) layers: Vec<bool>,
    /// Lists of every layer, stored until the end of a step that is traced.
    traced: Option<Buf<u32>>,
}

impl DeviceLists {
    /// Lists that layers use in turn.
    pub(super) fn new(gpu: &Gpu, num_layers: usize) -> Result<Self, ModelError> {
        Self::of_layers(gpu, num_layers, false)
    }

    /// Creates the lists of `num_layers` layers; `at_once` says whether the lists of all layers exist at the same time.
    pub(super) fn of_layers(gpu: &Gpu, num_layers: usize, at_once: bool) -> Result<Self, ModelError> {
        Ok(Self {
            bufs: OfLayers::new(gpu, "lists", ALIGN, at_once.then_some(num_layers))?,
            sources: (0..num_layers).collect(),
            stride: 0,
            blocks: 0,
            layers: vec![false; num_layers],
            traced: None,
        })
    }

    /// Forgets the lists of the last step.
    pub(super) fn clear(&mut self) {
        self.layers.fill(false);
        self.traced = None;
    }

    /// Allocates the lists of a step, of at most `blocks` blocks each, in every layer that selects.
    pub(super) fn fit(
        &mut self,
        gpu: &Gpu,
        rules: &Rules,
        batch: &Batch,
        blocks: u32,
    ) -> Result<(), ModelError> {
        let Some(last) = rules.selecting_rows(batch).last() else { return Ok(()) };
        (self.stride, self.blocks) = (stride(blocks), blocks);
        for layer in 0..self.layers.len() {
            self.layers[layer] = rules.selects_in(batch, layer);
            self.sources[layer] = rules.source[layer].unwrap_or(layer);
        }
        // Lists of other rows may come before.
        let groups = (last.list + last.lists) as usize;
        let words = groups * rules.num_kv_heads * self.stride as usize;
        self.bufs.fit(gpu, words)?;
        if rules.options.trace {
            self.traced = Some(gpu.buffer("traced", words * self.layers.len())?);
        }
        Ok(())
    }

    /// Returns the numbers that the step's commands depend on; `None` in a step that is traced.
    pub(super) fn shape(&self) -> Option<Vec<usize>> {
        let layers = self.layers.iter().map(|lists| usize::from(*lists));
        self.traced.is_none().then(|| {
            layers.chain([self.stride as usize, self.blocks as usize, self.bufs.of(0).len()]).collect()
        })
    }

    /// Returns the lists of a layer, if it has any.
    pub(super) fn of(&self, layer: usize) -> Option<Lists> {
        self.layers[layer].then(|| Lists {
            bind: self.bind_of(layer),
            stride: self.stride,
            blocks: self.blocks,
        })
    }

    /// Binds the lists of the current layer, if layers use them in turn.
    pub(super) fn bind(&self) -> Bind<u32> {
        self.bufs.of(0).bind()
    }

    /// Binds the lists of a layer, even if it has none in this step.
    pub(super) fn bind_of(&self, layer: usize) -> Bind<u32> {
        self.buf(layer).bind()
    }

    fn buf(&self, layer: usize) -> &Buf<u32> {
        self.bufs.of(self.sources[layer])
    }

    /// Records a copy of a layer's lists for the end of the step, if they are traced.
    pub(super) fn keep(&self, pass: &mut Pass, layer: usize) {
        if let Some(traced) = &self.traced {
            let words = traced.len() / self.layers.len();
            pass.copy(self.buf(layer), 0..words, traced, layer * words);
        }
    }

    /// Records the readback of traced lists.
    pub(super) fn read(&self, pass: &mut Pass) -> Option<Read<u32>> {
        self.traced.as_ref().map(|traced| pass.read(traced, 0..traced.len()))
    }

    /// Adds the numbers of blocks that the device counted, `counts` `[layers, selecting rows]`, to the account.
    pub(super) fn count(
        &self,
        rules: &Rules,
        selecting: &[SelectingRows],
        counts: &[u32],
        account: &mut Account,
    ) {
        let of_layers = counts.chunks_exact(selecting.len()).enumerate();
        for (layer, counts) in of_layers.filter(|(layer, _)| self.layers[*layer]) {
            for (selecting, count) in selecting.iter().zip(counts) {
                account.count(rules, selecting, layer, u64::from(*count));
            }
        }
    }

    /// Adds counts and traced lists of a step to the account.
    pub(super) fn take_reads(
        &self,
        rules: &Rules,
        batch: &Batch,
        reads: SelectionReads,
        done: &PassResults,
        account: &mut Account,
    ) {
        let selecting = rules.selecting_rows(batch);
        if let Some(read) = reads.counts {
            self.count(rules, selecting, &done.get(read), account);
        }
        if let Some(read) = reads.traced {
            self.take(rules, batch, &done.get(read), account);
        }
    }

    /// Turns traced lists into selections.
    pub(super) fn take(&self, rules: &Rules, batch: &Batch, words: &[u32], account: &mut Account) {
        let per_layer = words.len() / self.layers.len();
        for (layer, lists) in words.chunks_exact(per_layer).enumerate().filter(|(l, _)| self.layers[*l]) {
            let lists: Vec<&[u32]> =
                lists.chunks_exact(self.stride as usize).map(|list| &list[1..=list[0] as usize]).collect();
            for selecting in rules.selecting_rows(batch) {
                account.keep(selecting, layer, rules.selection(selecting, &lists));
            }
        }
    }
}

impl Rules {
    /// Makes the lists of a layer for all list groups and KV heads. They follow the lists of rows that another selector
    /// serves. `longest` rounds the length of the longest list.
    pub(super) fn lay_out(
        &self,
        rows: &[SelectingRows],
        selections: &[Selection],
        longest: impl Fn(u32) -> u32,
    ) -> HostLists {
        let before = rows.first().map_or(0, |first| first.list as usize * self.num_kv_heads);
        let mut lists = vec![Vec::new(); before];
        for (selecting, selection) in rows.iter().zip(selections) {
            for list in 0..selecting.lists as usize {
                let heads = 0..self.num_kv_heads;
                lists.extend(heads.map(|head| self.options.blocks(selecting, selection, head, list)));
            }
        }
        let blocks = longest(u32_of(lists.iter().map(Vec::len).max().unwrap_or(0)));
        let stride = stride(blocks);
        let mut words = Vec::with_capacity((lists.len() * stride as usize).next_multiple_of(ALIGN));
        for list in lists {
            let end = words.len() + stride as usize;
            words.push(u32_of(list.len()));
            words.extend(list);
            words.resize(end, 0);
        }
        words.resize(words.len().next_multiple_of(ALIGN), 0);
        HostLists { words, stride, blocks }
    }

    /// Converts the lists of selecting rows to the selection that the policy's own code would return.
    fn selection(&self, selecting: &SelectingRows, lists: &[&[u32]]) -> Selection {
        let block = self.options.policy.block_size();
        let list =
            |head: usize, list: u32| lists[(selecting.list + list) as usize * self.num_kv_heads + head];
        let mut selection = Selection::new();
        if self.options.splits_history(selecting) {
            // One set for all heads; the chunk's own blocks after it are no choice.
            let history = selecting.position / block.get();
            selection.begin(history, 1, 1);
            selection.push_row(list(0, 0).iter().copied().filter(|block| *block < history));
            return selection;
        }
        let blocks = num_blocks(selecting.kv_len(), block);
        match selecting.lists {
            1 => selection.begin(blocks, self.num_kv_heads, 1),
            lists => {
                let visible = (1..=lists).map(|list| blocks - lists + list);
                selection.begin_causal(blocks, self.num_kv_heads, visible);
            }
        }
        for head in 0..self.num_kv_heads {
            (0..selecting.lists).for_each(|index| selection.push_row(list(head, index).iter().copied()));
        }
        selection
    }
}
