//! Sampling of tokens: the parameters of a request, and the state that its samples depend on.
//!
//! The device does the following with the logits of a draw, in the order of vLLM's sampler. Everything is off by default.
//!
//! 1. **Allowed tokens.** A token whose bit in the mask is 0, or that is suppressed, gets minus infinity.
//! 2. **Logit bias.** The token's bias is added.
//! 3. **Penalties**, as vLLM and `transformers` define them. With `n` occurrences of the token in the output:
//!    - repetition penalty `r`, for tokens of the prompt or the output: `logit / r` where the logit is positive, else
//!      `logit * r`;
//!    - frequency penalty `f`: `logit - f * n`; presence penalty `p`: `logit - p` where `n > 0`.
//!
//!    llama.cpp has the same formulas, but counts the last 64 tokens only, those of the prompt included.
//!
//!    [`Dry`] penalises repetitions of several tokens, in prompt and output; what it takes from a logit is subtracted with its
//!    bias.
//! 4. At temperature 0, the likeliest token is drawn, and the rest is skipped.
//! 5. **Temperature.** The logit is divided by it.
//! 6. **Min-p** keeps tokens of at least this share of the likeliest one's probability; then **top-k** keeps that many of
//!    the likeliest; then **top-p** keeps the smallest set of the likeliest whose share of the mass that is left reaches
//!    it. `transformers` applies min-p last: the result differs only where min-p and top-p both cut. Ties go to the lower
//!    id: top-k keeps exactly `k`.
//! 7. A token is drawn with noise that depends on the seed, the position and the token alone, so a request draws the same
//!    tokens in any company.
//!
//! Log-probabilities are those of the model: of the raw logits, before any of this (vLLM's `raw_logprobs`).

mod counts;
mod dry;
mod error;
mod sample;
mod sampler;

use derive_setters::Setters;

pub use counts::{TokenCount, TokenCounts};
pub use dry::Dry;
pub use error::SamplingError;
pub use sample::{Sample, Spec};
pub use sampler::Sampler;

/// Maximum number of the likeliest tokens that a request may ask for, as in common APIs.
pub const MAX_TOP: u32 = 20;

/// Sampling parameters of a request. The default takes the likeliest token, with everything else off.
///
/// ```
/// use checkpoint::sampling::Sampling;
///
/// let sampling = Sampling::default().temperature(0.7).top_p(0.95).seed(7);
/// sampling.check(128_256)?;
/// # Ok::<(), checkpoint::sampling::SamplingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Setters)]
#[non_exhaustive]
pub struct Sampling {
    /// Temperature that divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Number of the likeliest tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// Probability mass that the kept tokens must reach; 1 keeps all.
    pub top_p: f32,
    /// Minimum probability of a kept token, relative to the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// Seed of the noise. Equal seeds sample equal tokens from equal logits at equal positions.
    pub seed: u64,
    /// Penalties of tokens that occurred before.
    pub penalties: Penalties,
    /// Penalty of repetitions of several tokens.
    pub dry: Dry,
    /// Biases on the logits of single tokens.
    pub logit_bias: LogitBias,
    /// Number of output tokens before which none of `stop_ids` is sampled.
    pub min_tokens: u32,
    /// Tokens that end the request, including the end of the sequence; only `min_tokens` uses them here.
    pub stop_ids: Vec<u32>,
    /// Number of the likeliest tokens whose log-probabilities are returned together with that of every sampled token,
    /// at most [`MAX_TOP`]; `None` for no log-probabilities.
    #[setters(into)]
    pub log_probs: Option<u32>,
}

/// Penalties of tokens that occurred before.
#[derive(Clone, Copy, Debug, PartialEq, Setters)]
#[non_exhaustive]
pub struct Penalties {
    /// Factor of tokens of the prompt and the output, which divides their positive logits and multiplies the others;
    /// 1 is off.
    pub repetition: f32,
    /// Number that is subtracted once from the logits of tokens of the output; 0 is off.
    pub presence: f32,
    /// Number that is subtracted from the logits of tokens of the output for each occurrence; 0 is off.
    pub frequency: f32,
}

/// Bias on the logit of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBias {
    /// The token.
    pub token: u32,
    /// Value that is added to the logit.
    pub bias: f32,
}

/// Biases on logits, at most one per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias(Vec<TokenBias>);

/// Tokens that may be sampled, as a mask of `[ceil(vocab / 32)]` words: token `t` if bit `t % 32` of word `t / 32` is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// The words of the mask, which are known before the step.
    Words(&'a [u32]),
    /// Words that are filled while the device computes the logits.
    Late,
}

/// Changes of the logits of one sample, before temperature. The default changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogitAdjustments<'a> {
    /// Tokens that may be sampled; `None` for all.
    pub allowed: Option<Allowed<'a>>,
    /// Tokens that must not be sampled, in addition to those that `allowed` leaves out.
    pub suppressed: &'a [u32],
    /// Biases; `None` for none.
    pub bias: Option<&'a LogitBias>,
    /// Penalties of the tokens that `counts` lists.
    pub penalties: Penalties,
    /// Tokens that occurred; `None` for none.
    pub counts: Option<&'a TokenCounts>,
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub log_prob: f32,
}

/// Log-probabilities at one position, of the model's own distribution: before penalties, temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The sampled token, or the target.
    pub token: TokenLogProb,
    /// The likeliest tokens, likeliest first, ties by id; the number that was requested, or the whole vocabulary.
    pub top: Vec<TokenLogProb>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            penalties: Penalties::OFF,
            dry: Dry::OFF,
            logit_bias: LogitBias::default(),
            min_tokens: 0,
            stop_ids: Vec::new(),
            log_probs: None,
        }
    }
}

impl Sampling {
    /// Checks every value, so that an invalid request is rejected before it runs.
    ///
    /// # Errors
    /// The first value that is not a number or out of its range, and the first token outside the vocabulary.
    pub fn check(&self, vocab: u32) -> Result<(), SamplingError> {
        let in_range = |name, value: f32, is, range| match is {
            true => Ok(()),
            false => Err(SamplingError::Value { name, value, range }),
        };
        let finite = |v: f32| (0.0..f32::INFINITY).contains(&v.abs());
        let share = |v: f32| (0.0..=1.0).contains(&v);
        let Penalties { repetition, presence, frequency } = self.penalties;
        in_range(
            "temperature",
            self.temperature,
            finite(self.temperature) && self.temperature >= 0.0,
            "from 0 on",
        )?;
        in_range("top_p", self.top_p, share(self.top_p), "from 0 to 1")?;
        in_range("min_p", self.min_p, share(self.min_p), "from 0 to 1")?;
        in_range("repetition_penalty", repetition, finite(repetition) && repetition > 0.0, "above 0")?;
        in_range("presence_penalty", presence, finite(presence), "finite")?;
        in_range("frequency_penalty", frequency, finite(frequency), "finite")?;
        let Dry { multiplier, base, ref breakers, .. } = self.dry;
        in_range("dry_multiplier", multiplier, finite(multiplier) && multiplier >= 0.0, "from 0 on")?;
        in_range("dry_base", base, finite(base) && base >= 1.0, "from 1 on")?;
        for TokenBias { bias, .. } in self.logit_bias.as_slice() {
            in_range("logit_bias", *bias, finite(*bias), "finite")?;
        }
        let biased = self.logit_bias.as_slice().iter().map(|entry| ("logit_bias", entry.token));
        let stops = self.stop_ids.iter().map(|&token| ("stop_ids", token));
        let breakers = breakers.iter().map(|&token| ("dry_sequence_breakers", token));
        for (list, token) in biased.chain(stops).chain(breakers) {
            if token >= vocab {
                return Err(SamplingError::Token { list, token, vocab });
            }
        }
        match self.log_probs {
            Some(asked) if asked > MAX_TOP => Err(SamplingError::LogProbs { asked, max: MAX_TOP }),
            _ => Ok(()),
        }
    }
}

impl Penalties {
    /// No penalties.
    pub const OFF: Self = Self { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// Whether all penalties are off.
    #[must_use]
    pub fn are_off(&self) -> bool {
        *self == Self::OFF
    }
}

impl Default for Penalties {
    fn default() -> Self {
        Self::OFF
    }
}

impl LogitBias {
    /// Collects entries; the last one for a token counts.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = TokenBias>) -> Self {
        let by_token: std::collections::BTreeMap<u32, f32> =
            entries.into_iter().map(|entry| (entry.token, entry.bias)).collect();
        Self(by_token.into_iter().map(|(token, bias)| TokenBias { token, bias }).collect())
    }

    /// Returns the biases after `penalties` are subtracted from them.
    pub(crate) fn less(&self, penalties: &std::collections::BTreeMap<u32, f32>) -> Self {
        let mut by_token: std::collections::BTreeMap<u32, f32> =
            self.0.iter().map(|entry| (entry.token, entry.bias)).collect();
        for (token, penalty) in penalties {
            *by_token.entry(*token).or_default() -= penalty;
        }
        Self(by_token.into_iter().map(|(token, bias)| TokenBias { token, bias }).collect())
    }

    /// The biases, ascending by token.
    #[must_use]
    pub fn as_slice(&self) -> &[TokenBias] {
        &self.0
    }
}

impl LogitAdjustments<'_> {
    /// Whether the adjustments change no logit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allowed.is_none()
            && self.suppressed.is_empty()
            && self.bias.is_none_or(|bias| bias.0.is_empty())
            && (self.penalties.are_off() || self.counts.is_none_or(|counts| counts.as_slice().is_empty()))
    }
}
