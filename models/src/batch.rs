//! Inputs and results of one step of a decoder.

use attn_kernels::gpu::Timing;
use kvblock::BlockId;
use prefetch::spill::SpillError;

pub use kvblock::Phase;

pub use crate::sampling::Sample;

use crate::sampling::LogProbs;
use crate::sparse::Attended;

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Slice<'a> {
    /// Token ids, `[rows]`.
    pub tokens: &'a [u32],
    /// Position of the first one.
    pub first: u32,
    /// Physical blocks of the sequence by [group](crate::KvPlan::layout), enough for the last position; the null block
    /// where no row of the slice reaches.
    pub tables: &'a [&'a [BlockId]],
    /// Prefill or decode: it decides which attention kernel serves the rows.
    pub phase: Phase,
    /// Number of times that the sequence attended to each of its blocks under a sparse policy; only policies that
    /// remember look.
    pub access: &'a [u32],
    /// Score these targets after the rows: `targets[i]` is the token that follows `tokens[i]`; may be shorter.
    pub targets: &'a [u32],
    /// Hand back the log-probability of each target, and of this many of the likeliest tokens in its place, at most
    /// [`MAX_TOP`](crate::kernel::top_logits::MAX_TOP).
    pub log_probs: Option<u32>,
    /// Hand back the logits of the last rows, this many.
    pub logits: usize,
    /// Certify the attention mass that a sparse policy keeps in decode steps: [`Attended::mass`].
    pub certify: bool,
}

impl<'a> Slice<'a> {
    /// Tokens from position `first` on whose rows are neither scored nor handed back, without earlier accesses.
    #[must_use]
    pub fn new(tokens: &'a [u32], first: u32, tables: &'a [&'a [BlockId]], phase: Phase) -> Self {
        Self {
            tokens,
            first,
            tables,
            phase,
            access: &[],
            targets: &[],
            log_probs: None,
            logits: 0,
            certify: false,
        }
    }

    /// Returns the number of leading rows that are scored: all of them if logits are handed back.
    pub(crate) fn scored_rows(&self) -> usize {
        if self.logits > 0 { self.tokens.len() } else { self.targets.len() }
    }
}

/// Choice of the router or the indexer of one layer. An indexer that leaves every visible token to every row reports no
/// choice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The layer.
    pub layer: usize,
    /// Experts, tokens, or entries of a compressed cache, of each row of the step, ascending.
    pub rows: Vec<Vec<u32>>,
}

/// Results of a step, in the order of its slices.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// One id for each sample; [`NOT_FINITE`](crate::kernel::sample::NOT_FINITE) where logits of its row are not finite.
    pub sampled: Vec<u32>,
    /// Log-probabilities, one entry per sample; `None` for samples that did not ask, and empty where no sample did.
    pub log_probs: Vec<Option<LogProbs>>,
    /// Negative log likelihoods in nats, one per target.
    pub nll: Vec<f32>,
    /// Log-probabilities, one per target of the slices that asked for them.
    pub target_log_probs: Vec<LogProbs>,
    /// Logits of the requested rows, `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Blocks that a sparse policy, or the model's indexer, had each slice attend to; `None` for slices of a phase that it
    /// leaves dense.
    pub attended: Vec<Option<Attended>>,
    /// Choices of routers and indexers, by layer, where [`Decoder::trace_choices`](crate::Decoder::trace_choices)
    /// asks for it.
    pub choices: Vec<Choice>,
    /// Blocks on disk that could not be read, ascending, where a pool has some: results of slices whose tables name one are
    /// worthless, those of others are not touched.
    pub lost: Vec<(BlockId, SpillError)>,
    /// Device time of each dispatch, where [`Gpu::time_dispatches`](attn_kernels::gpu::Gpu::time_dispatches) asked for
    /// it.
    pub timings: Vec<Timing>,
}
