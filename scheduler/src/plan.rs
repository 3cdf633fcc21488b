//! What one step runs, as data.

use kvblock::{BlockCopy, SeqId};

/// The role of a slice's tokens. It follows from the tokens alone, never from their number, so that the arithmetic of a
/// token does not depend on how its sequence was cut.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SliceKind {
    /// A token sampled by the previous step is fed back, with its draft tokens.
    Decode,
    /// Prompt tokens, or tokens recomputed after a preemption.
    Prefill,
}

/// Consecutive tokens of one sequence, computed in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first token.
    pub start: u32,
    /// Number of tokens.
    pub len: u32,
    /// Whether the last position is the sequence's last token, so that its logits give the next one.
    pub samples: bool,
    /// Role of the tokens.
    pub kind: SliceKind,
}

impl Slice {
    /// The position after the last token: keys `0..end` are reachable, window permitting.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.start + self.len
    }
}

/// One token to sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleRow {
    /// Sequence that the token is for. Differs from the slice's for further samples of one prompt.
    pub seq: SeqId,
    /// Index of the slice whose last position gives the logits.
    pub slice: usize,
}

/// A sequence that left the waiting queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Whether it ran before and was preempted.
    pub resumed: bool,
}

/// A change of blocks' contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BlockOp {
    /// Copy within the device, after a fork.
    Copy(BlockCopy),
}

/// The work of one step.
///
/// Decode slices come first. A slice reads only blocks that earlier steps, earlier slices or itself wrote; a slice may
/// read what an earlier one writes in the same step (two equal prompts admitted at once), so either run slices in order
/// or write each layer's keys and values before its attention.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepPlan {
    /// Number of the step, from 0.
    pub step: u64,
    /// What to compute.
    pub slices: Vec<Slice>,
    /// What to sample afterwards: the order of `sampled` in [`complete`](crate::Scheduler::complete). With one sample a
    /// request, one row for each slice with [`samples`](Slice::samples).
    pub sample_rows: Vec<SampleRow>,
    /// To run in this order, before any write of the step.
    pub block_ops: Vec<BlockOp>,
    /// Sequences that lost their blocks.
    pub preempted: Vec<SeqId>,
    /// Sequences that started or resumed.
    pub admitted: Vec<Admitted>,
}

impl StepPlan {
    /// Whether there is nothing to run.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slices.is_empty() && self.block_ops.is_empty()
    }

    /// Tokens that the step computes.
    #[must_use]
    pub fn num_tokens(&self) -> u32 {
        self.slices.iter().map(|slice| slice.len).sum()
    }

    /// Number of leading decode slices.
    #[must_use]
    pub fn num_decodes(&self) -> usize {
        self.slices.partition_point(|slice| slice.kind == SliceKind::Decode)
    }
}
