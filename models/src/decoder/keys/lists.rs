//! Lists of copies and block tables of a step, for keys and values that are not on the device.

use std::ops::Range;

use attn_kernels::gpu::Gpu;
use attn_kernels::rows::{BlockCopy, PhysicalBlock};

use crate::ModelError;
use crate::decoder::buffers::StepList;

/// Copies of all streams of a step.
#[derive(Debug)]
pub(super) struct StreamLists {
    /// Block tables of every stream, each aligned for a binding.
    pub(super) tables: StepList<PhysicalBlock>,
    /// Source and target of every copy.
    pub(super) pairs: StepList<BlockCopy>,
}

/// Alignment of tables, in entries: 256 bytes, the largest alignment that devices require.
pub(super) const ENTRIES: usize = 64;
/// Alignment of lists of pairs; their lengths are multiples of it.
const PAIRS: usize = 32;

impl StreamLists {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, ModelError> {
        Ok(Self {
            tables: StepList::new(gpu, "stream_tables", 1)?,
            pairs: StepList::new(gpu, "stream_pairs", 1)?,
        })
    }

    pub(super) fn clear(&mut self) {
        self.tables.clear();
        self.pairs.clear();
    }
}

/// Adds a list of at least `min_len` entries to `pairs`, aligned for a binding. It is padded with entries without a copy, so that
/// the lengths of growing lists, and with them the commands of steps, stay the same for a while.
pub(super) fn push_copies(pairs: &mut Vec<BlockCopy>, copies: &[(u32, u32)], min_len: usize) -> Range<usize> {
    push_runs(pairs, copies, min_len, |_, _| true)
}

/// Adds a list in runs of copies that `together` joins. Each run is padded.
pub(super) fn push_runs(
    pairs: &mut Vec<BlockCopy>,
    copies: &[(u32, u32)],
    min_len: usize,
    together: impl Fn(u32, u32) -> bool,
) -> Range<usize> {
    let first = pairs.len();
    for run in copies.chunk_by(|a, b| together(a.0, b.0)) {
        pairs.extend(run.iter().map(|(from, to)| BlockCopy { from: *from, to: *to }));
        pairs.resize(first + (pairs.len() - first).next_multiple_of(PAIRS), BlockCopy::NONE);
    }
    let len = (pairs.len() - first).max(min_len).next_multiple_of(PAIRS);
    pairs.resize(first + len, BlockCopy::NONE);
    first..pairs.len()
}

/// Whether an entry of a list of pairs belongs to the run of the entry before. Padding belongs to the run before it.
pub(super) fn is_run(
    a: &BlockCopy,
    b: &BlockCopy,
    same: impl FnOnce(&BlockCopy, &BlockCopy) -> bool,
) -> bool {
    !b.is_some() || (a.is_some() && same(a, b))
}
