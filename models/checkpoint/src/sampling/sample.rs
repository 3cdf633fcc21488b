//! One draw, as the device is asked for it.

use bytemuck::{Pod, Zeroable};

use super::LogitAdjustments;

/// A token to draw after a step; several may follow one slice. [`Sampler`](super::Sampler) makes the samples of
/// a request.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The slice after whose last row it is drawn.
    pub slice: usize,
    /// Temperature, filters and noise.
    pub spec: Spec,
    /// Masks, biases and penalties that act before them.
    pub adjust: LogitAdjustments<'a>,
    /// Hand back its log-probability, and those of this many of the likeliest tokens, at most
    /// [`MAX_TOP`](super::MAX_TOP).
    pub log_probs: Option<u32>,
}

impl Sample<'_> {
    /// A draw from the unchanged logits that returns the token alone.
    #[must_use]
    pub fn new(slice: usize, spec: Spec) -> Self {
        Self { slice, spec, adjust: LogitAdjustments::default(), log_probs: None }
    }

    /// The likeliest token.
    #[must_use]
    pub fn greedy(slice: usize) -> Self {
        Self::new(slice, Spec::GREEDY)
    }
}

/// Parameters of the draw of one row.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Spec {
    /// 0 is greedy.
    pub temperature: f32,
    /// Smallest set of tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Seed, low half.
    pub seed_low: u32,
    /// Seed, high half.
    pub seed_high: u32,
    /// Position of the token drawn: with the seed it fixes the noise.
    pub position: u32,
    /// 1 where minus infinity stands for a forbidden token; else a logit of minus infinity is not finite.
    pub masked: u32,
}

impl Spec {
    /// Parameters that draw the likeliest token.
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
