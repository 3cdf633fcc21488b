//! Work of one step, as data.

use kvblock::{BlockCopy, BlockId, GroupId, Phase, SeqId};

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
    pub phase: Phase,
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
    /// Sequence that receives the token. For further samples of a prompt, it differs from the sequence of the slice.
    pub seq: SeqId,
    /// Index of the slice whose last position gives the logits.
    pub slice: usize,
}

/// A sequence that left the waiting queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// The sequence.
    pub seq: SeqId,
    /// Number of leading tokens that need not be computed: found in the prefix cache, loaded, or swapped in.
    pub cached_tokens: u32,
    /// Whether the sequence ran before and was preempted.
    pub resumed: bool,
}

/// A block of the host pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostBlockId(u32);

impl HostBlockId {
    /// Wraps a raw index.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The raw index.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl core::fmt::Debug for HostBlockId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "host{}", self.0)
    }
}

/// A copy of a block's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BlockOp {
    /// Copy within the device, after a fork.
    Copy(BlockCopy),
    /// Saves a block of a preempted sequence in a host block.
    SwapOut {
        /// Group whose layers are copied.
        group: GroupId,
        /// Block to read.
        device: BlockId,
        /// Host block to write.
        host: HostBlockId,
    },
    /// Copies a saved block back to the device.
    SwapIn {
        /// Group whose layers are copied.
        group: GroupId,
        /// Host block to read.
        host: HostBlockId,
        /// Block to write.
        device: BlockId,
    },
}

/// KV to load for a waiting sequence, into the blocks that its tables already name. The next steps run in the
/// meantime; report the end of the load to [`remote_ready`](crate::Scheduler::remote_ready).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first token to load.
    pub start: u32,
    /// Number of tokens. Blocks that a window does not reach are null in the table and need no load.
    pub len: u32,
}

/// The work of one step.
///
/// Decode slices come first. A slice reads only blocks that were written by earlier steps, by earlier slices
/// or by itself. It may read what an earlier slice writes in the same step (two equal prompts admitted at
/// once), so either run the slices in order, or write each layer's keys and values for all slices before its
/// attention.
///
/// Blocks enter the prefix cache when the plan is made, so a step that fails must be reported to
/// [`fail_step`](crate::Scheduler::fail_step) instead of being completed.
///
/// ```
/// use scheduler::kvblock::{AttentionKind, BlockSize, KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits};
/// use scheduler::{Request, Scheduler, SchedulerConfig};
///
/// let spec = KvCacheSpec::new(AttentionKind::FULL, BlockSize::new(16).unwrap(), 8, 128, KvDtype::F16);
/// let cache = KvCacheConfig::uniform(100, spec, 1, LengthLimits::new(4096));
/// let mut scheduler = Scheduler::new(SchedulerConfig::new(512, 4), cache)?;
/// // Two equal prompts of 40 tokens: the second reads the two full blocks that the first writes in this step.
/// for _ in 0..2 {
///     scheduler.add(Request::new(vec![1; 40], 10)).unwrap();
/// }
/// let plan = scheduler.step();
/// assert_eq!(plan.slices.iter().map(|slice| slice.len).collect::<Vec<_>>(), [40, 8]);
/// assert_eq!(plan.admitted[1].cached_tokens, 32);
/// # Ok::<(), scheduler::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepPlan {
    /// Number of the step, from 0.
    pub step: u64,
    /// Tokens to compute.
    pub slices: Vec<Slice>,
    /// Rows to sample afterwards, in the order of `sampled` in [`complete`](crate::Scheduler::complete). With
    /// one sample per request, there is one row for each slice with [`samples`](Slice::samples).
    pub sample_rows: Vec<SampleRow>,
    /// Copies to execute in this order, before any write of the step.
    pub block_ops: Vec<BlockOp>,
    /// Loads to start in the background.
    pub loads: Vec<Load>,
    /// Sequences that lost their device blocks.
    pub preempted: Vec<SeqId>,
    /// Sequences that started or resumed.
    pub admitted: Vec<Admitted>,
}

impl StepPlan {
    /// Whether there is nothing to run.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slices.is_empty() && self.block_ops.is_empty() && self.loads.is_empty()
    }

    /// Number of tokens that the step computes.
    #[must_use]
    pub fn num_tokens(&self) -> u32 {
        self.slices.iter().map(|slice| slice.len).sum()
    }

    /// Number of leading decode slices.
    #[must_use]
    pub fn num_decodes(&self) -> usize {
        self.slices.partition_point(|slice| slice.phase == Phase::Decode)
    }
}
