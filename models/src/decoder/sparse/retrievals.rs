//! Decode rows of policies that [select in some steps only](sparse_select::Policy::retrieval_stride): which rows do so in a step,
//! and where the others find the lists they keep.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Rules, SelectingRows, Slice};
use crate::batch::Phase;
use crate::cast::u32_of;
use crate::decoder::kernels::LoadContext;

/// Retrievals of sequences, by the block of their last token, which no other sequence writes.
#[derive(Debug)]
pub(super) struct Retrievals {
    stride: u32,
    /// Cache group whose blocks identify tokens.
    group: usize,
    /// Number of tokens per KV block.
    block_size: u32,
    /// Number of slots for kept lists.
    slots: u32,
    last: FxHashMap<u32, Last>,
}

/// Last retrieval of a sequence.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// Position of the sequence's last token.
    position: u32,
    /// Number of the sequence's tokens in the step that retrieved.
    then: u32,
    slot: u32,
}

/// Retrieval of one decode row in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowRetrieval {
    /// Number of its sequence's tokens.
    pub(super) tokens: u32,
    /// Number of tokens that the sequence had in the step whose retrieval the row uses; equal to `tokens` if the row
    /// itself retrieves.
    pub(super) then: u32,
    /// Slot of the sequence's kept lists; `None` if a later row of the same sequence is in the step.
    pub(super) slot: Option<u32>,
}

impl RowRetrieval {
    /// Whether the row selects blocks anew, instead of keeping an earlier selection.
    pub(super) fn retrieves(&self) -> bool {
        self.then == self.tokens
    }
}

impl Retrievals {
    /// Creates the record of retrievals; `None` for policies that select in every step.
    pub(super) fn new(load: &LoadContext<'_>, rules: &Rules) -> Option<Self> {
        let stride = rules.options.of(Phase::Decode).retrieval_stride();
        (stride > 1).then(|| Self {
            stride,
            group: rules.attn_groups.full_group(),
            block_size: load.kv.shape().block_size,
            slots: load.options.max_seqs,
            last: FxHashMap::default(),
        })
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Maximum number of blocks of `block` tokens that begin between two retrievals.
    pub(super) fn begun(&self, block: u32) -> u32 {
        (self.stride - 1).div_ceil(block)
    }

    /// Forgets sequences whose last block is written outside of a step.
    pub(super) fn forget(&mut self, blocks: &[u32]) {
        for block in blocks {
            self.last.remove(block);
        }
    }

    /// Plans the retrievals of a step's selecting decode rows. A row keeps what its sequence selected less than a stride of
    /// tokens ago, if the previous step kept it too; otherwise it retrieves.
    pub(super) fn plan(&mut self, slices: &[Slice<'_>], selecting: &[SelectingRows]) -> Vec<RowRetrieval> {
        let found: Vec<Option<Last>> = selecting.iter().map(|row| self.find(slices, row)).collect();
        for slice in slices {
            let end = slice.first + u32_of(slice.tokens.len());
            let blocks = (slice.first.saturating_sub(1) / self.block_size)..end.div_ceil(self.block_size);
            for block in &slice.tables[self.group][blocks.start as usize..blocks.end as usize] {
                self.last.remove(&block.get());
            }
        }
        let mut free = self.free(&found);
        let mut row_retrievals = Vec::with_capacity(selecting.len());
        for (index, (row, found)) in selecting.iter().zip(&found).enumerate() {
            let tokens = u32_of(row.kv_len());
            let is_last = selecting.get(index + 1).is_none_or(|next| next.slice != row.slice);
            let (then, slot) = match found {
                Some(last) => (last.then, Some(last.slot)),
                None => (tokens, if is_last { free.pop() } else { None }),
            };
            if let Some(slot) = slot {
                let block = self.block(&slices[row.slice], row.position);
                self.last.insert(block, Last { position: row.position, then, slot });
            }
            row_retrievals.push(RowRetrieval { tokens, then, slot });
        }
        row_retrievals
    }

    /// Whether a row of the next step retrieves, if all sequences of these rows go on.
    pub(super) fn retrieves_next(&self, row_retrievals: &[RowRetrieval]) -> bool {
        row_retrievals.iter().any(|retrieval| retrieval.tokens + 1 - retrieval.then >= self.stride)
    }

    fn find(&self, slices: &[Slice<'_>], row: &SelectingRows) -> Option<Last> {
        let before = row.position.checked_sub(1)?;
        let last = *self.last.get(&self.block(&slices[row.slice], before))?;
        (last.position == before && u32_of(row.kv_len()) - last.then < self.stride).then_some(last)
    }

    /// Returns free slots for rows whose sequences have none. If too few slots are free, sequences that are not in the
    /// step lose theirs.
    fn free(&mut self, found: &[Option<Last>]) -> Vec<u32> {
        let wanted = found.iter().filter(|found| found.is_none()).count();
        if wanted == 0 {
            return Vec::new();
        }
        let kept: FxHashSet<u32> = found.iter().flatten().map(|last| last.slot).collect();
        let taken: FxHashSet<u32> = self.last.values().map(|last| last.slot).collect();
        let free = |slot: &u32| !kept.contains(slot) && !taken.contains(slot);
        let slots: Vec<u32> = (0..self.slots).filter(free).collect();
        if slots.len() >= wanted {
            return slots;
        }
        self.last.clear();
        (0..self.slots).filter(|slot| !kept.contains(slot)).collect()
    }

    fn block(&self, slice: &Slice<'_>, position: u32) -> u32 {
        slice.tables[self.group][(position / self.block_size) as usize].get()
    }
}
