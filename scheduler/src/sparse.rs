//! The scheduler's side of block-sparse attention: which blocks the sequences of a plan will read, and how
//! often they have read them (GSA's `build_sparse_meta`).

use kvblock::{BlockHash, BlockId, BlockIdx, GroupId, SeqId};
use rustc_hash::FxHashMap;

use crate::plan::StepPlan;
use crate::scheduler::Scheduler;

/// Number of reads of each block by each sequence.
#[derive(Clone, Debug, Default)]
pub struct AccessHistory {
    counts: FxHashMap<SeqId, Vec<u32>>,
}

impl AccessHistory {
    /// Number of accesses by block position. Blocks past the end of the slice were never accessed.
    #[must_use]
    pub fn counts(&self, seq: SeqId) -> &[u32] {
        self.counts.get(&seq).map_or(&[], Vec::as_slice)
    }

    /// Counts one access to each block.
    pub fn record(&mut self, seq: SeqId, blocks: &[BlockIdx]) {
        let counts = self.counts.entry(seq).or_default();
        for block in blocks {
            let index = block.get() as usize;
            if counts.len() <= index {
                counts.resize(index + 1, 0);
            }
            counts[index] = counts[index].saturating_add(1);
        }
    }

    /// Forgets a sequence.
    pub fn remove(&mut self, seq: SeqId) {
        self.counts.remove(&seq);
    }
}

/// Input of a selection by access history.
#[derive(Clone, Copy, Debug)]
pub struct SparseInput<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Number of full blocks of the sequence; the partial last block is always read and never selected.
    pub num_blocks: u32,
    /// Accesses of each block, `[num_blocks]`.
    pub accesses: &'a [u32],
}

/// One request of a sparse step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SparseRequest {
    /// The sequence.
    pub seq: SeqId,
    /// Index of its slice in the plan.
    pub index_in_batch: usize,
    /// Tokens that the step computes.
    pub num_scheduled_tokens: u32,
    /// Tokens computed before.
    pub num_computed_tokens: u32,
    /// Its block table in the group.
    pub block_ids: Vec<BlockId>,
    /// Hashes of its full blocks.
    pub block_hashes: Vec<BlockHash>,
    /// Full blocks to read, ascending.
    pub selected: Vec<BlockIdx>,
    /// Hashes of the selected blocks that are not resident: what a prefetch has to load.
    pub prefetch: Vec<BlockHash>,
}

/// The sparse side of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SparseMeta {
    /// One request for each slice of the plan, in the plan's order.
    pub requests: Vec<SparseRequest>,
}

impl Scheduler {
    /// Selects blocks of one group for each slice of a plan. `select` gives block positions below
    /// [`SparseInput::num_blocks`], in any order; `resident` tells which blocks need no load. Report the step
    /// to [`record_accesses`](Self::record_accesses) once it has run.
    ///
    /// # Panics
    /// When `select` names a block that is not there.
    pub fn build_sparse_meta(
        &self,
        plan: &StepPlan,
        group: GroupId,
        mut select: impl FnMut(SparseInput<'_>) -> Vec<BlockIdx>,
        mut resident: impl FnMut(SeqId, BlockIdx) -> bool,
    ) -> SparseMeta {
        let mut accesses = Vec::new();
        let request = |(index_in_batch, slice): (usize, &crate::plan::Slice)| {
            let (seq, hashes) = (slice.seq, self.sequence(slice.seq).chain.hashes());
            let block_hashes: Vec<BlockHash> = self.cache.group_hashes(hashes, group).collect();
            let num_blocks =
                u32::try_from(block_hashes.len()).expect("a sequence has fewer blocks than tokens");
            accesses.clear();
            accesses.extend(self.history.counts(seq));
            accesses.resize(block_hashes.len(), 0);
            let mut selected = select(SparseInput { seq, num_blocks, accesses: &accesses });
            selected.sort_unstable();
            selected.dedup();
            let hash = |block: &BlockIdx| block_hashes[block.get() as usize];
            let prefetch = selected.iter().filter(|&&block| !resident(seq, block)).map(hash).collect();
            SparseRequest {
                seq,
                index_in_batch,
                num_scheduled_tokens: slice.len,
                num_computed_tokens: slice.start,
                block_ids: self.block_table(seq, group).to_vec(),
                block_hashes,
                selected,
                prefetch,
            }
        };
        SparseMeta { requests: plan.slices.iter().enumerate().map(request).collect() }
    }

    /// Counts one access to every block that a completed sparse step selected. Sequences that ended are
    /// ignored.
    pub fn record_accesses(&mut self, meta: &SparseMeta) {
        for request in meta.requests.iter().filter(|request| self.seqs.contains_key(&request.seq)) {
            self.history.record(request.seq, &request.selected);
        }
    }

    /// Counts one access to each of `blocks`, for engines that select blocks themselves. Sequences that ended
    /// are ignored.
    pub fn record_access(&mut self, seq: SeqId, blocks: &[BlockIdx]) {
        if self.seqs.contains_key(&seq) && !blocks.is_empty() {
            self.history.record(seq, blocks);
        }
    }

    /// Returns the number of reads of each block by each sequence.
    #[must_use]
    pub const fn access_history(&self) -> &AccessHistory {
        &self.history
    }
}
