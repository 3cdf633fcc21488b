//! Lists of the copies and tables of a step whose keys and values lie beyond the device.

use std::ops::Range;

use attn_kernels::gpu::Gpu;
use attn_kernels::rows::{BlockCopy, PhysicalBlock};

use crate::ModelError;
use crate::decoder::buffers::StepList;

/// Copies of all streams of a step.
#[derive(Debug)]
pub(super) struct StreamLists {
    /// Tables of every stream, each from where a binding can begin.
    pub(super) tables: StepList<PhysicalBlock>,
    /// Source and target of every copy.
    pub(super) pairs: StepList<BlockCopy>,
}

/// Table entries after which a binding can begin: 256 bytes, the largest alignment that devices ask for.
pub(super) const ENTRIES: usize = 64;
/// Pairs of source and target after which a binding can begin; lists are whole multiples.
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

/// Adds a list of at least `least` entries to `pairs`, which a binding can begin with. Entries without a copy fill it up, so that
/// lists that grow from step to step keep their length for a while, and steps their commands.
pub(super) fn push_copies(pairs: &mut Vec<BlockCopy>, copies: &[(u32, u32)], least: usize) -> Range<usize> {
    push_runs(pairs, copies, least, |_, _| true)
}

/// Adds a list likewise, of which copies that `together` parts are apart: each run of those that it does not is filled up.
pub(super) fn push_runs(
    pairs: &mut Vec<BlockCopy>,
    copies: &[(u32, u32)],
    least: usize,
    together: impl Fn(u32, u32) -> bool,
) -> Range<usize> {
    let first = pairs.len();
    for run in copies.chunk_by(|a, b| together(a.0, b.0)) {
        pairs.extend(run.iter().map(|(from, to)| BlockCopy { from: *from, to: *to }));
        pairs.resize(first + (pairs.len() - first).next_multiple_of(PAIRS), BlockCopy::NONE);
    }
    let len = (pairs.len() - first).max(least).next_multiple_of(PAIRS);
    pairs.resize(first + len, BlockCopy::NONE);
    first..pairs.len()
}

/// Whether an entry of a list of pairs is copied with the one before: those without a copy fill up the run that they follow.
pub(super) fn is_run(
    a: &BlockCopy,
    b: &BlockCopy,
    same: impl FnOnce(&BlockCopy, &BlockCopy) -> bool,
) -> bool {
    !b.is_some() || (a.is_some() && same(a, b))
}
