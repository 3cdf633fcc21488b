//! Rows of a step for which blocks are selected, and the input of the policy for them.
//!
//! A chunk of a prompt always attends its own blocks: a policy selects among the blocks before it, unless the policy masks by
//! query blocks itself.

use std::ops::Range;

use attn_kernels::gpu::Bind;
use kvblock::BlockId;
use sparse_select::digest::DigestFormat;
use sparse_select::policy::num_blocks;
use sparse_select::{Heads, Input, Retrieved, Selection, Stage};

use crate::ModelError;
use crate::batch::{Phase, Slice};
use crate::cast::u32_of;
use crate::sparse::SparseOptions;

/// A decode row, or the rows of a prompt chunk, for which blocks are selected.
#[derive(Debug)]
pub(super) struct SelectingRows {
    /// Index of the slice that the rows belong to.
    pub(super) slice: usize,
    /// Index of the first of these rows in the step.
    pub(super) row: usize,
    pub(super) rows: usize,
    /// Row of the query that a decode row selects by: its own, or an earlier one.
    pub(super) q_row: u32,
    /// Position of the first row.
    pub(super) position: u32,
    phase: Phase,
    /// Range of the sequence's block table in the batch's tables.
    pub(super) table: Range<usize>,
    /// Number of earlier accesses of each block, for policies that use them.
    access: Vec<u32>,
    /// First list group of the rows.
    pub(super) list: u32,
    /// Number of list groups of the rows: one, or one for each query block.
    pub(super) lists: u32,
}

/// Lists of the blocks that one layer selected: one list for each KV head of a list group. Kernels read a list as
/// `count, block, block, ...`, ascending.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    pub(super) bind: Bind<u32>,
    /// Number of entries from one list to the next.
    pub(super) stride: u32,
    /// Upper bound of the number of blocks of a list.
    pub(super) blocks: u32,
}

impl SelectingRows {
    /// Whether the rows are of the decode phase.
    pub(super) fn is_decode(&self) -> bool {
        self.phase == Phase::Decode
    }

    /// Number of tokens up to its last row.
    pub(super) fn kv_len(&self) -> usize {
        self.position as usize + self.rows
    }

    /// Number of blocks that the rows' lists could name, summed over the lists.
    pub(super) fn visible(&self, select_block: u32) -> u64 {
        let end = self.kv_len().div_ceil(select_block as usize) as u64;
        // Query block by query block, up to its own.
        (0..u64::from(self.lists)).map(|list| end - list).sum()
    }

    /// Returns the list group of the row at `position`.
    pub(super) fn list_at(&self, position: u32, select_block: u32) -> u32 {
        self.list + u32_of(self.list_of(position as usize, select_block))
    }

    /// Returns the index of the list group of the row at `position`, counted from the first list group of these rows.
    pub(super) fn list_of(&self, position: usize, select_block: u32) -> usize {
        let block = select_block as usize;
        if self.lists == 1 { 0 } else { position / block - self.position as usize / block }
    }
}

impl SparseOptions {
    /// Converts the index of a layer in the decoder to its index in the model.
    pub(super) fn in_model(&self, layer: usize) -> u32 {
        self.first_layer + u32_of(layer)
    }

    /// Whether a layer attends everything in every step.
    pub(super) fn is_dense(&self, layer: usize) -> bool {
        self.policy.keeps_all(Some(self.in_model(layer)), usize::MAX)
    }

    /// Returns, for each layer, the earlier layer whose selection it reuses; `None` if it selects itself or is dense.
    pub(super) fn sources(&self, dense: &[bool]) -> Vec<Option<usize>> {
        let mut last = None;
        let of_layer = |(layer, dense): (usize, &bool)| {
            let source = last.filter(|_| !dense && self.policy.reuses(self.in_model(layer)));
            if !dense && source.is_none() {
                last = Some(layer);
            }
            source
        };
        dense.iter().enumerate().map(of_layer).collect()
    }

    /// Returns the rows of a step for which blocks are selected, in the order of their lists: decode rows in the order of
    /// the step, then prefills. If decode rows select by earlier `queries`, decode slices without an earlier query are
    /// left out.
    pub(super) fn selecting_rows(
        &self,
        slices: &[Slice<'_>],
        group: usize,
        queries: Option<&[Option<u32>]>,
    ) -> Vec<SelectingRows> {
        let (mut row, mut table) = (0, 0);
        let least = self.least(slices);
        let mut selecting = Vec::new();
        for (index, slice) in slices.iter().enumerate() {
            let blocks = |tables: &[&[BlockId]]| tables.iter().map(|table| table.len()).sum::<usize>();
            let first = table + blocks(&slice.tables[..group]);
            let query = queries.filter(|_| slice.phase == Phase::Decode).map(|queries| queries[index]);
            if self.acts_on(slice.phase) && query != Some(None) {
                let remembers = !self.of(slice.phase).support().query;
                let of_slice = |(i, rows, lists)| SelectingRows {
                    slice: index,
                    row: row + i,
                    q_row: query.flatten().unwrap_or_else(|| u32_of(row + i)),
                    rows,
                    position: slice.first + u32_of(i),
                    phase: slice.phase,
                    table: first..first + slice.tables[group].len(),
                    access: if remembers { slice.access.to_vec() } else { Vec::new() },
                    list: 0,
                    lists,
                };
                selecting.extend(self.parts(slice, least).into_iter().map(of_slice));
            }
            row += slice.tokens.len();
            table += blocks(slice.tables);
        }
        selecting.sort_by_key(|selecting| selecting.phase == Phase::Prefill);
        let mut list = 0;
        for selecting in &mut selecting {
            selecting.list = list;
            list += selecting.lists;
        }
        selecting
    }

    /// Returns the minimum number of tokens of a sequence whose decode rows select.
    fn least(&self, slices: &[Slice<'_>]) -> u32 {
        let decoding = slices.iter().filter(|slice| slice.phase == Phase::Decode);
        if decoding.clone().count() < self.of(Phase::Decode).min_requests() as usize {
            return u32::MAX;
        }
        self.crossing.least(decoding.map(|slice| slice.first + 1))
    }

    /// Returns the rows of a slice that get lists: `(first row, rows, lists)`. Decode rows of fewer than `least` tokens get none.
    fn parts(&self, slice: &Slice<'_>, least: u32) -> Vec<(usize, usize, u32)> {
        let block = self.policy.block_size().get();
        let rows = slice.tokens.len();
        let last = slice.first + u32_of(rows) - 1;
        let policy = self.of(slice.phase);
        let whole = |i: usize| policy.keeps_all(None, slice.first as usize + i + 1);
        match slice.phase {
            Phase::Decode if slice.first < least.saturating_sub(1) => Vec::new(),
            Phase::Decode => (0..rows).filter(|i| !whole(*i)).map(|i| (i, 1, 1)).collect(),
            Phase::Prefill if whole(rows - 1) || rows < self.min_queries() => Vec::new(),
            Phase::Prefill if !self.pays_for(slice.positions()) => Vec::new(),
            Phase::Prefill if self.history_only() && slice.first < block => Vec::new(),
            Phase::Prefill if self.history_only() => vec![(0, rows, 1)],
            Phase::Prefill => vec![(0, rows, last / block - slice.first / block + 1)],
        }
    }

    /// Minimum number of rows of a chunk that selects: shorter chunks are dense.
    fn min_queries(&self) -> usize {
        self.policy.antidiagonals().map_or(0, |form| form.min_queries)
    }

    /// Whether chunks of prompts attend all of their own blocks, and a selection of the blocks before.
    fn history_only(&self) -> bool {
        let support = self.of(Phase::Prefill).support();
        support.after_history || !support.query
    }

    /// Whether a selection contains only the history of a chunk, to which the chunk's own blocks are added.
    pub(super) fn splits_history(&self, selecting: &SelectingRows) -> bool {
        selecting.phase == Phase::Prefill && self.history_only()
    }

    /// Runs the policy's own code for a layer, with digests in the kernels' format. If blocks were `retrieved` earlier,
    /// the policy keeps these blocks.
    pub(super) fn select(
        &self,
        selecting: &SelectingRows,
        layer: usize,
        tensors: Option<(Heads<'_>, Heads<'_>)>,
        digests: DigestFormat,
        retrieved: Option<Retrieved<'_>>,
    ) -> Result<Selection, ModelError> {
        let mut selection = Selection::new();
        let input = Input { digests, retrieved, ..self.input(selecting, layer, tensors) };
        self.policy.select_into(&input, &mut selection)?;
        // Kernels look the blocks up in the table of the sequence without bounds checks, and policies are anybody's code.
        let (stated, blocks) = (selection.num_blocks(), input.num_blocks(self.policy.block_size()));
        if stated > blocks {
            return Err(ModelError::Selection { policy: self.of(selecting.phase).name(), stated, blocks });
        }
        Ok(selection)
    }

    /// Returns the input of the policy for selecting rows in a layer.
    pub(super) fn input<'a>(
        &self,
        selecting: &'a SelectingRows,
        layer: usize,
        tensors: Option<(Heads<'a>, Heads<'a>)>,
    ) -> Input<'a> {
        let block = self.policy.block_size().get();
        let history = selecting.position / block;
        let (stage, kv_len) = match selecting.phase {
            Phase::Decode => (Stage::Decode, selecting.kv_len()),
            Phase::Prefill if self.history_only() => {
                (Stage::Prefill { chunk_idx: history }, (history * block) as usize)
            }
            Phase::Prefill => (Stage::Prefill { chunk_idx: history }, selecting.kv_len()),
        };
        let (q, k) = tensors.unzip();
        let k = k.map(|k| k.window(0, kv_len));
        let layer = Some(self.in_model(layer));
        Input { stage, layer, q, k, access: &selecting.access, ..Input::positions(kv_len) }
    }

    /// Returns the blocks that list group `list` attends for KV head `head`, ascending.
    pub(super) fn blocks(
        &self,
        selecting: &SelectingRows,
        selection: &Selection,
        head: usize,
        list: usize,
    ) -> Vec<u32> {
        // If a chunk has one list but its query blocks selected separately, the list is the union.
        let rows = if selecting.lists == 1 { 0..selection.query_blocks() } else { list..list + 1 };
        let of_row = |row| selection.row_shared(head, row).iter().map(|b| b.get());
        let mut blocks: Vec<u32> = rows.flat_map(of_row).collect();
        blocks.sort_unstable();
        blocks.dedup();
        if self.splits_history(selecting) {
            let block = self.policy.block_size();
            blocks.extend(selecting.position / block.get()..num_blocks(selecting.kv_len(), block));
        }
        blocks
    }
}
