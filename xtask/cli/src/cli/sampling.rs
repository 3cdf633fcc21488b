//! Flags of the sampler.

use anyhow::Result;
use clap::Args;
use pagoda::{Dry, LogitBias, Model, Penalties, Sampling, TokenBias};

use super::values;

/// Parameters of the sampler that no flag gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defaults {
    /// The parameters that the model's checkpoint recommends.
    OfModel,
    /// The most likely token each time, so that every run gives the same tokens.
    Greedy,
}

/// Choice of the next token from the logits.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divides the logits; 0 always takes the most likely token. By default this and the next three are what the model's files
    /// recommend, or else 0.7 and a top-p of 0.95
    #[arg(long, alias = "temp", value_name = "T", value_parser = values::temperature)]
    #[arg(allow_negative_numbers = true)]
    pub temperature: Option<f32>,

    /// Keeps the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_k: Option<u32>,

    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least P
    #[arg(long, value_name = "P", value_parser = values::top_p)]
    #[arg(allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// Drops tokens whose probability is below P times that of the most likely one
    #[arg(long, value_name = "P", value_parser = values::min_p)]
    #[arg(allow_negative_numbers = true)]
    pub min_p: Option<f32>,

    /// Seed of the sampler: the same seed, prompt and flags give the same tokens
    #[arg(long, short, value_name = "N", default_value_t = 0, value_parser = values::seed)]
    #[arg(allow_negative_numbers = true)]
    pub seed: u64,

    /// Divides positive logits, and multiplies others, of tokens that occurred in prompt or output; 1 is off. By default what
    /// the model's files recommend
    #[arg(long, alias = "repeat-penalty", value_name = "R")]
    #[arg(value_parser = values::repetition, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,

    /// Is subtracted once from logits of tokens that occurred in the output
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = values::finite, allow_negative_numbers = true)]
    pub presence_penalty: f32,

    /// Is subtracted from logits of tokens of the output for each occurrence
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = values::finite, allow_negative_numbers = true)]
    pub frequency_penalty: f32,

    /// DRY: penalty of a token that would go on with a repetition of --dry-allowed-length tokens; 0 is off, 0.8 usual
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = values::not_negative)]
    #[arg(allow_negative_numbers = true)]
    pub dry_multiplier: f32,

    /// DRY: factor of the penalty for each further token of the repetition
    #[arg(long, value_name = "B", default_value_t = Dry::OFF.base, value_parser = values::at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub dry_base: f32,

    /// DRY: shortest repetition that is penalised, in tokens
    #[arg(long, value_name = "N", default_value_t = Dry::OFF.allowed_length, allow_negative_numbers = true)]
    pub dry_allowed_length: u32,

    /// DRY: tokens at the end of prompt and output in which repetitions are looked for; all by default
    #[arg(long, alias = "dry-penalty-last-n", value_name = "N", default_value_t = Dry::OFF.last_tokens)]
    #[arg(hide_default_value = true)]
    #[arg(allow_negative_numbers = true)]
    pub dry_last_tokens: u32,

    /// DRY: text at which repetitions end, may be repeated; by default line breaks, colons, quotation marks and asterisks
    #[arg(long, alias = "dry-sequence-breaker", value_name = "TEXT", value_parser = values::non_empty)]
    #[arg(allow_hyphen_values = true)]
    pub dry_breaker: Vec<String>,

    /// Addend of the logit of a token; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = values::token_bias)]
    pub logit_bias: Vec<TokenBias>,

    /// Number of tokens before which the output does not end
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub min_tokens: u32,
}

impl SamplingArgs {
    /// The parameters of a request to `model`, whose tokenizer says at which tokens repetitions end. `defaults` are for those
    /// that no flag gives.
    ///
    /// # Errors
    /// If the tokenizer cannot decode a token.
    pub fn sampling(&self, model: &Model, defaults: Defaults) -> Result<Sampling> {
        let defaults = match defaults {
            Defaults::OfModel => model.default_sampling(),
            Defaults::Greedy => Sampling::default(),
        };
        let mut dry = Dry::OFF
            .multiplier(self.dry_multiplier)
            .base(self.dry_base)
            .allowed_length(self.dry_allowed_length)
            .last_tokens(self.dry_last_tokens);
        if !dry.is_off() {
            dry = dry.breakers(self.breakers(model)?);
        }
        let penalties = Penalties::OFF
            .repetition(self.repetition_penalty.unwrap_or(defaults.penalties.repetition))
            .presence(self.presence_penalty)
            .frequency(self.frequency_penalty);
        Ok(Sampling::default()
            .temperature(self.temperature.unwrap_or(defaults.temperature))
            .top_k(self.top_k.unwrap_or(defaults.top_k))
            .top_p(self.top_p.unwrap_or(defaults.top_p))
            .min_p(self.min_p.unwrap_or(defaults.min_p))
            .seed(self.seed)
            .penalties(penalties)
            .dry(dry)
            .logit_bias(LogitBias::new(self.logit_bias.iter().copied()))
            .min_tokens(self.min_tokens))
    }

    /// Lists the tokens whose text contains a breaker; empty if the model has no tokenizer. O(vocabulary).
    fn breakers(&self, model: &Model) -> Result<Vec<u32>> {
        if model.tokenizer.is_none() {
            return Ok(Vec::new());
        }
        Ok(match &self.dry_breaker[..] {
            [] => model.tokens_with(&Dry::BREAKERS)?,
            given => model.tokens_with(given)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    #[test]
    fn flags_prevail_over_what_the_model_recommends() {
        let fixture = [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures", "tiny-llama"];
        let model = Model::open(fixture.iter().collect::<std::path::PathBuf>()).unwrap();
        let sampling = |flags: &[&str], defaults| {
            let flags = Flags::parse_from([&["run"], flags].concat()).sampling;
            let sampling = flags.sampling(&model, defaults).unwrap();
            (sampling.temperature, sampling.top_k, sampling.top_p)
        };
        // This one recommends nothing.
        assert_eq!(sampling(&[], Defaults::OfModel), (0.7, 0, 0.95));
        assert_eq!(sampling(&["--temp", "0", "--top-k", "4"], Defaults::OfModel), (0.0, 4, 0.95));
        assert_eq!(sampling(&[], Defaults::Greedy), (0.0, 0, 1.0));
        assert_eq!(sampling(&["--temperature", "0.5"], Defaults::Greedy), (0.5, 0, 1.0));
    }
}
