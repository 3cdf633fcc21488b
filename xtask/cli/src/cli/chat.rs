//! Flags of `pagoda chat`.

use std::path::PathBuf;

use clap::Args;

use super::{EngineArgs, SamplingArgs, TemplateArgs, values};

/// `pagoda chat`.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// System message, which says how to answer
    #[arg(long, alias = "system-prompt", value_name = "TEXT", value_parser = values::non_empty)]
    #[arg(allow_hyphen_values = true)]
    pub system: Option<String>,

    /// First message, after which the chat goes on
    #[arg(long, short, value_name = "TEXT", value_parser = values::non_empty, allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// File whose text is the first message
    #[arg(long, short = 'f', alias = "file", value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,

    /// Conversation to go on with, as /save writes it or as a list of messages with role and content
    #[arg(long, value_name = "FILE.json", conflicts_with = "system")]
    pub load: Option<PathBuf>,

    /// Maximum number of tokens of an answer
    #[arg(long, short = 'n', aliases = ["predict", "n-predict"], value_name = "N", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub max_tokens: u32,

    /// Tokens of the conversation to make room for; by default the model's context length
    #[arg(long, short, alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub context: Option<u32>,

    /// Text that ends an answer and is not printed; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = values::non_empty, allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Separates this chat's prefix-cache entries from those with other salts
    #[arg(long, value_name = "TEXT", value_parser = values::non_empty)]
    pub salt: Option<String>,

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
