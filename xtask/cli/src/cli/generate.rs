//! Flags of `pagoda run`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use pagoda::Preemption;

use super::{EngineArgs, SamplingArgs, TemplateArgs, values};

/// `pagoda run`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("input").required(true).args(["text", "prompt", "prompt_file", "messages", "ids_file"]))]
pub struct GenerateArgs {
    /// Prompt; - is standard input
    #[arg(value_name = "PROMPT")]
    pub text: Option<String>,

    /// Prompt; repeat the flag to serve several prompts as one batch
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,

    /// File whose whole text is the prompt; - is standard input
    #[arg(long, short = 'f', alias = "file", value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,

    /// JSON file with a conversation to answer: a list of messages with role and content, or an object with the field
    /// messages, as chat's /save writes it
    #[arg(long, value_name = "FILE.json", conflicts_with = "system")]
    pub messages: Option<PathBuf>,

    /// System message before the prompt, which says how to answer
    #[arg(long, alias = "system-prompt", value_name = "TEXT", value_parser = values::non_empty)]
    #[arg(allow_hyphen_values = true)]
    pub system: Option<String>,

    /// JSON file with a list of token ids, or a list of such lists; ids are used as given
    #[arg(long, value_name = "FILE.json")]
    pub ids_file: Option<PathBuf>,

    /// Use the prompt as given, without the model's chat template; control tokens that it spells out are such
    #[arg(long, conflicts_with_all = ["system", "messages", "thinking", "template_arg"])]
    pub raw: bool,

    /// Maximum number of tokens to generate per prompt
    #[arg(long, short = 'n', aliases = ["predict", "n-predict"], value_name = "N", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub max_tokens: u32,

    /// Samples per prompt; they share the prompt's KV blocks
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=pagoda::MAX_SEQUENCES as i64))]
    pub n: u32,

    /// Text that ends generation and is not printed; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = values::non_empty, allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Separates this run's prefix-cache entries from those with other salts
    #[arg(long, value_name = "TEXT", value_parser = values::non_empty)]
    pub salt: Option<String>,

    /// Treatment of a preempted request, which must give up its KV blocks: recompute drops them and computes them again,
    /// swap copies them to host memory and back
    #[arg(long, value_name = "MODE", default_value_t, value_parser = values::named::<Preemption>())]
    pub preempt: Preemption,

    /// Allow only outputs that are instances of this JSON schema
    #[arg(long, value_name = "FILE.json")]
    pub json_schema: Option<PathBuf>,

    /// With --json, print the log-probability of every token and of the N most likely in its place
    #[arg(long, value_name = "N", requires = "json", allow_negative_numbers = true)]
    pub logprobs: Option<u32>,

    /// Print one JSON object per sample instead of text
    #[arg(long)]
    pub json: bool,

    /// Arguments of the chat template.
    #[command(flatten)]
    pub template: TemplateArgs,

    /// Settings of the sampler.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// The engine to run on.
    #[command(flatten)]
    pub engine: EngineArgs,
}
