//! Counts of the reads of each block, by which policies of block-sparse attention select (GSA).

use kvblock::{BlockIdx, SeqId};
use rustc_hash::FxHashMap;

/// Number of reads of each block by each sequence.
///
/// ```
/// use scheduler::AccessHistory;
/// use scheduler::kvblock::{BlockIdx, SeqId};
///
/// let (mut history, seq) = (AccessHistory::default(), SeqId::new(7));
/// history.record(seq, &[0, 2].map(BlockIdx::new));
/// history.record(seq, &[BlockIdx::new(2)]);
/// assert_eq!(history.counts(seq), [1, 0, 2]);
/// ```
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
