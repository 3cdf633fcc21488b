//! One sample, in the device's format.

use bytemuck::{Pod, Zeroable};

use super::LogitAdjustments;

/// A token to sample after a step; several may follow one slice. [`Sampler`](super::Sampler) makes the samples of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Index of the slice after whose last row the token is sampled.
    pub slice: usize,
    /// Temperature, filters and noise.
    pub spec: Spec,
    /// Masks, biases and penalties that are applied to the logits before temperature and filters.
    pub adjust: LogitAdjustments<'a>,
    /// Number of the likeliest tokens whose log-probabilities are returned together with that of the sampled token,
    /// at most [`MAX_TOP`](super::MAX_TOP); `None` for no log-probabilities.
    pub log_probs: Option<u32>,
}

impl Sample<'_> {
    /// A sample from the unchanged logits that returns the token alone.
    #[must_use]
    pub fn new(slice: usize, spec: Spec) -> Self {
        Self { slice, spec, adjust: LogitAdjustments::default(), log_probs: None }
    }

    /// A sample of the likeliest token.
    #[must_use]
    pub fn greedy(slice: usize) -> Self {
        Self::new(slice, Spec::GREEDY)
    }
}

/// Parameters of the sampling of one row.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Spec {
    /// Temperature that divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Probability mass that the kept tokens must reach; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability of a kept token, relative to the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// Number of the likeliest tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// Lower half of the seed.
    pub seed_low: u32,
    /// Upper half of the seed.
    pub seed_high: u32,
    /// Position of the sampled token: with the seed it determines the noise.
    pub position: u32,
    /// Flag: 1 if minus infinity marks a forbidden token; otherwise a logit of minus infinity is an error.
    pub masked: u32,
}

impl Spec {
    /// Parameters for the likeliest token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        seed_low: 0,
        seed_high: 0,
        position: 0,
        masked: 0,
    };
}
