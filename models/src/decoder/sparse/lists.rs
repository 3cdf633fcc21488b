//! Lists of selected blocks on the device, and their way back where they are traced.

use attn_kernels::gpu::{Bind, Buf, Gpu, Outcome, Pass, Read};
use sparse_select::Selection;
use sparse_select::policy::num_blocks;

use super::account::Account;
use super::{Lists, Rules, SelectingRows, SelectionReads};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::OfLayers;

/// Lists that the host made.
pub(super) struct HostLists {
    pub(super) words: Vec<u32>,
    /// Entries from one list to the next.
    pub(super) stride: u32,
    /// Blocks of the longest list, or a few more.
    pub(super) blocks: u32,
}

/// Lists are bound at offsets that are multiples of this many entries.
pub(super) const ALIGN: usize = 64;

/// Lists are this many entries apart, or a multiple of it: lists that grow from step to step keep their places for a while, so
/// that steps keep their commands.
const STEP: u32 = 32;

/// Returns the entries from one list to the next of lists of at most `blocks` blocks.
pub(super) fn stride(blocks: u32) -> u32 {
    (1 + blocks).next_multiple_of(STEP)
}

/// Longest lists grow by this many tokens at once, likewise.
const GROWTH: u32 = 64;

/// Returns the blocks of the longest list of some rows, where it has `blocks` blocks of `block` tokens: a few more for lists that
/// grow from step to step, or by a block that is not full in every second step.
pub(super) fn longest(blocks: u32, block: u32) -> u32 {
    blocks.next_multiple_of((GROWTH / block).max(1))
}

/// Returns the length of rows of `len` scores: a few more for rows that grow from step to step.
pub(super) fn score_stride(len: u32) -> u32 {
    len.next_multiple_of(64)
}

/// Lists that kernels make, of one layer after the other or of all.
#[derive(Debug)]
pub(super) struct DeviceLists {
    bufs: OfLayers<u32>,
    /// The layer whose lists each layer reads.
    sources: Vec<usize>,
    /// Entries from one list to the next.
    pub(super) stride: u32,
    /// Blocks of the longest list.
    blocks: u32,
    /// Whether each layer has lists in this step.
    pub(super) layers: Vec<bool>,
    /// Lists of every layer, kept for the end of a step that is traced.
    traced: Option<Buf<u32>>,
}

impl DeviceLists {
    /// Lists of one layer after the other.
    pub(super) fn new(gpu: &Gpu, num_layers: usize) -> Result<Self, ModelError> {
        Self::of_layers(gpu, num_layers, false)
    }

    /// Lists of `num_layers` layers; `at_once` says that those of all are there at a time.
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

    /// Makes room for the lists of a step, of at most `blocks` blocks each, in every layer that selects.
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

    /// Returns the numbers that commands follow from; `None` in a step that is traced.
    pub(super) fn shape(&self) -> Option<Vec<usize>> {
        let layers = self.layers.iter().map(|lists| usize::from(*lists));
        self.traced.is_none().then(|| {
            layers.chain([self.stride as usize, self.blocks as usize, self.bufs.of(0).len()]).collect()
        })
    }

    /// The lists of a layer, if it has some.
    pub(super) fn of(&self, layer: usize) -> Option<Lists> {
        self.layers[layer].then(|| Lists {
            bind: self.bind_of(layer),
            stride: self.stride,
            blocks: self.blocks,
        })
    }

    /// Binds the lists of the layer at hand, where there is one at a time.
    pub(super) fn bind(&self) -> Bind<u32> {
        self.bufs.of(0).bind()
    }

    /// Binds the lists of a layer, whether or not it has some.
    pub(super) fn bind_of(&self, layer: usize) -> Bind<u32> {
        self.buf(layer).bind()
    }

    fn buf(&self, layer: usize) -> &Buf<u32> {
        self.bufs.of(self.sources[layer])
    }

    /// Records that a layer's lists are kept for the end of the step, if they are traced.
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

    /// Counts blocks that the device counted, `[layers, selecting rows]`.
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

    /// Takes counts and traced lists of a step into the account.
    pub(super) fn take_reads(
        &self,
        rules: &Rules,
        batch: &Batch,
        reads: SelectionReads,
        done: &Outcome,
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
    /// Lists of all groups and KV heads of a layer, behind those of rows that come first and are selected for elsewhere.
    /// `longest` says how many blocks count as those of the longest one.
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

    /// Returns the selection that a policy's own code would have returned for the lists of chosen rows.
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
