//! Sampling of one sequence.

use super::{Allowed, LogitAdjustments, LogitBias, Sample, Sampling, Spec, TokenCounts};

/// Samples the tokens of one sequence: its parameters, and the state of penalties and the minimum length.
///
/// A caller adds every token that was drawn with [`push`](Self::push). Clone it where a sequence forks.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// Occurrences of tokens so far; empty if no penalty is on.
    counts: TokenCounts,
    output_tokens: u32,
    /// Prompt and output; empty if repetitions are not penalised.
    tokens: Vec<u32>,
    /// Bias of the next sample minus DRY penalties; `None` if there is none.
    dry_bias: Option<LogitBias>,
}

impl Sampler {
    /// Starts after `prompt`. O(prompt) with a repetition penalty or DRY, else O(1).
    #[must_use]
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let mut counts = TokenCounts::default();
        if sampling.penalties.repetition != 1.0 {
            counts.add_prompt(prompt);
        }
        let tokens = if sampling.dry.is_off() { Vec::new() } else { prompt.to_vec() };
        let mut sampler = Self { sampling, counts, output_tokens: 0, tokens, dry_bias: None };
        sampler.penalise_repetitions();
        sampler
    }

    /// The parameters.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Whether the sample after the next one can be specified before the next token is known: no penalty depends on
    /// sampled tokens, and the next token may end the output.
    #[must_use]
    pub fn is_predictable(&self) -> bool {
        let Sampling { penalties, dry, min_tokens, .. } = &self.sampling;
        penalties.are_off() && dry.is_off() && self.output_tokens >= *min_tokens
    }

    /// Counts a token that was sampled. O(1); with DRY, the cost of [`Dry::penalties`](super::Dry::penalties).
    pub fn push(&mut self, token: u32) {
        self.output_tokens += 1;
        if !self.sampling.penalties.are_off() {
            self.counts.add_output(token);
        }
        if !self.sampling.dry.is_off() {
            self.tokens.push(token);
            self.penalise_repetitions();
        }
    }

    fn penalise_repetitions(&mut self) {
        let penalties = self.sampling.dry.penalties(&self.tokens);
        self.dry_bias = (!penalties.is_empty()).then(|| self.sampling.logit_bias.less(&penalties));
    }

    /// Returns the sample of the token at `position` of the sequence, after the last row of the step's slice `slice`.
    /// If there is a mask `allowed`, only its tokens may be sampled.
    #[must_use]
    pub fn sample<'a>(&'a self, slice: usize, position: u32, allowed: Option<Allowed<'a>>) -> Sample<'a> {
        let holds_back = self.output_tokens < self.sampling.min_tokens;
        let adjust = LogitAdjustments {
            allowed,
            suppressed: if holds_back { &self.sampling.stop_ids } else { &[] },
            bias: Some(self.dry_bias.as_ref().unwrap_or(&self.sampling.logit_bias)),
            penalties: self.sampling.penalties,
            counts: Some(&self.counts),
        };
        Sample { slice, spec: self.spec(position), adjust, log_probs: self.sampling.log_probs }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a seed")]
    fn spec(&self, position: u32) -> Spec {
        let Sampling { temperature, top_p, min_p, top_k, seed, .. } = self.sampling;
        let (seed_low, seed_high) = (seed as u32, (seed >> 32) as u32);
        Spec { temperature, top_p, min_p, top_k, seed_low, seed_high, position, masked: 0 }
    }
}
