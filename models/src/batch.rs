//! Inputs and results of one step of a decoder.

use std::ops::Range;

use attn_kernels::gpu::Timing;
use kvblock::BlockId;
use prefetch::spill::SpillError;

pub use kvblock::Phase;

pub use crate::sampling::Sample;

use crate::cast::u32_of;
use crate::sampling::LogProbs;
use crate::sparse::Attended;

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Slice<'a> {
    /// Token ids, `[rows]`.
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub first: u32,
    /// Physical blocks of the sequence by [cache group](crate::KvPlan::layout), enough for the last position; the null block for
    /// blocks that no row of the slice attends.
    pub tables: &'a [&'a [BlockId]],
    /// Prefill or decode, which decides the attention kernel.
    pub phase: Phase,
    /// Number of times that the sequence attended each of its blocks under a sparse policy. Only policies with a memory use it.
    pub access: &'a [u32],
    /// Targets to score: `targets[i]` is the token that follows `tokens[i]`. There may be fewer targets than tokens.
    pub targets: &'a [u32],
    /// Number of the likeliest tokens whose log-probabilities are returned together with that of each target, at most
    /// [`MAX_TOP`](crate::kernel::top_logits::MAX_TOP); `None` for no log-probabilities.
    pub log_probs: Option<u32>,
    /// Number of last rows whose logits are returned.
    pub logits: usize,
    /// Number of last rows whose final hidden states, after the last norm, are summed and returned: 1 for last-token
    /// pooling, all rows for mean pooling.
    pub pooled: usize,
    /// Whether to certify the attention mass that a sparse policy keeps in decode steps: [`Attended::mass`].
    pub certify: bool,
}

impl<'a> Slice<'a> {
    /// Tokens from position `first` on, without scores, logits or earlier accesses.
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
            pooled: 0,
            certify: false,
        }
    }

    /// Returns some of the rows, with the results that are requested of these rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        let len = self.tokens.len();
        let of_last = |wanted: usize| rows.end.saturating_sub(rows.start.max(len - wanted.min(len)));
        let [start, end] = [rows.start, rows.end].map(|row| row.min(self.targets.len()));
        Self {
            tokens: &self.tokens[rows.clone()],
            first: self.first + u32_of(rows.start),
            targets: &self.targets[start..end],
            logits: of_last(self.logits),
            pooled: of_last(self.pooled),
            ..self.clone()
        }
    }

    /// Returns the positions of the tokens.
    pub(crate) fn positions(&self) -> Range<u32> {
        self.first..self.first + u32_of(self.tokens.len())
    }

    /// Returns the number of leading rows that are scored: all of them if logits are returned.
    pub(crate) fn scored_rows(&self) -> usize {
        if self.logits > 0 { self.tokens.len() } else { self.targets.len() }
    }
}

/// Choice of the router or the indexer of one layer. An indexer reports no choice if every row may attend all tokens it sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerChoice {
    /// The layer.
    pub layer: usize,
    /// Choice for each row of the step, ascending: experts, tokens, or entries of a compressed cache.
    pub rows: Vec<Vec<u32>>,
}

/// Results of a step, in the order of its slices.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Sampled token ids, one per sample; [`NOT_FINITE`](crate::kernel::sample::NOT_FINITE) if the logits of the sample's
    /// row are not finite.
    pub sampled: Vec<u32>,
    /// Log-probabilities, one entry per sample; `None` for samples that did not request them, and empty if no sample did.
    pub log_probs: Vec<Option<LogProbs>>,
    /// Negative log likelihoods in nats, one per target.
    pub nll: Vec<f32>,
    /// Log-probabilities, one per target of the slices that requested them.
    pub target_log_probs: Vec<LogProbs>,
    /// Logits of the requested rows, `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Sums of final hidden states, `[slices that requested them, hidden]`.
    pub pooled: Vec<f32>,
    /// Residual of all rows, `[rows, hidden]`, from a decoder without the model's last layer.
    pub(crate) residual: Vec<f32>,
    /// Blocks that each slice attended under a sparse policy or the model's indexer; `None` for slices of a phase that is dense.
    pub attended: Vec<Option<Attended>>,
    /// Choices of routers and indexers, by layer, if [`Decoder::trace_choices`](crate::Decoder::trace_choices) is on.
    pub choices: Vec<LayerChoice>,
    /// Blocks on disk that could not be read, ascending. Results of slices whose block tables name one of them are invalid;
    /// others are not affected.
    pub lost: Vec<(BlockId, SpillError)>,
    /// Device time of each dispatch, if [`Gpu::time_dispatches`](attn_kernels::gpu::Gpu::time_dispatches) is on.
    pub timings: Vec<Timing>,
}

impl StepOutput {
    /// Adds the results of the next stage of a pipeline, whose first layer is number `first_layer` of the model.
    pub(crate) fn append(&mut self, stage: Self, first_layer: usize) {
        let Self { mut attended, mut choices, mut lost, mut timings, .. } = std::mem::take(self);
        attended.resize(attended.len().max(stage.attended.len()), None);
        for (own, new) in attended.iter_mut().zip(stage.attended) {
            Attended::join(own, new, first_layer);
        }
        let in_model = |choice: LayerChoice| LayerChoice { layer: first_layer + choice.layer, ..choice };
        choices.extend(stage.choices.into_iter().map(in_model));
        lost.extend(stage.lost);
        timings.extend(stage.timings);
        *self = Self { attended, choices, lost, timings, ..stage };
    }
}
