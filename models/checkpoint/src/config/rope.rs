//! Rotary position embedding: parameters, and the inverse frequencies.

use std::f64::consts::PI;

use super::{ConfigError, DecoderConfig};

/// Rotary position embedding (Su et al., "RoFormer", 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Number of leading elements of a head that rotate; the rest passes unchanged.
    pub rotary_dims: u32,
    /// Elements that form a rotated pair.
    pub pairing: Pairing,
    /// Scaling for contexts longer than those of the training.
    pub scaling: RopeScaling,
}

/// Elements of a head that form a rotated pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pairing {
    /// Pair `i` is `(i, i + rotary_dims / 2)`.
    #[default]
    Halves,
    /// Pair `i` is `(2i, 2i + 1)`: GGUF files of the llama architecture hold query and key rows permuted for it.
    Interleaved,
}

/// Changes of the frequencies for contexts longer than those trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No change.
    None,
    /// All frequencies divided by `factor` (position interpolation, Chen et al., 2023).
    Linear {
        /// Divisor of all frequencies.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided, high ones kept, and those in between blended.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Number of tokens of the original training context.
        original_context: f64,
    },
    /// YaRN (Peng et al., 2023).
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Number of tokens of the original training context.
        original_context: f64,
        /// Pairs with more rotations than this within the original context are kept.
        beta_fast: f64,
        /// Pairs with fewer rotations than this within the original context are stretched in full.
        beta_slow: f64,
        /// Factor on sine and cosine; logits scale with its square.
        attention_factor: f64,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
    },
    /// Divisors given one by one, `[rotary_dims / 2]`: how GGUF files store Llama 3.1 scaling.
    Factors(Vec<f32>),
    /// LongRoPE (Ding et al., 2024): two sets of divisors. Cached keys keep the divisors that they were rotated with
    /// when a text grows, so [`DecoderConfig::for_longest`](super::DecoderConfig::for_longest) selects one set for
    /// all sequences.
    Long {
        /// Divisors for the configured context, `[rotary_dims / 2]`.
        factors: Vec<f32>,
        /// Divisors of shorter contexts, if they differ.
        short: Option<ShortFactors>,
        /// Factor on sine and cosine.
        attention_factor: f64,
    },
}

/// Divisors of LongRoPE for sequences within the original training context.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortFactors {
    /// Divisors, `[rotary_dims / 2]`.
    pub factors: Vec<f32>,
    /// Number of tokens of that context.
    pub original_context: u32,
}

impl Rope {
    /// Returns the angle of each pair at position 1 in radians, `[rotary_dims / 2]`; position `p` rotates pair `i` by `p *
    /// inv_freq[i]`.
    pub fn inv_freq(&self) -> Vec<f64> {
        let dims = f64::from(self.rotary_dims);
        let base = (0..self.rotary_dims / 2).map(|i| self.theta.powf(-2.0 * f64::from(i) / dims));
        match &self.scaling {
            RopeScaling::None => base.collect(),
            RopeScaling::Linear { factor } => base.map(|freq| freq / factor).collect(),
            RopeScaling::Factors(factors) | RopeScaling::Long { factors, .. } => {
                base.zip(factors).map(|(freq, f)| freq / f64::from(*f)).collect()
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => base
                .map(|freq| {
                    let turns = original_context * freq / (2.0 * PI);
                    let width = high_freq_factor - low_freq_factor;
                    let kept = match width > 0.0 {
                        true => (turns - low_freq_factor) / width,
                        // Llama 4 Scout: a step, and nothing between.
                        false => f64::from(u8::from(turns > high_freq_factor)),
                    };
                    blend(freq, factor, kept)
                })
                .collect(),
            &RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
                // The pair, as a real number, that makes `turns` turns within the original context.
                let pair = |turns: f64| {
                    dims * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let high = high.min(dims - 1.0);
                let width = if low == high { 0.001 } else { high - low };
                base.enumerate()
                    .map(|(i, freq)| blend(freq, factor, 1.0 - (i as f64 - low) / width))
                    .collect()
            }
        }
    }

    /// Factor of sine and cosine; 1 except for YaRN and LongRoPE.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.validate_parameters()?;
        let broken = self.inv_freq().into_iter().find(|freq| !(freq.is_finite() && *freq >= 0.0));
        broken.map_or(Ok(()), |freq| {
            let (field, value) = ("a rope frequency", freq.to_string());
            Err(ConfigError::Invalid { field, value, rule: "finite and not negative" })
        })
    }

    fn validate_parameters(&self) -> Result<(), ConfigError> {
        if !(self.theta.is_finite() && self.theta > 1.0) {
            let value = self.theta.to_string();
            return Err(ConfigError::Invalid { field: "rope theta", value, rule: "finite and over 1" });
        }
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope factor", *factor),
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                positive("rope factor", factor)?;
                positive("rope low_freq_factor", low_freq_factor)?;
                positive("rope original context", original_context)?;
                let width = high_freq_factor - low_freq_factor;
                match width >= 0.0 {
                    true => Ok(()),
                    false => positive("rope high_freq_factor - low_freq_factor", width),
                }
            }
            &RopeScaling::Yarn {
                factor, original_context, beta_fast, beta_slow, attention_factor, ..
            } => {
                positive("rope factor", factor)?;
                positive("rope original context", original_context)?;
                positive("rope beta_fast", beta_fast)?;
                positive("rope beta_slow", beta_slow)?;
                positive("rope attention factor", attention_factor)
            }
            RopeScaling::Factors(factors) => self.validate_factors(factors),
            RopeScaling::Long { factors, short, attention_factor } => {
                positive("rope attention factor", *attention_factor)?;
                self.validate_factors(factors)?;
                short.as_ref().map_or(Ok(()), |short| self.validate_factors(&short.factors))
            }
        }
    }

    fn validate_factors(&self, factors: &[f32]) -> Result<(), ConfigError> {
        if factors.len() != self.rotary_dims as usize / 2 {
            let value = factors.len().to_string();
            let rule = "half of the rotary dims";
            return Err(ConfigError::Invalid { field: "the number of rope factors", value, rule });
        }
        factors.iter().try_for_each(|&f| positive("a rope factor", f.into()))
    }
}

impl DecoderConfig {
    /// Returns the configuration for sequences of at most `tokens` tokens. With LongRoPE, the short factors apply if
    /// such sequences fit into the original training context, which then becomes the context length. transformers
    /// decides by the length of a text, llama.cpp by that of a context.
    #[must_use]
    pub fn for_longest(mut self, tokens: u64) -> Self {
        if let RopeScaling::Long { factors, short, .. } = &mut self.rope.scaling
            && let Some(within) = short.take_if(|short| tokens <= u64::from(short.original_context))
        {
            *factors = within.factors;
            self.context_length = self.context_length.min(within.original_context);
        }
        self
    }
}

/// Returns `freq` if `kept` is 1 or more, `freq / factor` if it is 0 or less, and interpolates in between.
fn blend(freq: f64, factor: f64, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    kept * freq + (1.0 - kept) * freq / factor
}

/// Returns LongRoPE's default attention factor for a stretch of a context of `original` tokens (equation 9 of the paper).
pub(super) fn long_mscale(factor: f64, original: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
}

/// Returns YaRN's default attention factor for a stretch (equation 22 of the paper; `scale` is DeepSeek's `mscale`).
pub(super) fn yarn_mscale(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

fn positive(field: &'static str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(ConfigError::Invalid { field, value: value.to_string(), rule: "finite and over 0" })
}
